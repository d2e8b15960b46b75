"""Tables of figures, and the line below them: the same in all reports."""

from collections.abc import Mapping

from rich.table import Table


def figures(title: str, *columns: str) -> Table:
    """The first column has names, the others numbers."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def closing(rounds: int, settings: Mapping[str, object]) -> str:
    told = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"Medians of {rounds} rounds; in brackets the lowest and the highest of a round. {told}"
