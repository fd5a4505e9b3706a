import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnzoo.data.sequences import copy, reverse


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["train", "validation", "test"]),
    st.integers(3, 6),
    st.integers(0, 6),
    st.integers(5, 26),
    st.sampled_from([" ", ""]),
    st.integers(),
)
def test_targets_and_lengths(split, low, extra, symbols, separator, seed):
    options = {"min_length": low, "max_length": low + extra, "symbols": symbols, "separator": separator}
    letters = set("abcdefghijklmnopqrstuvwxyz"[:symbols])
    for source_of, step in ((reverse, -1), (copy, 1)):
        for row in source_of(split, 5, seed, **options):
            items = row["source"].split(" ") if separator else list(row["source"])
            assert row["target"] == separator.join(items[::step])
            assert low <= len(items) <= low + extra
            assert set(items) <= letters


def test_all_lengths_and_symbols_are_drawn():
    sources = [row["source"].split() for row in reverse("train", 2000)]
    assert {len(items) for items in sources} == set(range(5, 16))
    assert {item for items in sources for item in items} == set("abcdefghijklmnopqrstuvwxyz")


def test_splits_are_disjoint_whatever_the_seed():
    options = {"min_length": 1, "max_length": 6, "symbols": 3}
    drawn = {split: set(reverse(split, 40, i, **options)["source"]) for i, split in enumerate(("validation", "test"))}
    drawn["train"] = set(reverse("train", 900, 7, **options)["source"])
    assert len(drawn["validation"] | drawn["test"] | drawn["train"]) == 980


def test_own_symbols():
    rows = reverse("train", 20, symbols=["AH0", "K", "œ"], min_length=3, max_length=9)
    assert {item for row in rows for item in row["source"].split()} == {"AH0", "K", "œ"}
    assert set("".join(copy("train", 20, symbols="xyz", separator="")["source"])) == set("xyz")


def test_a_larger_size_begins_with_the_smaller():
    assert reverse("test", 30, 4)["source"][:10] == reverse("test", 10, 4)["source"]
    assert reverse("test", 10, 4)["source"] != reverse("test", 10, 5)["source"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 0}, "min_length=0"),
        ({"min_length": 9, "max_length": 8}, "min_length=9, max_length=8"),
        ({"symbols": 27}, "symbols=27 must lie in 1..26"),
        ({"symbols": []}, "distinct, and at least one"),
        ({"symbols": ["a", "a"]}, "distinct"),
        ({"symbols": ["a", "b c"]}, "'b c'"),
        ({"symbols": ["a", "bc"], "separator": ""}, "'bc' needs a separator"),
        ({"symbols": 2, "max_length": 1, "min_length": 1, "size": 3}, "'reverse' can give"),
        ({"split": "eval"}, "split='eval'"),
    ],
)
def test_refuses_clearly(options, message):
    with pytest.raises(ValueError, match=message):
        reverse(**({"split": "train", "size": 1} | options))
