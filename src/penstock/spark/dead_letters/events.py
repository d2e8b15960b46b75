"""Rows as the events that leave through `err` and `late`: with their original bytes where they are known."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from sys import intern
from typing import Any

import msgpack
import pyarrow as pa

from penstock.protocol.stored.dead_letters import DERIVED, with_added
from penstock.protocol.stored.event import SHORT_MAX
from penstock.protocol.stored.metadata import known_metadata
from penstock.spark.python_worker import link

log = logging.getLogger(__name__)

COLUMNS = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("source", pa.string()),
        ("stream", pa.string()),
        ("stream_id", pa.int64()),
        ("message_id", pa.int64()),
        ("metadata", pa.binary()),
        ("segment", pa.string()),
        ("offset", pa.int64()),
    ]
)
"""Of an event, as the source returns them. `segment` and `offset` are null if it is derived from a row."""

PLACE = ("segment", "offset")


_IDS = ("source", "stream_id", "message_id")
"""What identifies an event whose position is not known, as far as a row has these columns."""


def identities(
    rows: pa.Table, is_input: Callable[[str], bool] = lambda _: True
) -> list[tuple[tuple[object, ...] | None, bool]]:
    """The identity of each row's event, None where it is not known; and whether it is the event's position. Columns of
    the user's own may have the names of a position: it counts in segments that the pipeline reads.
    """
    nothing = [None] * rows.num_rows
    columns = [nothing if (one := _alike(rows, name)) is None else one.to_pylist() for name in (*PLACE, *_IDS)]
    found: list[tuple[tuple[object, ...] | None, bool]] = []
    for segment, offset, source, stream, message in zip(*columns, strict=True):
        if segment is not None and offset is not None and is_input(segment):
            found.append(((intern(segment), offset), True))
        else:
            found.append(((source, stream, message) if message else None, False))
    return found


def without_lost(
    worker: str, tls: tuple[str | None, str | None, str | None], rows: pa.Table, chosen: Sequence[int]
) -> tuple[list[int], pa.RecordBatch, list[int]]:
    """Those of the chosen rows whose events are still stored, these events, and the other rows: the state of a join may
    have rows whose events retention has removed since.
    """
    from penstock.spark.source.arrow import LostBytes  # here: kernels take a second to import

    left, lost = [*chosen], list[int]()
    while left:
        try:
            return left, _originals(worker, tls, rows.take(left)), lost
        except LostBytes as error:
            log.warning("%s: the original events are lost; their derived rows go to the port instead", error)
            places = zip(*(rows.column(name).take(left).to_pylist() for name in PLACE), strict=True)
            gone = {row for row, (segment, at) in zip(left, places, strict=True) if error.has(segment, at)}
            left, lost = [row for row in left if row not in gone], [*lost, *sorted(gone)]
    return [], _batch([pa.nulls(0, field.type) for field in COLUMNS]), lost


def _originals(worker: str, tls: tuple[str | None, str | None, str | None], rows: pa.Table) -> pa.RecordBatch:
    """The stored events at the rows' positions."""
    from penstock.spark.source.originals import originals

    places = pa.table({name: _alike(rows, name) for name in PLACE})
    found = originals(worker, lambda there: link(there, *tls), places)
    columns = [found.column(name) if name != "segment" else rows.column(name) for name in COLUMNS.names]
    return _batch(columns)


def derived(rows: pa.Table) -> pa.RecordBatch:
    """The rows themselves: their `value` if it is bytes or text, otherwise all columns as JSON."""
    columns = {name: _alike(rows, name) for name in COLUMNS.names if name not in (*PLACE, "metadata")}
    if columns["value"] is None:
        columns["value"] = pa.array(_as_json(rows), pa.binary())
    columns["value"] = columns["value"].fill_null(b"")
    nothing = {field.name: pa.nulls(rows.num_rows, field.type) for field in COLUMNS}
    return _batch([nothing[name] if columns.get(name) is None else columns[name] for name in COLUMNS.names])


def with_reasons(events: pa.RecordBatch, reasons: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """The events as the sink writes them: with the reason and the position in their metadata, beside their own."""
    places = zip(*(events.column(name).to_pylist() for name in (*PLACE, "metadata")), strict=True)
    metadata = [_packed(reason, *place) for reason, place in zip(reasons, places, strict=True)]
    names = [name for name in COLUMNS.names if name not in (*PLACE, "metadata")]
    arrays = [*(events.column(name) for name in names), pa.array(metadata, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=[*names, "metadata"])


def _packed(added: dict[str, Any], segment: str | None, offset: int | None, own: bytes | None) -> bytes:
    added = added | ({DERIVED: True} if segment is None else {"segment": segment, "offset": offset})
    before = known_metadata(own)
    packed: bytes = msgpack.packb(with_added(before, added), datetime=True)
    if len(packed) <= SHORT_MAX:
        return packed
    # Metadata has a limit, and the reason is worth more than headers that use all of it. A replay needs the type.
    short = {name: before[name] for name in ("content_type",) if name in before}
    packed = msgpack.packb({**short, **added})
    return packed if len(packed) <= SHORT_MAX else msgpack.packb(added)


def _batch(columns: list[Any]) -> pa.RecordBatch:
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, COLUMNS, strict=True)], schema=COLUMNS
    )


def _alike(rows: pa.Table, name: str) -> Any:
    """The column if it can be the event's own; None if it is missing, or an unrelated one of the same name. A join may
    have two of the same name: which of the two events it is cannot be known.
    """
    if rows.column_names.count(name) != 1:
        return None
    column, kind = rows.column(name), COLUMNS.field(name).type
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if pa.types.is_timestamp(kind):
        alike = pa.types.is_timestamp(column.type) and column.type.tz is not None
    elif pa.types.is_binary(kind):
        alike = is_text or is_bytes
    else:
        alike = is_text if pa.types.is_string(kind) else column.type == kind
    return column.cast(kind) if alike else None


def _as_json(rows: pa.Table) -> list[bytes]:
    """Columns of the same name are numbered, from the second on: value, value_2."""
    names = rows.column_names
    counts = [names[: number + 1].count(name) for number, name in enumerate(names)]
    names = [name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True)]
    columns = zip(*(_values(column) for column in rows.columns), strict=True)
    documents = (dict(zip(names, row, strict=True)) for row in columns)
    return [json.dumps(row, default=_plain, ensure_ascii=False).encode() for row in documents]


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # times beyond Python's calendar
        values = column.cast(pa.string()).to_pylist()
    return values


def _plain(value: object) -> str:
    """Types that JSON lacks: bytes in base64, as Spark writes them; times and numbers as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
