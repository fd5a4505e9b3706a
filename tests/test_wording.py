"""Numbers with what they count."""

import pytest

from hf_attnzoo.wording import counted, counted_unit


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (1_234, "1,234 texts"), (-1, "-1 texts")]
)
def test_one_is_one(number, expected):
    assert counted(number, "text") == expected


def test_a_plural_of_its_own():
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_rows_have_a_name_in_the_plural():
    assert [counted_unit(number, "pairs") for number in (0, 1, 5_000)] == ["0 pairs", "1 pair", "5,000 pairs"]
