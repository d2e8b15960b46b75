"""Events that are files of rows: Arrow's IPC formats, and Parquet. The rows of an event are the elements of `rows`."""

from __future__ import annotations

from abc import abstractmethod
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from penstock.core.errors import RequestError
from penstock.core.kinds import Field, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode, TooMuch, check_decoded
from penstock.spark.codecs.arrow_messages import decompressed_bytes, plain_stream
from penstock.spark.codecs.codec import CODECS, ROWS

_ROWS_MAX = 1_000_000
"""Rows of one event: a file of a few bytes can have billions of rows that are all alike."""

_BYTES_MAX = 256 << 20
"""Bytes of the rows of one event in memory: equal values, and compression, make a file thousands of times as small."""

_BATCH_BYTES_MAX = 64 << 20
"""The same of all events that are decoded together, if they are several: each may be small and become large."""

_ELEMENTS_MAX = _BYTES_MAX // 8
"""Of the lists of one event: nulls are a few bytes in a file, however many they are."""

_READ_ROWS = 256
"""Rows of a Parquet file that are read before their bytes are counted, at most: they may all be one long value."""

_FILE_MAGIC = b"ARROW1\0\0"
"""A stream follows it, and an index, which a reader from start to end does not need."""


class RowFiles(Codec):
    """With a schema, whose columns are taken from each file by their names. Others are null."""

    title: str

    def fields(self, schema: Fields | None) -> Fields:
        check_decoded(self, schema)
        assert schema is not None
        return (Field(ROWS, Kind("array", of=(Kind("struct", fields=schema),))),)

    def decoder(self, schema: Fields | None) -> Decode:
        kind = arrow_type(self.fields(schema)[0].kind)
        return lambda values: self._decoded(values, kind)

    def encoder(self, columns: pa.Schema) -> Encode:
        kind = columns[0].type if columns.names == [ROWS] else None
        if kind is None or not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
            raise RequestError(
                f"{self.about.name} writes one column `{ROWS}`, an array of structs: a file for each row",
                "Collect the rows of a file: collect_list(struct(…)) as rows.",
            )
        return lambda rows: pa.array([self._written(each, kind) for each in rows.column(0)], pa.binary())

    def _decoded(self, values: pa.BinaryArray, kind: pa.ListType) -> Columns:
        found: list[pa.StructArray] = []
        failed: dict[int, str] = {}
        size = 0
        for row, value in enumerate(values):
            try:
                found.append(_as_structs(self.read(value.as_buffer(), kind.value_type), kind.value_type))
                size += found[-1].nbytes
            except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
                text = str(error).strip() or type(error).__name__
                failed[row] = f"is not a valid {self.title} with these columns: {text.splitlines()[0][:200]}"
            if size > _BATCH_BYTES_MAX and len(values) > 1:
                raise TooMuch
        ends = np.concatenate(([0], np.cumsum([len(one) for one in found]))).astype(np.int32)
        inner = pa.concat_arrays(found) if found else pa.array([], kind.value_type)
        return Columns([pa.ListArray.from_arrays(pa.array(ends), inner, type=kind)], failed)

    def _written(self, rows: pa.ListScalar, kind: pa.ListType) -> bytes:
        structs = pa.array([], kind.value_type) if rows.values is None else rows.values
        names = [kind.value_type.field(number).name for number in range(kind.value_type.num_fields)]
        return self.write(pa.Table.from_arrays(structs.flatten(), names))

    @abstractmethod
    def read(self, value: pa.Buffer, wanted: pa.StructType) -> pa.Table:
        """Raises errors of Arrow, OSError and ValueError."""

    @abstractmethod
    def write(self, table: pa.Table) -> bytes: ...


def _as_structs(table: pa.Table, wanted: pa.StructType) -> pa.StructArray:
    """Values of a dictionary, which may be long and stand in many rows, are counted as they are written out."""
    if not any(_is_shortened(field.type) for field in table.schema):
        return _converted(table, wanted)
    parts: list[pa.StructArray] = []
    size = 0
    for batch in table.to_batches(max_chunksize=_READ_ROWS):
        parts.append(_converted(pa.Table.from_batches([batch]), wanted))
        size += parts[-1].nbytes
        _check_bytes(size)
    return pa.concat_arrays(parts) if parts else _converted(table, wanted)


def _is_shortened(kind: pa.DataType) -> bool:
    """Whether it stores equal values once."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or _is_view(kind):
        return True
    return any(_is_shortened(kind.field(number).type) for number in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    """Whether its values are places in other bytes, which may be the same ones."""
    views = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(is_view(kind) for is_view in views)


def _converted(table: pa.Table, wanted: pa.StructType) -> pa.StructArray:
    _check_bytes(_fixed_bytes(len(table), wanted))
    arrays = []
    for number in range(wanted.num_fields):
        field = wanted.field(number)
        if field.name in table.schema.names:
            _check_elements(table.column(field.name))
            column = table.column(field.name).cast(field.type).combine_chunks()
        else:
            column = pa.nulls(len(table), field.type)
        if not field.nullable and column.null_count:
            raise ValueError(f"`{field.name}` is null")
        arrays.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return pa.StructArray.from_arrays(arrays, fields=[*wanted])


def _fixed_bytes(rows: int, kind: pa.DataType) -> int:
    """What so many rows of this type take at least, even if all are null: in a file nulls are a few bytes, however many
    they are.
    """
    if pa.types.is_struct(kind):
        return sum(_fixed_bytes(rows, kind.field(number).type) for number in range(kind.num_fields))
    try:
        return rows * int(kind.bit_width) // 8
    except ValueError:  # an offset for each
        return rows * 4


def _check_count(rows: int) -> None:
    if rows > _ROWS_MAX:
        raise ValueError(f"more than {_ROWS_MAX:,} rows")


def _check_bytes(size: int) -> None:
    if size > _BYTES_MAX:
        raise ValueError(f"more than {_BYTES_MAX:,} bytes in memory")


def _check_elements(column: pa.ChunkedArray) -> None:
    """Of lists: nulls take no bytes until they become those of another type."""
    for chunk in column.chunks if pa.types.is_nested(column.type) else ():
        if _elements(chunk) > _ELEMENTS_MAX:
            raise ValueError(f"more than {_ELEMENTS_MAX:,} elements")


def _elements(array: pa.Array) -> int:
    """The most values that an array in it has."""
    kind = array.type
    if pa.types.is_struct(kind):
        inner = [array.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner = [array.keys, array.items]
    else:
        inner = [array.values] if hasattr(array, "values") else []
    return max([len(array), *map(_elements, inner)])


class Arrow(RowFiles):
    about = CODECS["arrow"]
    title = "stream or file of Arrow"

    def read(self, value: pa.Buffer, wanted: pa.StructType) -> pa.Table:  # noqa: ARG002
        stream = _stream_of(value)
        _check_bytes(decompressed_bytes(stream))
        reader = pa.ipc.open_stream(stream)
        found: list[pa.RecordBatch] = []
        for batch in reader:
            batch.validate(full=True)
            found.append(batch)
            _check_count(sum(one.num_rows for one in found))
        return pa.Table.from_batches(found, reader.schema)

    def _decoded(self, values: pa.BinaryArray, kind: pa.ListType) -> Columns:
        """Plain streams of one schema at once, as one stream; others, and all if one is bad, one by one."""
        try:
            found = _plain_columns(values, kind)
        except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError):
            found = None
        return super()._decoded(values, kind) if found is None else found

    def write(self, table: pa.Table) -> bytes:
        sink: Any = pa.BufferOutputStream()
        new = pa.ipc.new_file if self.options.form == "file" else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())


def _plain_columns(values: pa.BinaryArray, kind: pa.ListType) -> Columns | None:
    """None if an event is not like the first one. Raises errors of Arrow, OSError and ValueError if one is bad."""
    found = (plain_stream(memoryview(_stream_of(value.as_buffer()))) for value in values)
    events = [event for event in takewhile(lambda event: event is not None, found) if event is not None]
    if not events or len(events) < len(values) or any(event.schema != events[0].schema for event in events):
        return None
    whole = b"".join([events[0].schema, *(batch for event in events for batch in event.batches)])
    reader = pa.ipc.open_stream(pa.py_buffer(whole))
    if any(_is_shortened(field.type) for field in reader.schema):
        return None
    batches = [*reader]
    table = pa.Table.from_batches(batches, reader.schema)
    table.validate(full=True)
    if _fixed_bytes(len(table), kind.value_type) > _BATCH_BYTES_MAX:
        return None
    rows = np.cumsum([0, *map(len, batches)]).astype(np.int32)
    ends = rows[np.cumsum([0, *(len(event.batches) for event in events)])]
    _check_count(int(np.diff(ends).max()))
    structs = _converted(table, kind.value_type)
    if structs.nbytes > _BATCH_BYTES_MAX:
        return None
    return Columns([pa.ListArray.from_arrays(pa.array(ends), structs, type=kind)])


def _stream_of(value: pa.Buffer) -> pa.Buffer:
    """Without what a file has before it."""
    is_file = value.slice(0, min(len(_FILE_MAGIC), value.size)).to_pybytes() == _FILE_MAGIC
    return value.slice(len(_FILE_MAGIC)) if is_file else value


class Parquet(RowFiles):
    about = CODECS["parquet"]
    title = "Parquet file"

    def read(self, value: pa.Buffer, wanted: pa.StructType) -> pa.Table:
        file = pa.parquet.ParquetFile(pa.BufferReader(value))
        _check_count(file.metadata.num_rows)
        names = [wanted.field(number).name for number in range(wanted.num_fields)]
        names = [name for name in names if name in file.schema_arrow.names]
        found: list[pa.RecordBatch] = []
        size, rows = 0, _rows_at_once(file.metadata)
        for batch in file.iter_batches(rows, columns=names, use_threads=False):
            batch.validate(full=True)
            found.append(batch)
            size += batch.nbytes
            _check_bytes(size)
        if not found:  # no rows, or none of the columns
            return file.read(names, use_threads=False)
        return pa.Table.from_batches(found)

    def write(self, table: pa.Table) -> bytes:
        sink: Any = pa.BufferOutputStream()
        pa.parquet.write_table(table, sink)
        return bytes(sink.getvalue())


def _rows_at_once(metadata: pa.parquet.FileMetaData) -> int:
    """As many as have room even if each has all that the file has. Raises ValueError for a file that says that it has
    too much.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    size = sum(column.total_uncompressed_size for column in columns)
    _check_bytes(size)
    if max((column.num_values for column in columns), default=0) > _ELEMENTS_MAX:
        raise ValueError(f"more than {_ELEMENTS_MAX:,} elements")
    return max(1, min(_READ_ROWS, _BYTES_MAX // max(int(size), 1)))
