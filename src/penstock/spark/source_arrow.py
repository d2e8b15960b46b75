"""Events as Arrow batches, with the columns that Spark expects. The events' own columns are not copied again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.stored.bulk import Bytes, Column, Events, Wanted
from penstock.protocol.stored.layout import NO_TIME
from penstock.protocol.stored.names import Form, Source, kind_of
from penstock.spark.source_metadata import content_types, metadata_json
from penstock.spark.source_schema import ASKED_COLUMNS, arrow_schema
from penstock.spark.stream_names import StreamNames

_INT64, _STRING, _BINARY, _TIMESTAMP = pa.int64(), pa.string(), pa.binary(), pa.timestamp("us", "UTC")


class SegmentBatches:
    """Makes batches of one segment's events. `names_of` gives a connector's streams' names."""

    def __init__(self, segment: str, columns: tuple[str, ...], names_of: Callable[[str], StreamNames]) -> None:
        """Raises RequestError for a segment that holds no events."""
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
        self._source = Repeated(text)
        self._segment = Repeated(segment)
        self._makers = [getattr(self, f"_{name}_column") for name in columns]

    def batch(self, events: Events) -> Any:
        """A RecordBatch; nothing of it is shared with the buffer that the events were decoded from."""
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
    """The same text in every row: its buffers are made once, as long as the longest batch so far."""

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
    """UTF-8, null where it is empty."""
    if column is None:
        return pa.nulls(count, _STRING)
    texts = _bytes(_STRING, column)
    texts.validate(full=True)
    empty = pc.equal(pc.binary_length(texts), 0)
    return pc.if_else(empty, None, texts) if pc.any(empty).as_py() else texts
