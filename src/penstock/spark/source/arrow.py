"""A task of the source: bytes of segments become events, and these Arrow batches with the columns that Spark expects.

The decoded columns are not copied again.
"""

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.client.credentials import accept_worker
from penstock.client.segments.connections import Connected
from penstock.client.segments.failures import RETRIES, RETRY_SECONDS
from penstock.client.segments.range_reader import READ_BYTES, read_range
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.errors import Damaged, DataLoss, NoSuchSegment, SegmentTruncated, Unavailable
from penstock.core.retry import Pauses
from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored.bulk import Bytes, Column, Events, Wanted, decode
from penstock.protocol.stored.event import NO_TIME, SOURCE, STREAM
from penstock.protocol.stored.metadata import known_metadata
from penstock.protocol.stored.names import Form, Source, kind_of, partition_of
from penstock.spark.codecs.scalars import with_names
from penstock.spark.python_worker import coordinator, freeze, hinted, journal_files, link, places_of
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import SegmentRanges
from penstock.spark.source.schema import ASKED_COLUMNS, arrow_schema

# The names of a connector's streams, as columns: no loop here runs over rows.

STREAMS_MAX = 2_000_000
"""Cached names per connector, about 50 bytes each; beyond this limit they are requested again."""

ASK_MAX = 10_000
"""Ids in one request."""

_U64_MASK = 2**64 - 1


class StreamNames:
    """`ask` returns the names of ids, "" for an unknown id; it is called for ids that are not cached.

    A stream's name never changes, so cached answers stay valid.
    """

    def __init__(self, ask: Callable[[Sequence[int]], Sequence[str]]) -> None:
        self._ask = ask
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        """Sorted; the names are in the same order."""
        self._names: Any = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, stream_ids: Column) -> Any:
        """The names of these streams as an Arrow array of strings; null for a stream without a name."""
        encoded = pa.array(stream_ids, pa.int64()).dictionary_encode()
        places = self._places(encoded.dictionary.to_numpy())
        if len(places) == 1:
            return pa.repeat(self._names[int(places[0])], len(encoded))
        return self._names.take(pa.array(places).take(encoded.indices))

    def _places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of the ids' names; requests those that are missing."""
        places = np.searchsorted(self._ids, ids)
        inside = places < len(self._ids)
        known = np.zeros(len(ids), np.bool_)
        known[inside] = self._ids[places[inside]] == ids[inside]
        if known.all():
            return places
        missing = ids[~known]
        if len(self) + len(missing) > STREAMS_MAX:
            self._ids, self._names, missing = self._ids[:0], self._names[:0], ids
        self._learn(missing)
        return np.searchsorted(self._ids, ids)

    def _learn(self, ids: NDArray[np.int64]) -> None:
        names: list[str] = []
        for start in range(0, len(ids), ASK_MAX):
            names += self._ask([number & _U64_MASK for number in ids[start : start + ASK_MAX].tolist()])
        all_ids = np.concatenate((self._ids, ids))
        all_names = pa.concat_arrays([self._names, pa.array([name or None for name in names], pa.string())])
        order = np.argsort(all_ids)
        self._ids, self._names = all_ids[order], all_names.take(pa.array(order))


# The events' metadata as columns: the content type, and the whole map as JSON. Each distinct map is unpacked once per
# batch: the maps of one connection are mostly the same.

CONTENT_TYPE = "content_type"

_ORIGIN = (SOURCE, STREAM)


def content_types(metadata: Any) -> Any:
    """Each event's content type; null if it has none."""
    return _each(metadata, _content_type)


def metadata_json(metadata: Any) -> Any:
    """The map as a JSON object, without the event's origin; null if nothing else is in it. Bytes are in base64, and
    NaN and infinities are their names.
    """
    return _each(metadata, _as_json)


def _each(metadata: Any, make: Callable[[Mapping[str, Any]], str | None]) -> Any:
    distinct = metadata.dictionary_encode()
    texts = pa.array([make(known_metadata(one)) for one in distinct.dictionary.to_pylist()], pa.string())
    return pc.take(texts, distinct.indices)


def _content_type(metadata: Mapping[str, Any]) -> str | None:
    found = metadata.get(CONTENT_TYPE)
    return found if isinstance(found, str) else None


def _as_json(metadata: Mapping[str, Any]) -> str | None:
    others = {key: value for key, value in metadata.items() if key not in _ORIGIN}
    if not others:
        return None
    try:
        return json.dumps(with_names(others), default=_plain, allow_nan=False)
    except RecursionError:  # as deep as nothing that JSON is read with
        return None


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_INT64, _STRING, _BINARY, _TIMESTAMP = pa.int64(), pa.string(), pa.binary(), pa.timestamp("us", "UTC")


class SegmentBatches:
    """Builds batches of one segment's events. `names_of` returns the names of a connector's streams."""

    def __init__(self, segment: str, columns: tuple[str, ...], names_of: Callable[[str], StreamNames]) -> None:
        """Raises RequestError for a segment that does not contain events."""
        text, self.kind = kind_of(segment)
        source = Source.parse(text)
        self.wanted = Wanted(
            keys="key" in columns,
            values="value" in columns,
            origins=source.form is Form.OUTPUT and ("source" in columns or "stream" in columns),
            metadata=not ASKED_COLUMNS.keys().isdisjoint(columns),
        )
        self._schema = arrow_schema(columns)
        self._is_output = source.form is Form.OUTPUT
        self._names = names_of(source.name) if source.form is Form.CONNECTOR and "stream" in columns else None
        self._source = Repeated(partition_of(text).source if source.form is Form.CONNECTOR else text)
        self._segment = Repeated(segment)
        self._makers = [getattr(self, f"_{name}_column") for name in columns]

    def batch(self, events: Events) -> Any:
        """A RecordBatch, which shares no memory with the buffer that the events were decoded from."""
        return pa.RecordBatch.from_arrays([make(events) for make in self._makers], schema=self._schema)

    def _source_column(self, events: Events) -> Any:
        return _texts(events.sources, len(events)) if self._is_output else self._source.array(len(events))

    def _stream_column(self, events: Events) -> Any:
        if self._names is None or events.stream_ids is None:
            return _texts(events.streams, len(events))
        return self._names.of(events.stream_ids)

    def _stream_id_column(self, events: Events) -> Any:
        return _numbers(_INT64, events.stream_ids, len(events))

    def _message_id_column(self, events: Events) -> Any:
        return _numbers(_INT64, events.event_ids, len(events))

    def _event_time_column(self, events: Events) -> Any:
        validity = _validity(events.event_times) if events.without_time else None
        return _numbers(_TIMESTAMP, events.event_times, len(events), validity, events.without_time)

    def _key_column(self, events: Events) -> Any:
        return pa.nulls(len(events), _BINARY) if events.keys is None else _bytes(_BINARY, events.keys)

    def _value_column(self, events: Events) -> Any:
        assert events.values is not None
        return _bytes(_BINARY, events.values)

    def _metadata_column(self, events: Events) -> Any:
        return pa.nulls(len(events), _BINARY) if events.metadata is None else _bytes(_BINARY, events.metadata)

    def _content_type_column(self, events: Events) -> Any:
        return content_types(self._metadata_column(events))

    def _metadata_json_column(self, events: Events) -> Any:
        return metadata_json(self._metadata_column(events))

    def _segment_column(self, events: Events) -> Any:
        return self._segment.array(len(events))

    def _offset_column(self, events: Events) -> Any:
        return _numbers(_INT64, events.offsets, len(events))


class Repeated:
    """The same text in every row. Its buffers are reused, and grow with the longest batch so far."""

    def __init__(self, text: str) -> None:
        self._data = np.frombuffer(text.encode(), np.uint8)
        self._offsets = pa.py_buffer(np.zeros(1, np.int32))
        self._rows = 0
        self._texts: Any = None

    def array(self, count: int) -> Any:
        if count > self._rows:
            self._rows = count
            self._offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(len(self._data)))
            self._texts = pa.py_buffer(np.tile(self._data, count))
        return pa.Array.from_buffers(_STRING, count, [None, self._offsets, self._texts], 0)


def _numbers(kind: Any, column: Column | None, count: int, validity: Any = None, nulls: int = 0) -> Any:
    if column is None:
        return pa.nulls(count, kind)
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(column)], nulls)


def _bytes(kind: Any, column: Bytes) -> Any:
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)], 0)


def _validity(times: Column | None) -> Any:
    return pa.py_buffer(np.packbits(np.asarray(times) != NO_TIME, bitorder="little"))


def _texts(column: Bytes | None, count: int) -> Any:
    """UTF-8 texts; null for an empty one."""
    if column is None:
        return pa.nulls(count, _STRING)
    texts = _bytes(_STRING, column)
    texts.validate(full=True)
    empty = pc.equal(pc.binary_length(texts), 0)
    return pc.if_else(empty, None, texts) if pc.any(empty).as_py() else texts


# A task: bytes of segments in, Arrow batches out.

log = logging.getLogger(__name__)

BATCH_BYTES = 4 << 20
"""Decoded at once, into one Arrow batch: from this size on, the cost per batch is negligible."""


def read_partition(options: SourceOptions, columns: tuple[str, ...], partition: SegmentRanges) -> Iterator[Any]:
    """The events of the ranges, in order, as RecordBatches. Raises DataLoss if bytes are gone, unless the options allow
    continuing without them.
    """
    freeze()
    with hinted():
        for worker, piece in partition.placed:
            accept_worker(worker, options.task_worker)
            place = _Place(worker, options.task_worker, piece.segment)
            batches = SegmentBatches(piece.segment, columns, place.stream_names)
            for events in _placed_events(options, place, piece, batches):
                yield batches.batch(events)


@dataclass(slots=True)
class _Place:
    """Where a range is read now. `home`: the load's own worker, which knows where a shard has moved to."""

    worker: str
    home: str
    segment: str

    def stream_names(self, connector: str) -> StreamNames:
        return stream_names(self.worker, connector, self.home, self.segment)

    def look_again(self) -> None:
        self.worker = places_of(self.home, [self.segment]).get(self.segment, self.home)


MOVING_SECONDS = 2.0
"""How long a task tries to reach a worker of another shard before it asks where the shard is now."""


def _placed_events(options: SourceOptions, place: _Place, piece: Range, batches: SegmentBatches) -> Iterator[Events]:
    """As `read_events`. If the shard of the segment moves meanwhile, the load's own worker knows where it is: the task
    continues there. Raises the last error if that does not help for RETRY_SECONDS.
    """

    def read(at: str, start: int, seconds: float) -> Iterator[Events]:
        files = journal_files(at) if options.short_circuit else None
        rest = Range(piece.segment, start, piece.end)
        is_strict = options.fail_on_data_loss
        return read_events(link(at, *options.tls), rest, batches, files, fail_on_data_loss=is_strict, seconds=seconds)

    if place.worker == place.home:
        yield from read(place.home, piece.start, RETRY_SECONDS)
        return
    start, pauses, deadline = piece.start, Pauses(RETRIES), time.monotonic() + RETRY_SECONDS
    while start < piece.end:
        try:
            for events in read(place.worker, start, MOVING_SECONDS):
                yield events
                start, deadline = int(events.end), time.monotonic() + RETRY_SECONDS
            return
        except (Unavailable, LostBytes) as error:
            before = place.worker
            place.look_again()
            is_gone = isinstance(error, LostBytes) and (error.is_removed or place.worker == before)
            if is_gone or time.monotonic() > deadline:
                raise
            log.info("%s cannot be read from %s: %s; it continues at %s", piece.segment, before, error, place.worker)
            time.sleep(pauses.next())


def read_events(
    worker: Connected,
    piece: Range,
    batches: SegmentBatches,
    files: ShortCircuit | None = None,
    *,
    fail_on_data_loss: bool,
    seconds: float = RETRY_SECONDS,
) -> Iterator[Events]:
    """Yields nothing for bytes without events. Raises DataLoss, and Damaged for bytes that are not whole events."""
    start = piece.start
    while start < piece.end:
        try:
            yield from _decoded(worker, Range(piece.segment, start, piece.end), batches, files, seconds)
            return
        except (SegmentTruncated, NoSuchSegment) as error:
            begin = error.start if isinstance(error, SegmentTruncated) else piece.end
            if fail_on_data_loss:
                is_removed = isinstance(error, SegmentTruncated)
                raise LostBytes(piece.segment, start, min(begin, piece.end), is_removed=is_removed) from error
            log.warning("%s: continuing at %s without the bytes before it (failOnDataLoss=false)", piece, begin)
            start = max(begin, start + 1)


def _decoded(
    worker: Connected, piece: Range, batches: SegmentBatches, files: ShortCircuit | None, seconds: float
) -> Iterator[Events]:
    waiting = _Waiting(min(BATCH_BYTES + READ_BYTES, piece.end - piece.start))
    offset = piece.start
    with closing(read_range(worker, piece.segment, piece.start, piece.end, seconds, files)) as pieces:
        for at, data in pieces:
            is_last = at + len(data) == piece.end
            # Another one of this size would fit as well: the journal's files are read in pieces of nearly a batch,
            # which are decoded where they are.
            if len(waiting) + 2 * len(data) <= BATCH_BYTES and not is_last:
                waiting.add(data)
                del data  # the receive buffer is used again for the next piece
                continue
            if len(waiting):
                waiting.add(data)
                data = waiting.data  # noqa: PLW2901
            events = decode(data, offset, batches.kind, batches.wanted)
            waiting.keep(data[events.end - offset :])
            del data
            offset = events.end
            if len(events):
                yield events
    if len(waiting):
        raise Damaged(
            f"segment {piece.segment!r}: the range that ends at {piece.end} ends inside the event at {offset}",
            "Its writer did not append whole events.",
        )


class _Waiting:
    """Bytes that wait to be decoded. The memory is allocated once, if any wait at all, and grows only for an event that
    does not fit.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = bytearray()
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def data(self) -> memoryview:
        """Valid until something is added or dropped."""
        return memoryview(self._memory)[: self._filled]

    def add(self, data: memoryview) -> None:
        end = self._filled + len(data)
        if end > len(self._memory):
            memory = bytearray(self._size if end <= self._size else 2 * end)
            memory[: self._filled] = self.data
            self._memory = memory
        self._memory[self._filled : end] = data
        self._filled = end

    def keep(self, data: memoryview) -> None:
        """Drop everything but these bytes, which may be the last of its own."""
        left = bytes(data)
        self._filled = 0
        if left:
            self.add(memoryview(left))


class LostBytes(DataLoss):
    """Those of a segment from `start` to `end`."""

    def __init__(self, segment: str, start: int, end: int, *, is_removed: bool = True) -> None:
        """`is_removed`: the segment exists."""
        self.is_removed = is_removed
        super().__init__(
            f"segment {segment!r}: the bytes from {start} to {end} were removed before they were read",
            "Retention has overtaken this reader. With the option failOnDataLoss=false it continues without them.",
        )
        self._segment = segment
        self._end = end

    def has(self, segment: str, offset: int) -> bool:
        """Whether what was at this offset is lost too: what comes earlier is removed earlier, and with the segment
        everything.
        """
        return segment == self._segment and (offset < self._end or not self.is_removed)


@cache
def stream_names(worker: str, connector: str, home: str = "", segment: str = "") -> StreamNames:
    """Cached for the lifetime of the Python worker. `worker` serves the segment; if it does not answer any more, `home`
    knows where the segment is.
    """
    if not home or worker == home:
        return StreamNames(lambda ids: coordinator(worker).stream_names(connector, ids))
    place = _Place(worker, home, segment)
    return StreamNames(lambda ids: _names_at(place, connector, ids))


def _names_at(place: _Place, connector: str, ids: Sequence[int]) -> Sequence[str]:
    """Raises Unavailable after RETRY_SECONDS."""
    pauses, deadline = Pauses(RETRIES), time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return coordinator(place.worker, MOVING_SECONDS).stream_names(connector, ids)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            place.look_again()
            time.sleep(pauses.next())
