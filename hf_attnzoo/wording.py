"""How numbers of things are said to people."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with what it counts: `1 epoch`, `2 epochs`, `1,234 epochs`.

    Args:
        number: of things.
        one: what one of them is called.
        many: what several are called, or none. Default: `None`, `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
