"""A function over batches that is not stopped by rows it cannot take: a batch that raises is halved until those rows
are alone. Pure: no Spark.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.spark.letter import REASON_CHARACTERS_MAX

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
    """The error as Python tells it in its last line, of a bounded length, and as UTF-8 has it. Never raises: it is the
    user's class that tells.
    """
    try:
        told = str(error).encode(errors="backslashreplace").decode()
    except Exception:
        told = "(its text cannot be told)"
    text = f"{type(error).__name__}: {told}".removesuffix(": ")
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[: REASON_CHARACTERS_MAX - 1]}…"
