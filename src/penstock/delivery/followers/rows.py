"""The events of a block as rows: tuples for functions, lines for what takes text."""

import base64
import json
from enum import Enum
from typing import NamedTuple

from penstock.delivery.block import Block
from penstock.protocol.stored.event import NO_TIME


class Row(NamedTuple):
    id: int
    """Payload bytes before it in the sink's history: the same whenever it is delivered again."""
    event_time_us: int | None
    key: bytes
    value: bytes


class RowFormat(Enum):
    LINES = "lines"
    """The values, each with a newline behind it: for values that have none inside."""
    JSON = "json"
    """An object for each event, each on a line of its own, whatever the values are."""

    def encode(self, block: Block) -> bytes:
        if self is RowFormat.JSON:
            return b"".join(map(_as_json, rows_of(block)))
        return b"\n".join([*block.values.rows(), b""])


def rows_of(block: Block) -> list[Row]:
    times: list[int | None] = [None if time == NO_TIME else time for time in block.times.tolist()]
    rows, message_id = [], block.first_id
    for time, key, value in zip(times, block.keys.rows(), block.values.rows(), strict=True):
        rows.append(Row(message_id, time, key, value))
        message_id += len(value)
    return rows


def _as_json(row: Row) -> bytes:
    line = {"id": row.id, "event_time_us": row.event_time_us} | _text("key", row.key) | _text("value", row.value)
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: bytes) -> dict[str, str]:
    """As it is, or in base64 under another name where it is no UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
