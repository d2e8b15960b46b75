"""Rows of Arrow batches as blocks of stored events, by port. No loop here runs over rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment import BLOCK_SIZE_MAX
from penstock.protocol.stored.bulk import Bytes, encode
from penstock.protocol.stored.event import LENGTH_MIN, NO_TIME
from penstock.protocol.stored.names import check_pipeline_name

BLOCK_BYTES = 2**20
"""The size of a block that is encoded and appended at once: large enough that the cost per block is small."""

EVENT_BYTES_MAX = BLOCK_SIZE_MAX
"""An event is never split, so it must fit into one block of the segment protocol, with its header."""

_TEXTS = ("value", "key", "source", "stream", "metadata")
"""Columns of bytes or text."""

_EVENT_BYTES_MIN = 8 + LENGTH_MIN
"""The size of an event with its header, without key, origin and value."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Events for one port, or for one segment of a target. `data` shares its memory with nothing else."""

    port: str
    data: Buffer
    rows: int
    target: str = ""
    """The segment."""


def blocks(batch: pa.RecordBatch, default_port: str) -> Iterator[Block]:
    """All rows of the batch, in order per port. The columns have passed `check_schema`.

    Raises RequestError for a null value and for metadata that is not a map, LimitExceeded for a row that is too large.
    """
    check_values(batch)
    for port, rows in by_port(batch, default_port):
        check_pipeline_name(port, "port")
        columns = _Columns.of(rows)
        for start, end in columns.ranges():
            yield Block(port, columns.encoded(start, end), end - start)


def check_values(batch: pa.RecordBatch) -> None:
    """Raises RequestError if one is null."""
    if batch.column("value").null_count:
        row = int(np.argmax(batch.column("value").is_null().to_numpy(zero_copy_only=False)))
        raise RequestError(
            f"`value` is null in row {row} of {batch.num_rows}: an event has a value, which may be empty",
            "Drop such rows (where value is not null), or set one (coalesce).",
        )


def by_port(batch: pa.RecordBatch, default_port: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The ports in the order of their first rows; the rows of each port keep their order."""
    if not batch.num_rows:
        return
    if "port" not in batch.schema.names:
        yield default_port, batch
        return
    ports = pc.fill_null(batch.column("port"), default_port).dictionary_encode()
    names: list[str] = ports.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    numbers = ports.indices.to_numpy()
    sorted_rows = batch.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
    start = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        yield name, sorted_rows.slice(start, end - start)
        start = end


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """A batch's columns in the form that the kernel needs; None for a missing column."""

    values: Bytes
    keys: Bytes | None
    sources: Bytes | None
    streams: Bytes | None
    event_times: NDArray[np.int64] | None
    stream_ids: NDArray[np.int64] | None
    event_ids: NDArray[np.int64] | None
    metadata: Bytes | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Columns:
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        texts = {name: bytes_of(found[name]) for name in _TEXTS if name in found}
        numbers = {name: _numbers(found[name], 0) for name in ("stream_id", "message_id") if name in found}
        times = _numbers(found["event_time"].cast(pa.int64()), NO_TIME) if "event_time" in found else None
        return cls(
            texts["value"],
            texts.get("key"),
            texts.get("source"),
            texts.get("stream"),
            times,
            numbers.get("stream_id"),
            numbers.get("message_id"),
            texts.get("metadata"),
        )

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Runs of rows of about a block each; a larger row forms its own run. Raises LimitExceeded."""
        count = len(self.values)
        ends = np.arange(count + 1, dtype=np.int64) * _EVENT_BYTES_MIN
        for column in (self.values, self.keys, self.sources, self.streams, self.metadata):
            if column is not None:
                ends += np.asarray(column.offsets)
        self._check_sizes(ends)
        start = 0
        while start < count:
            end = int(np.searchsorted(ends, ends[start] + BLOCK_BYTES, side="right")) - 1
            end = max(end, start + 1)
            yield start, end
            start = end

    def encoded(self, start: int, end: int) -> Buffer:
        data = encode(
            _slice(self.values, start, end),
            keys=_slice(self.keys, start, end),
            sources=_slice(self.sources, start, end),
            streams=_slice(self.streams, start, end),
            event_times=None if self.event_times is None else self.event_times[start:end],
            stream_ids=None if self.stream_ids is None else self.stream_ids[start:end],
            event_ids=None if self.event_ids is None else self.event_ids[start:end],
            metadata=_slice(self.metadata, start, end),
        ).data
        if len(data) > EVENT_BYTES_MAX:  # a single row that its origin makes too large
            raise _too_large(len(data), len(self.values.row(start)))
        return data

    def _check_sizes(self, ends: NDArray[np.int64]) -> None:
        sizes = np.diff(ends)
        row = int(np.argmax(sizes))
        if sizes[row] > EVENT_BYTES_MAX:
            raise _too_large(int(sizes[row]), int(self.values.offsets[row + 1] - self.values.offsets[row]))


def _too_large(size: int, value: int) -> LimitExceeded:
    return LimitExceeded(
        f"a row of {size:,} bytes ({value:,} of them its value) is over the limit of {EVENT_BYTES_MAX:,} for one event",
        "Store large objects elsewhere and a reference to them here, or cut them into several rows.",
    )


def bytes_of(column: Any) -> Bytes:
    """A binary or string column, of either width, without copying Arrow's data buffer; null becomes empty."""
    if column.null_count:
        column = pc.fill_null(column, pa.scalar("").cast(column.type))
    _, offsets, data = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    starts = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    return Bytes(starts.astype(np.int64), b"" if data is None else memoryview(data))


def _numbers(column: Any, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing) if column.null_count else column
    return np.array(filled.to_numpy())  # a writable copy, which the kernel requires


def _slice(column: Bytes | None, start: int, end: int) -> Any:
    return None if column is None else Bytes(column.offsets[start : end + 1], column.data)  # type: ignore[index]
