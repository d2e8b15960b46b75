"""Encodes the rows of a port: the codecs of its targets, applied by the writer's tasks to whole batches. Nothing here
needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.spark.codecs.api import Encode
from penstock.spark.codecs.codec import fits
from penstock.spark.codecs.json_writer import IS_JSON
from penstock.spark.codecs.packing import packed_metadata
from penstock.spark.codecs.registry import about, codec
from penstock.spark.sink.plan import CONTENT_TYPE, PART, RECEIVED, Part, Plan, PortEncoding, same_bytes

_Rows = NDArray[np.int64]


def encoded(rows: pa.RecordBatch, port: str, plan: Plan) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a port for each of its targets, in order, with `value` and `metadata`. Raises RequestError for a port
    that does not exist, and for rows that their codec cannot write.
    """
    if port not in plan:
        raise RequestError(f"unknown port {port!r}", suggestion(port, plan, "The pipeline's ports"))
    for target, wanted in plan[port].targets:
        yield target, _Target(plan[port], target, wanted).batch(rows)


class _Target:
    """The rows of a port, as one of its targets gets them."""

    def __init__(self, port: PortEncoding, target: str, wanted: str) -> None:
        self._port = port
        self._map = port.codec_maps.get(target, ())
        self._wanted = wanted

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        groups = [*self._groups(rows)]
        order = pa.array(np.argsort(np.concatenate([group for group, _, _ in groups])))
        values = pa.concat_arrays([_values(rows, group, part, wanted) for group, part, wanted in groups]).take(order)
        types = pa.concat_arrays([self._types(rows, *group) for group in groups]).take(order)
        columns = {name: rows.column(name) for name in rows.schema.names if name in _EVENT}
        columns |= {"value": values, "metadata": self._metadata(rows, types)}
        return pa.RecordBatch.from_pydict(columns)

    def _groups(self, rows: pa.RecordBatch) -> Iterator[tuple[_Rows, Part, str]]:
        """Rows with their part and codec."""
        parts = rows.column(PART).to_numpy() if PART in rows.schema.names else np.zeros(rows.num_rows, np.int64)
        for number in np.unique(parts).tolist():
            mine = np.flatnonzero(parts == number)
            for wanted, chosen in self._by_codec(rows, mine):
                yield chosen, self._port.parts[number], wanted

    def _by_codec(self, rows: pa.RecordBatch, mine: _Rows) -> Iterator[tuple[str, _Rows]]:
        if not self._map or RECEIVED not in rows.schema.names:
            yield self._wanted, mine
            return
        given = rows.column(RECEIVED).take(pa.array(mine)).dictionary_encode(null_encoding="encode")
        codecs = [self._codec(content_type) for content_type in given.dictionary.to_pylist()]
        chosen = np.array([sorted({*codecs}).index(one) for one in codecs])[given.indices.to_numpy()]
        for number, name in enumerate(sorted({*codecs})):
            yield name, mine[chosen == number]

    def _codec(self, content_type: str | None) -> str:
        return next((name for pattern, name in self._map if fits(content_type, pattern)), self._wanted)

    def _types(self, rows: pa.RecordBatch, group: _Rows, part: Part, wanted: str) -> pa.StringArray:
        """The content types of the rows."""
        is_encoded = not _is_kept(part, wanted)
        if CONTENT_TYPE in rows.schema.names and not (is_encoded and part.codec is not None):
            own = rows.column(CONTENT_TYPE).take(pa.array(group))
            if not is_encoded or not self._port.adds_content_type:
                return own
            return pc.fill_null(own, about(wanted).content_types[0])
        if is_encoded and self._port.adds_content_type:
            return pa.array([about(wanted).content_types[0]] * len(group), pa.string())
        return pa.nulls(len(group), pa.string())

    def _metadata(self, rows: pa.RecordBatch, content_types: pa.StringArray) -> pa.BinaryArray:
        """The rows' own metadata, with the content type unless it is bytes already."""
        if self._port.metadata is None:
            distinct = content_types.dictionary_encode()
            packed = [msgpack.packb({"content_type": one}) for one in distinct.dictionary.to_pylist()]
            return pc.take(pa.array(packed, pa.binary()), distinct.indices)
        own: Any = rows.column(self._port.metadata)
        if pa.types.is_binary(own.type):
            return own
        return packed_metadata(pa.StructArray.from_arrays([own, content_types], ["metadata", "content_type"]))


_EVENT = ("key", "event_time", "source", "stream", "stream_id", "message_id")


def _is_kept(part: Part, wanted: str) -> bool:
    return part.fields is None or (part.codec is not None and same_bytes(part.codec, wanted))


def _values(rows: pa.RecordBatch, group: _Rows, part: Part, wanted: str) -> pa.BinaryArray:
    chosen = pa.array(group)
    if _is_kept(part, wanted):
        return rows.column("value").take(chosen).cast(pa.binary())
    fields = rows.column(part.fields)
    batch = pa.RecordBatch.from_struct_array(fields if len(group) == len(fields) else fields.take(chosen))
    return _encoder(wanted, marked(batch.schema, part.json))(batch)


def marked(columns: pa.Schema, json: Sequence[str]) -> pa.Schema:
    """The columns, with a mark on those whose texts are JSON."""
    return pa.schema([field.with_metadata(IS_JSON if field.name in json else None) for field in columns])


@cache
def _encoder(name: str, columns: pa.Schema) -> Encode:
    return codec(name).encoder(columns)
