"""A function over batches that is not stopped by rows it cannot take: a batch that raises is halved until those rows
are alone. Pure: no Spark.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.spark.letter import REASON_CHARACTERS_MAX
from penstock.spark.user_frames import place_of

Function: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Poison:
    """The row of a batch that the function raised for, and why."""

    row: int
    reason: str


def halved(function: Function, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Poison]:
    """What the function makes of the batch's rows, in their order: of all at once where it can, and for each row alone
    that it raises an Exception for, that row. It is called about 2·p·log2(n) times for p such rows of n.
    """
    waiting = [(0, batch.num_rows)] if batch.num_rows else []
    while waiting:
        start, end = waiting.pop()
        try:
            yield function(batch.slice(start, end - start))
        except Exception as error:  # whatever it is: the row's bytes are kept, and the reason is told
            if end - start == 1:
                yield Poison(start, reason_of(error))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]


def reason_of(error: Exception) -> str:
    """The error as the last line of a traceback has it, and the user's line that raised it, of a bounded length and in
    valid UTF-8. Never raises: the text comes from a class of the user's.
    """
    try:
        told = str(error).encode(errors="backslashreplace").decode()
    except Exception:
        told = "(its text cannot be told)"
    place = place_of(error)
    behind = "" if place is None else f" (at {place})"
    text, room = f"{type(error).__name__}: {told}".removesuffix(": "), REASON_CHARACTERS_MAX - len(behind)
    return (text if len(text) <= room else f"{text[: room - 1]}…") + behind
