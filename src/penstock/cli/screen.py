"""Compact tables that fit a screen: one line per thing, what is wrong first, what does not fit as a count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from penstock.cli.texts import printable, shortened_in_the_middle

_GAP = 2
_NAME_MIN = 24
"""Names get no shorter than this while there is a column that can be left out instead."""

_LINES_MIN = 3
"""With fewer lines than this, a table says less than its summary, unless something is wrong in it."""


class Level(IntEnum):
    """How much attention a line needs."""

    BAD = 0
    WARNING = 1
    OK = 2


STYLES = {Level.BAD: "red", Level.WARNING: "yellow", Level.OK: ""}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    is_name: bool = False
    """Left-aligned, and shortened in the middle. Other columns have numbers and short words, never shortened."""
    is_optional: bool = False
    """Left out if all its cells are empty, or on a narrow screen; of several the last one first."""
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[str]
    level: Level = Level.OK


@dataclass(frozen=True, slots=True)
class Section:
    """`noun` is what each of its rows is; `fine` describes those that are not shown and need no attention."""

    noun: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=tuple)
    fine: str = ""

    def sorted_rows(self) -> list[Row]:
        """What is wrong first; otherwise as they are."""
        return sorted(self.rows, key=lambda row: row.level)

    @property
    def troubled(self) -> int:
        return sum(row.level is not Level.OK for row in self.rows)


def lines_taken(shown: int, total: int) -> int:
    """By a section of which some rows are shown: its header, and a line that counts the rest."""
    if not total:
        return 0
    return 1 if not shown else 1 + shown + (shown < total)


def shares(sections: Sequence[Section], room: int | None) -> list[int]:
    """How many rows of each section are shown, in so many lines; None: all. Rows that need attention come first,
    then the sections as they follow each other.
    """
    totals = [len(section.rows) for section in sections]
    if room is None:
        return totals
    shown = [0] * len(sections)
    troubled = [section.troubled for section in sections]
    for wanted in ([min(count, _LINES_MIN) for count in troubled], troubled, totals):
        for number, most in enumerate(wanted):
            taken = sum(map(lines_taken, shown, totals)) - lines_taken(shown[number], totals[number])
            fitting = [k for k in range(shown[number], most + 1) if taken + lines_taken(k, totals[number]) <= room]
            best = max(fitting, default=0)
            if best >= min(_LINES_MIN, most):
                shown[number] = max(best, shown[number])
    return shown


def rendered(section: Section, shown: int, width: int) -> list[Text]:
    total = len(section.rows)
    if not total:
        return []
    if not shown:
        return [_rest(section, total, "")]
    lines = _table(section.columns, section.sorted_rows()[:shown], width)
    return lines if shown == total else [*lines, _rest(section, total - shown, "more ")]


def _rest(section: Section, count: int, more: str) -> Text:
    """The line that counts the rows not shown. Rows that need attention come first, so these are the last of them."""
    troubled = min(count, section.troubled - (len(section.rows) - count))
    rest = f"{troubled} need attention (--all)" if troubled > 0 else section.fine
    return Text(f"… {count} {more}{section.noun}{'' if count == 1 else 's'}: {rest}", "dim")


def _table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Text]:
    cells = [[printable(cell) for cell in row.cells] for row in rows]
    shown, widths = fitted(columns, [[column.title for column in columns], *cells], width)
    header = _line([columns[i].title for i in shown], [columns[i] for i in shown], widths)
    lines = [Text(header, "bold")]
    for row, texts in zip(rows, cells, strict=True):
        line = _line([texts[i] for i in shown], [columns[i] for i in shown], widths)
        lines.append(Text(line, STYLES[row.level]))
    return lines


def fitted(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide; the first row has the titles. Names give way first, then optional columns,
    then names again.
    """
    texts = [*zip(*rows, strict=True)]
    natural = [max(map(cell_len, column)) for column in texts]
    shown = [i for i, column in enumerate(columns) if any(texts[i][1:]) or not column.is_optional]
    while _least(columns, natural, shown) > width:
        optional = [i for i in shown if columns[i].is_optional]
        if not optional:
            break
        shown.remove(optional[-1])
    widths = [natural[i] for i in shown]
    names = [at for at, i in enumerate(shown) if columns[i].is_name]
    while names and sum(widths) + _GAP * (len(shown) - 1) > width:
        widest = max(names, key=lambda at: widths[at])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    return shown, widths


def _least(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int]) -> int:
    """The width of a table whose names are as short as they should ever be."""
    widths = (min(natural[i], _NAME_MIN) if columns[i].is_name else natural[i] for i in shown)
    return sum(widths) + _GAP * (len(shown) - 1)


def _line(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    cells = [_cell(text, column, width) for text, column, width in zip(texts, columns, widths, strict=True)]
    return (" " * _GAP).join(cells).rstrip()


def _cell(text: str, column: Column, width: int) -> str:
    if column.is_name:
        return set_cell_size(shortened_in_the_middle(text, width), width)
    return set_cell_size(text, width) if column.is_left else " " * (width - cell_len(text)) + text
