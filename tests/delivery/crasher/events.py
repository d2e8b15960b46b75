"""What the source programs send: the same for the same (program, stream, number), so that anybody can work out what
must come of it.
"""

from typing import NamedTuple

PROGRAMS = ("north", "south")
STREAMS = ("a", "b")
KEYS_A_STREAM = 3

ALL = "*"
"""The key that counts everything: there is one such result in each epoch."""


class Line(NamedTuple):
    """One stream of a program."""

    program: str
    stream: str

    def __str__(self) -> str:
        return f"{self.program}/{self.stream}"


LINES = tuple(Line(program, stream) for program in PROGRAMS for stream in STREAMS)


def text(line: Line, number: int) -> bytes:
    """The message with this number; numbers start at 1."""
    return f"{line}:{number}:".encode() + b"." * (number % 50)


def key(line: Line, number: int) -> str:
    return f"{line}/{number % KEYS_A_STREAM}"


def sum_of_first(residue: int, count: int) -> int:
    """The sum of the numbers of a key's first `count` messages."""
    first = residue or KEYS_A_STREAM
    return count * first + KEYS_A_STREAM * (count * (count - 1) // 2)


def count_of(residue: int, last: int) -> int:
    """How many of a stream's messages up to `last` have this key."""
    return (last - residue) // KEYS_A_STREAM + (1 if residue else 0)
