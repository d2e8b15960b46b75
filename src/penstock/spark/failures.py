"""Why a query has ended, read out of what Spark tells of it."""

import re
from dataclasses import dataclass

from penstock.core import errors
from penstock.core.errors import PenstockError, RequestError
from penstock.spark.user_code import is_the_users

_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(.+)", line \d+, in ')
_OURS = re.compile(r"penstock\.core\.errors\.(\w+): (.*)", re.DOTALL)
_TEXT_CHARS_MAX = 4000
"""Spark repeats itself; its log has all of it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`is_final`: to start the query again would not help."""

    text: str
    hint: str = ""
    is_final: bool = False


def failure_of(told: str) -> Failure:
    """From the text of Spark's exception: the user's lines and the error for Python, else Spark's own words."""
    reason = told.split("terminated with exception: ", 1)[-1].split("\n=== Streaming Query ===", 1)[0]
    reason = re.sub(r"( SQLSTATE: \w+)+\s*$", "", reason).rstrip()
    if _TRACEBACK not in reason:
        return Failure(reason[:_TEXT_CHARS_MAX])
    frames, error = _split(reason.rpartition(_TRACEBACK)[2])
    if ours := _OURS.fullmatch(error):
        return _of_ours(ours[1], ours[2])
    return Failure("\n".join([*frames, error])[:_TEXT_CHARS_MAX])


def _split(trace: str) -> tuple[list[str], str]:
    """The lines of the user's frames, and the error itself."""
    kept: list[str] = []
    keep = False
    lines = trace.splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("  "):
            return kept, "\n".join(lines[number:]).rstrip()
        if frame := _FRAME.match(line):
            keep = is_the_users(frame[1])
        if keep:
            kept.append(line)
    return kept, ""


def _of_ours(name: str, told: str) -> Failure:
    """Our errors are one line, and the hint stands in the next."""
    kind = getattr(errors, name, PenstockError)
    text, _, hint = told.partition("\n")
    return Failure(text, hint or kind.hint, issubclass(kind, RequestError))
