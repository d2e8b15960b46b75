"""Letters: events that a pipeline could not take, because they came late or could not be processed.

A row whose `letter` column is not null is one. It passes every later operator of ours untouched, and leaves in the same
query as the other rows, through the port that it names, with its original bytes, its position and the reason.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.protocol.stored.letters import ERR, LATE, LETTER_PORTS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ERR",
    "LATE",
    "LETTER",
    "LETTER_DDL",
    "LETTER_FIELDS",
    "LETTER_PORTS",
    "NO_EVENT_TIME",
    "REASON_CHARACTERS_MAX",
    "letter_arrow",
]

LETTER = "letter"
"""The column that a row of a frame with letters has; null in the rows that are none."""

REASON_CHARACTERS_MAX = 1_000
"""A reason is for people; with it, a letter's metadata must stay far below what an event may have of it."""

NO_EVENT_TIME = "it has no event time between the years 1 and 9999"
"""The reason of an event that an operator of event time cannot place."""

LETTER_FIELDS = {
    "port": "string",
    "reason": "string",
    "value": "binary",
    "key": "binary",
    "event_time": "timestamp",
    "source": "string",
    "stream": "string",
    "stream_id": "bigint",
    "message_id": "bigint",
    "segment": "string",
    "offset": "bigint",
    "watermark": "timestamp",
    "behind_us": "bigint",
}
"""Name → Spark's name of its type. `value` is the event's own bytes, and never null in a letter; `segment` and `offset`
say where it was read; `watermark` is the one that it missed, and `behind_us` by how much.
"""

LETTER_DDL = f"struct<{', '.join(f'{name}: {kind}' for name, kind in LETTER_FIELDS.items())}>"
"""The column's type, as Spark's `cast` and schemas take it."""


@cache
def letter_arrow() -> pa.DataType:
    """The column's type, exactly as Spark expects it from a function over Arrow batches."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "bigint": pa.int64(),
    }
    return pa.struct([pa.field(name, kinds[kind]) for name, kind in LETTER_FIELDS.items()])
