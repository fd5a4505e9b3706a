"""The built-in source `dates`: dates as people write them in hundreds of locales -> ISO 8601.

`babel` supplies CLDR's patterns and names. A string is written only if it determines its date among all strings that
the chosen locales and formats can write, so a perfect model reaches an exact match of 100 %.
"""

import datetime
import difflib
import functools
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from babel import Locale, localedata
from babel.dates import DateTimeFormat, tokenize_pattern
from datasets import Dataset, Features, Value

from .splits import draw_rows, pick, split_of

LATIN = ("en", "en_GB", "fr", "de", "es", "it", "pt", "nl", "sv", "fi", "pl", "tr")
"""The dozen of the quickstart, all in Latin script."""

WORLD = (
    *LATIN,
    *("ar", "bn", "cs", "da", "el", "fa", "he", "hi", "hr", "hu", "id", "ja", "ka", "ko", "ro", "ru", "sw", "ta"),
    *("th", "uk", "ur", "vi", "zh", "zh_Hant"),
)
"""Three dozen of the most written languages, in sixteen scripts."""

DEFAULT_FORMATS = ("full", "long", "medium", "yMMMEd", "d MMMM y", "EEEE d MMMM y")

_STYLES = ("full", "long", "medium", "short")
_DAY = re.compile(r"\{d(?::02)?\}")
_RUN = re.compile(r"\{d(?::02)?\}|\{y\}|[0-9]+")
# 2001-01-01 is a Monday, so day 1 + w of that January is weekday w
_REFERENCE_YEAR = 2001


class _Writer(NamedTuple):
    """One way to write a date: a locale and a format string for each month (1..12) and weekday (Monday is 0)."""

    locale: str
    texts: dict[tuple[int, int], str]


def locale_names(locales: str | Iterable[str] = "latin") -> tuple[str, ...]:
    """The CLDR locale names behind a preset or a list.

    Args:
        locales: `latin` (a dozen, the default), `world` (three dozen languages, many scripts), `languages` (every
            language of CLDR, no regional variants), `all` (every locale of CLDR), one locale (`"fr"`, `"pt-BR"`),
            or a list of them.

    Raises:
        ValueError: a name that CLDR does not have; the nearest one is named.
    """
    presets = {"latin": LATIN, "world": WORLD}
    if isinstance(locales, str) and locales in presets:
        return presets[locales]
    known = sorted(name for name in localedata.locale_identifiers() if name != "root")
    if locales == "all":
        return tuple(known)
    if locales == "languages":
        return tuple(name for name in known if "_" not in name)
    names = [name.replace("-", "_") for name in ([locales] if isinstance(locales, str) else locales)]
    if not names:
        raise ValueError("locales is empty: name at least one locale, or a preset")
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, [*presets, "languages", "all", *known], n=1, cutoff=0)[0]
            raise ValueError(f"locales: {name!r} is not a locale of CLDR or a preset; did you mean {nearest!r}?")
    return tuple(dict.fromkeys(names))


def dates(
    split: str,
    size: int,
    seed: int = 0,
    locales: str | Sequence[str] = "latin",
    formats: Sequence[str] = DEFAULT_FORMATS,
    first_year: int = 1900,
    last_year: int = 2100,
) -> Dataset:
    """Human dates and their ISO 8601 form: `"lundi 3 mars 2003"` -> `"2003-03-03"`.

    Whole dates are dealt to the splits by a hash, so no date of `test` is ever written in `train`, in any locale.
    Rows are distinct, and depend on nothing but the arguments and babel's version of CLDR.

    Args:
        split: `train` (90 % of all dates), `validation` or `test` (5 % each).
        size: number of rows; 100,000 take some seconds.
        seed: another seed, other rows of the same split.
        locales: a preset or a list, see `locale_names`.
        formats: CLDR styles (`full`, `long`, `medium`, `short`), CLDR skeletons (`yMMMEd`), which a locale without
            them skips, or CLDR patterns (`"d MMMM y"`, anything that is not letters only), taken as they are.
            Whatever has a two-digit year is skipped.
        first_year: first year drawn, from 1000.
        last_year: last year drawn, up to 9999.

    Returns:
        A dataset with string columns `source`, `target` and `locale` (the CLDR name of the writer).

    Raises:
        ValueError: an argument out of range, an unknown locale or format, or a locale left with no string that
            determines its date.
    """
    if not 1000 <= first_year <= last_year <= 9999:
        raise ValueError(f"first_year={first_year}, last_year={last_year}: years must ascend and lie in 1000..9999")
    formats = (formats,) if isinstance(formats, str) else tuple(formats)
    if not formats:
        raise ValueError("formats is empty: name at least one style, skeleton or pattern of CLDR")
    writers = _writers(locale_names(locales), formats)
    first_day = datetime.date(first_year, 1, 1).toordinal()
    days = datetime.date(last_year, 12, 31).toordinal() - first_day + 1

    def propose(generator: random.Random) -> dict[str, str] | None:
        of_locale = writers[pick(generator, len(writers))]
        writer = of_locale[pick(generator, len(of_locale))]
        date = datetime.date.fromordinal(first_day + pick(generator, days))
        text = writer.texts.get((date.month, date.weekday()))
        target = date.isoformat()
        if text is None or split_of(target) != split:
            return None
        return {"source": text.format(d=date.day, y=date.year), "target": target, "locale": writer.locale}

    rows = draw_rows("dates", split, size, seed, propose)
    return Dataset.from_list(rows, features=Features(dict.fromkeys(("source", "target", "locale"), Value("string"))))


@functools.lru_cache(maxsize=8)
def _writers(locales: tuple[str, ...], formats: tuple[str, ...]) -> tuple[tuple[_Writer, ...], ...]:
    """The writers of each locale, without the strings that two dates share."""
    candidates = []
    for name in locales:
        locale = Locale.parse(name)
        patterns = dict.fromkeys(pattern for item in formats for pattern in _patterns(locale, item))
        candidates.append([_Writer(name, texts) for pattern in patterns if (texts := _texts(locale, pattern))])
    ambiguous = _ambiguous(
        {(text, key[0]) for writer in itertools.chain(*candidates) for key, text in writer.texts.items()}
    )
    writers = []
    for name, of_locale in zip(locales, candidates, strict=True):
        clear = [
            writer._replace(texts={key: text for key, text in writer.texts.items() if text not in ambiguous})
            for writer in of_locale
        ]
        clear = tuple(writer for writer in clear if writer.texts)
        if not clear:
            raise ValueError(
                f"locales: with formats={formats}, no string of {name!r} determines its date (two-digit year, or"
                f" another of the {len(locales)} locales gives the same string another meaning)"
            )
        writers.append(clear)
    return tuple(writers)


def _patterns(locale: Locale, item: str) -> list[str]:
    """CLDR patterns that an entry of `formats` stands for in a locale: one, or none where the locale lacks it."""
    if item in _STYLES:
        return [locale.date_formats[item].pattern]
    if not item.isalpha():
        fields = "".join(value[0] for kind, value in tokenize_pattern(item) if kind == "field")
        if sorted(fields.replace("L", "M").translate(dict.fromkeys(map(ord, "EecG")))) != ["M", "d", "y"]:
            raise ValueError(f"formats: pattern {item!r} must hold the fields d, M (or L) and y once each")
        return [item]
    if item not in Locale.parse("en").datetime_skeletons:
        known = [*_STYLES, *(name for name in Locale.parse("en").datetime_skeletons if {"y", "M", "d"} <= set(name))]
        nearest = difflib.get_close_matches(item, known, n=1, cutoff=0)[0]
        raise ValueError(f"formats: {item!r} is no style or skeleton of CLDR; did you mean {nearest!r}?")
    skeleton = locale.datetime_skeletons.get(item)
    return [] if skeleton is None else [skeleton.pattern]


def _texts(locale: Locale, pattern: str) -> dict[tuple[int, int], str]:
    """Format strings in `{d}` and `{y}` for each (month, weekday); empty if the pattern does not name a whole date."""
    tokens = tokenize_pattern(pattern)
    fields = [value for kind, value in tokens if kind == "field"]
    letters = [letter for letter, _ in fields]
    if ("y", 2) in fields or not set(letters) <= set("dyMLEecG"):
        return {}
    if letters.count("d") != 1 or letters.count("y") != 1 or not {"M", "L"} & set(letters):
        return {}

    def render(month: int, day: int) -> str:
        names = DateTimeFormat(datetime.date(_REFERENCE_YEAR, month, day), locale)
        parts = []
        for kind, value in tokens:
            if kind == "chars":
                parts.append(value.replace("{", "{{").replace("}", "}}"))
            elif value[0] == "d":
                parts.append("{d:02}" if value[1] > 1 else "{d}")
            elif value[0] == "y":
                parts.append("{y}")
            else:
                parts.append(names[value[0] * value[1]].replace("{", "{{").replace("}", "}}"))
        return "".join(parts)

    weekdays = range(7)
    if not set(letters) & set("Eec"):
        return {
            (month, weekday): text for month in range(1, 13) for text in [render(month, 1)] for weekday in weekdays
        }
    texts = {}
    for month in range(1, 13):
        first = datetime.date(_REFERENCE_YEAR, month, 1).weekday()
        for weekday in weekdays:
            texts[month, weekday] = render(month, 1 + (weekday - first) % 7)
    return texts


def _ambiguous(texts: set[tuple[str, int]]) -> set[str]:
    """Those of the (format string, month) pairs' strings that can come out equal for two different dates.

    Strings are equal only if they agree outside their numbers, so only those are compared that do. Weekdays are taken
    as text, without asking which years they fit: this may give up a string, never keep an ambiguous one.
    """
    groups = defaultdict(list)
    for text, month in texts:
        groups[_RUN.sub("\0", text)].append((text, _RUN.findall(text), month))
    ambiguous = set()
    for outline, group in groups.items():
        # Numbers that touch cannot be told apart
        if "\0\0" in outline:
            ambiguous.update(text for text, _, _ in group)
        for (text_a, runs_a, month_a), (text_b, runs_b, month_b) in itertools.combinations(group, 2):
            if _clash(runs_a, month_a, runs_b, month_b):
                ambiguous |= {text_a, text_b}
    return ambiguous


def _clash(runs_a: list[str], month_a: int, runs_b: list[str], month_b: int) -> bool:
    """Whether some string is written both ways, for two dates: `runs` are the day, the year or fixed numbers."""
    day_a = day_b = None
    for a, b in zip(runs_a, runs_b, strict=True):
        if a == b or (_DAY.fullmatch(a) and _DAY.fullmatch(b)):
            continue
        if _DAY.fullmatch(a) and b.isdigit() and 1 <= int(b) <= 31:
            day_a = int(b)
        elif _DAY.fullmatch(b) and a.isdigit() and 1 <= int(a) <= 31:
            day_b = int(a)
        else:
            return False
    return month_a != month_b or day_a != day_b
