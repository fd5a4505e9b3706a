import datetime
import itertools
from collections import defaultdict

import pytest
from babel import Locale
from babel.dates import format_date
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from hf_attnzoo.data.dates import DEFAULT_FORMATS, LATIN, dates, locale_names
from hf_attnzoo.data.splits import split_of


def rows(*args, **kwargs):
    return list(dates(*args, **kwargs))


def babel_writes(date, locale, formats):
    """Every string that babel itself writes for a date."""
    texts = set()
    for item in formats:
        pattern = Locale.parse(locale).datetime_skeletons.get(item, item) if item.startswith("yM") else item
        texts.add(format_date(date, format=pattern, locale=locale))
    return texts


@pytest.mark.parametrize(
    ("locale", "form", "source", "target"),
    [
        ("fr", "full", "vendredi 14 juillet 1989", "1989-07-14"),
        ("en", "medium", "Jul 14, 1989", "1989-07-14"),
        ("de", "medium", "14.07.1989", "1989-07-14"),
        ("pl", "long", "14 lipca 1989", "1989-07-14"),
        ("ja", "full", "1989年7月14日金曜日", "1989-07-14"),
    ],
)
def test_known_strings(locale, form, source, target):
    # Every training date of the year is drawn
    year = [(datetime.date(1989, 1, 1) + datetime.timedelta(days=i)).isoformat() for i in range(365)]
    size = sum(split_of(day) == "train" for day in year)
    drawn = dates("train", size, locales=locale, formats=form, first_year=1989, last_year=1989)
    assert {row["source"]: row["target"] for row in drawn}[source] == target


def test_babel_writes_the_same():
    for row in dates("train", 400, seed=5, locales="world"):
        date = datetime.date.fromisoformat(row["target"])
        assert row["source"] in babel_writes(date, row["locale"], DEFAULT_FORMATS), row


def test_every_locale_and_format_of_the_preset_is_drawn():
    drawn = rows("train", 3000)
    assert {row["locale"] for row in drawn} == set(LATIN)
    german = [row["source"] for row in drawn if row["locale"] == "de"]
    for has in ("Montag, ", ".04.", "Mo., ", "Montag 1", ". April "):
        assert any(has in source for source in german), has


def test_no_string_of_the_default_preset_has_two_dates():
    # Two years hold each month with all weekdays; a year is the one number of four digits and cannot be confused
    meanings = defaultdict(set)
    day = datetime.date(2003, 1, 1)
    while day.year < 2005:
        for locale in LATIN:
            for text in babel_writes(day, locale, DEFAULT_FORMATS):
                meanings[text].add(day)
        day += datetime.timedelta(days=1)
    assert [text for text, days in meanings.items() if len(days) > 1] == []


def test_strings_that_two_locales_read_differently_are_dropped():
    # `listopada` is November in Polish, October in Croatian; `3 listopada 2020` tells neither
    polish = rows("train", 3000, locales="pl", formats=["d MMMM y"])
    assert any("listopada" in row["source"] for row in polish)
    both = rows("train", 3000, locales=["pl", "hr"], formats=["d MMMM y"])
    assert {row["locale"] for row in both} == {"pl", "hr"}
    assert not any("listopada" in row["source"] for row in both)
    # October is dropped in Croatian, not in Polish
    october = {row["locale"] for row in both if row["target"][5:7] == "10"}
    assert october == {"pl"}


def test_numeric_dates_only_where_all_locales_agree():
    british = rows("train", 50, locales="en_GB", formats=["dd/MM/y"])
    assert all(row["source"] == "/".join(reversed(row["target"].split("-"))) for row in british)
    with pytest.raises(ValueError, match="no string of 'en' determines its date"):
        dates("train", 1, locales="en", formats=["dd/MM/y", "MM/dd/y"])
    # Day and month in other places, but marked by the text around them
    assert rows("train", 5, locales="en", formats=["dd/MM/y", "MM-dd-y"])


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.sampled_from(locale_names("languages")), min_size=1, max_size=4, unique=True),
    st.sampled_from(["full", "long", "medium", "yMMMEd", "d MMM y", "MMMM d, y", "E d/M/y"]),
    st.integers(0, 2**40),
)
def test_a_string_tells_its_date(locales, form, seed):
    try:
        drawn = rows("train", 200, seed=seed, locales=locales, formats=[form], first_year=2000, last_year=2000)
    except ValueError:
        # Nothing is left that is not ambiguous, or fewer than 200 strings
        reject()
    meanings = defaultdict(set)
    for day in range(366):
        date = datetime.date(2000, 1, 1) + datetime.timedelta(days=day)
        for locale in locales:
            for text in babel_writes(date, locale, [form]):
                meanings[text].add(date.isoformat())
    for row in drawn:
        assert meanings[row["source"]] == {row["target"]}


def test_splits_share_no_date_and_no_string():
    drawn = {split: rows(split, 2000, seed=seed) for seed, split in enumerate(("train", "validation", "test"))}
    for a, b in itertools.combinations(drawn, 2):
        assert not {row["source"] for row in drawn[a]} & {row["source"] for row in drawn[b]}
        assert not {row["target"] for row in drawn[a]} & {row["target"] for row in drawn[b]}


def test_same_rows_everywhere():
    first = rows("test", 3, seed=1, locales="fr", formats=["long"])
    assert [(row["source"], row["target"]) for row in first] == [
        ("28 mai 2093", "2093-05-28"),
        ("21 janvier 1995", "1995-01-21"),
        ("3 février 2037", "2037-02-03"),
    ]
    assert rows("test", 50, seed=1, locales="fr", formats=["long"])[:3] == first
    assert rows("test", 3, seed=2, locales="fr", formats=["long"]) != first


def test_split_of_is_frozen():
    # Buckets 0, 90, 94, 95 and 99 of 100, by an independent BLAKE2b: published figures rest on them
    days = ["2003-06-22", "2003-01-20", "2003-01-13", "2003-02-01", "2003-01-23"]
    assert [split_of(day) for day in days] == ["train", "validation", "validation", "test", "test"]


def test_rows_are_distinct():
    sources = [row["source"] for row in dates("test", 1000)]
    assert len(set(sources)) == 1000


def test_a_space_can_be_used_up():
    with pytest.raises(ValueError, match=r"size=400 is more .*'dates' .*distinct strings"):
        dates("train", 400, locales="fr", formats=["long"], first_year=2000, last_year=2000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"locales": "fr_FRR"}, "locales: 'fr_FRR' .* did you mean 'fr_FR'"),
        ({"locales": []}, "locales is empty"),
        ({"locales": "latine"}, "did you mean 'latin'"),
        ({"formats": ["yMMEd"]}, "formats: 'yMMEd' .* did you mean 'yM+Ed'"),
        ({"formats": ["MMMM y"]}, "pattern 'MMMM y' must hold the fields d, M"),
        ({"formats": []}, "formats is empty"),
        ({"formats": ["d MMMM yy"]}, "determines its date"),
        ({"first_year": 999}, "first_year=999"),
        ({"first_year": 2000, "last_year": 1999}, "years must ascend"),
        ({"size": 0}, "size=0"),
        ({"size": 2.5}, "size=2.5"),
        ({"split": "dev"}, "split='dev' is not one of train, validation, test"),
        ({"seed": "x"}, "seed='x'"),
    ],
)
def test_refuses_clearly(options, message):
    with pytest.raises(ValueError, match=message):
        dates(**({"split": "train", "size": 1} | options))


def test_presets():
    assert len(LATIN) == 12
    assert len(locale_names("all")) > 1000 > len(locale_names("languages")) > 300
    assert set(locale_names("world")) <= set(locale_names("all"))
    assert locale_names(["pt-BR", "pt_BR", "ja"]) == ("pt_BR", "ja")
    assert locale_names("pt-BR") == ("pt_BR",)
