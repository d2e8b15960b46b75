"""Numbers of things, for people."""


def show_count(count: int, one: str, several: str = "") -> str:
    """The number with its noun: 1 epoch, 2,000 epochs. `several` is the plural, unless that only adds an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
