"""How numbers of things are said to people."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with what it counts: `1 epoch`, `2 epochs`, `1,234 epochs`.

    Args:
        number: of things.
        one: what one of them is called.
        many: what several are called, or none. Default: `None`, `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def counted_unit(number: int, unit: str) -> str:
    """A number of what has a name in the plural, such as the rows of a task: `1 pair`, `2 pairs`.

    Args:
        number: of rows.
        unit: what they are called, with an s at the end.
    """
    return counted(number, unit.removesuffix("s"), unit)
