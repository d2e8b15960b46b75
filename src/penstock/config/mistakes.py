"""What is wrong with an application's file, and where. All of it is told at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.core.errors import RequestError

_NAMES_SHOWN_MAX = 20
"""Of what could stand there; more are a list that nobody reads."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands in the file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """`str()` is `file:line:column: what is wrong. What was expected.`"""

    file: str
    place: Place
    text: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.place.line}:{self.place.column}: {self.text}"
        where = where if where.endswith((".", "?")) else f"{where}."
        return _on_one_line(f"{where} {self.hint}" if self.hint else where)


def _on_one_line(text: str) -> str:
    """What a terminal would act upon, as an escape: names in a file may hold anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigErrors(RequestError):
    """The file cannot be deployed: nothing was started. `mistakes` are all there are, in the file's order."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes)))
        count = len(self.mistakes)
        told = "\n".join(map(str, self.mistakes))
        super().__init__(told, f"{count} {'mistake' if count == 1 else 'mistakes'}: nothing was started.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the one that was probably meant, or all there are."""
    names = sorted(known)
    near = get_close_matches(name, names, 1, 0.5)
    if near:
        return f'Did you mean "{near[0]}"?'
    more = " …" if len(names) > _NAMES_SHOWN_MAX else ""
    return f"There are: {', '.join(names[:_NAMES_SHOWN_MAX]) or 'none'}{more}."
