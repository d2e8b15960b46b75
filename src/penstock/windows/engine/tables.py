"""The engine's tables: the rows of a batch, partials by key and window, and both as bytes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.engine.plan import TIME, Grouping, Plan, normalized
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Late

# Tables as bytes: a header, then an Arrow stream for each table.

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Blob:
    """Tables by name, and facts about them."""

    tables: Mapping[str, pa.Table]
    facts: Mapping[str, Any]


def pack(tables: Mapping[str, pa.Table], facts: Mapping[str, Any], compression: str | None = None) -> bytes:
    """Bytes for `unpack`."""
    header = msgpack.packb({"tables": list(tables), "facts": dict(facts)})
    sink = pa.BufferOutputStream()
    sink.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
    sink.write(header)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for table in tables.values():
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack(data: bytes) -> Blob:
    """Does not copy: the tables refer to `data` unless they were compressed."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = msgpack.unpackb(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    reader = pa.BufferReader(data)
    reader.seek(_LENGTH_BYTES + length)
    tables = {}
    for name in header["tables"]:
        with pa.ipc.open_stream(reader) as stream:
            tables[name] = stream.read_all()
    return Blob(tables, header["facts"])


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns by name, with the plan's types, keys normalized; `times` also as numbers."""

    columns: dict[str, pa.Array]
    times: NDArray[np.int64]

    @staticmethod
    def of(plan: Plan, table: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> "Rows":
        """These columns of a table as `prepare` takes it."""
        columns = {name: one_array(table.column(name)).cast(plan.schema.field(name).type) for name in names}
        columns |= {name: normalized(columns[name]) for name in plan.keys if name in columns}
        times = one_array(table.column(TIME))
        return Rows(columns | {TIME: times}, times.to_numpy())

    def __len__(self) -> int:
        return len(self.times)

    def table(self, names: tuple[str, ...]) -> pa.Table:
        """Only those columns."""
        return pa.table([self.columns[name] for name in names], names=list(names))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as a single array, without chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def check_times(times: NDArray[np.int64]) -> None:
    """Raises RequestError for times that cannot be written as dates."""
    if times.min() < TIME_MIN_US or times.max() > TIME_MAX_US:
        raise RequestError(
            "an event time is before year 1 or after year 9999", "Filter such rows, or correct their time."
        )


# Tables of partials, in blobs and in state: keys, bounds in time, and a partial of each aggregate.

START, END, REVISION, REPLACES = "start", "end", "revision", "replaces"
"""A slice's or window's bounds; the revision it will fire with, or has fired with once the watermark is at its end."""

BUCKETS_SORTED_FAST = 1 << 16
"""NumPy sorts numbers of 16 bits by radix."""


def key_names(plan: Plan) -> list[str]:
    """The key columns of a table of partials."""
    return [f"k{number}" for number in range(len(plan.keys))]


def partial_names(plan: Plan) -> list[str]:
    """The partial columns of a table of partials."""
    return [f"a{number}" for number in range(len(plan.aggregates))]


def added(plan: Plan, rows: Rows, grouping: Grouping) -> dict[str, pa.Array]:
    """A partial of each group of rows, by name of its column."""
    arrays = {}
    for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True):
        partials = each.add([rows.columns[key] for key in each.inputs], grouping.groups, grouping.count)
        arrays[column] = _checked(name, partials, grouping.count, plan.partial_types[name])
    return arrays


def merged(plan: Plan, table: pa.Table, grouping: Grouping, chosen: NDArray[np.int64] | None) -> dict[str, pa.Array]:
    """A partial of each group of the chosen rows of a table of partials, by name of its column."""
    arrays = {}
    for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True):
        parts = one_array(table.column(column))
        parts = parts if chosen is None else parts.take(pa.array(chosen))
        partials = each.merge(parts, grouping.groups, grouping.count)
        arrays[column] = _checked(name, partials, grouping.count, plan.partial_types[name])
    return arrays


def results(plan: Plan, table: pa.Table) -> list[pa.Array]:
    """The results of a table of partials."""
    return [
        _checked(name, each.result(one_array(table.column(column))), table.num_rows, plan.pane_schema.field(name).type)
        for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True)
    ]


def _checked(name: str, array: pa.Array | pa.ChunkedArray, count: int, kind: pa.DataType) -> pa.Array:
    """An aggregate's return value. Raises RequestError: one that a user wrote may return anything."""
    given = array.type if isinstance(array, pa.Array | pa.ChunkedArray) else type(array).__name__
    if given != kind or len(array) != count:
        number = f"{len(array)} values of {given}" if hasattr(array, "__len__") else given
        raise RequestError(
            f"the aggregate {name!r} returned {number}, not {count} of {kind}",
            "add and merge must return a partial for each group, result a value for each partial, always of one type.",
        )
    return one_array(array)


def by_number(numbers: NDArray[np.integer]) -> tuple[NDArray[np.int64], list[tuple[int, slice]]]:
    """An order of rows in which equal numbers are adjacent, and for each number its slice of that order."""
    if not len(numbers):
        return np.empty(0, np.int64), []
    low, high = int(numbers.min()), int(numbers.max())
    small = numbers.astype(np.uint16) if low >= 0 and high < BUCKETS_SORTED_FAST else numbers
    order = np.argsort(small, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = [*starts[1:].tolist(), len(ordered)]
    pieces = [(int(ordered[start]), slice(start, end)) for start, end in zip(starts.tolist(), ends, strict=True)]
    return order, pieces


def pieces_of(table: pa.Table, numbers: NDArray[np.integer]) -> Iterator[tuple[int, pa.Table]]:
    """The table's rows of each number."""
    order, pieces = by_number(numbers)
    ordered = table if len(pieces) <= 1 else table.take(pa.array(order))
    for number, piece in pieces:
        yield number, ordered.slice(piece.start, piece.stop - piece.start)


# The prepared blobs of a batch for one bucket, decoded.

PARTIALS, LATE, RAW = "partials", "late", "raw"
"""The tables of a prepared blob: partials of slices or sessions, late rows, rows for the state to decide."""


def prepared_blob(late: Late, tables: dict[str, pa.Table], before: int | None) -> bytes:
    """The blob of a bucket. Late rows that are dropped are only counted."""
    dropped = tables.pop(LATE).num_rows if late == "drop" and LATE in tables else 0
    return pack(tables, {"before": before, "dropped": dropped})


@dataclass(frozen=True, slots=True)
class Batch:
    """Tables of partials, of late rows and of undecided rows; and how many late rows the mappers dropped."""

    partials: list[pa.Table]
    late: list[pa.Table]
    raw: list[pa.Table]
    dropped: int


def read_batch(blobs: Iterable[bytes], before: int | None) -> Batch:
    """Raises RequestError if they were prepared with another watermark."""
    read = [unpack(data) for data in blobs]
    for each in read:
        if each.facts["before"] != before:
            raise RequestError(
                f"rows were compared with watermark {each.facts['before']}, but their batch starts at {before}",
                "Run the batch again: its rows and its watermark must come from the same cut.",
            )
    tables = {name: [each.tables[name] for each in read if name in each.tables] for name in (PARTIALS, LATE, RAW)}
    return Batch(tables[PARTIALS], tables[LATE], tables[RAW], sum(each.facts["dropped"] for each in read))


def late_table(schema: pa.Schema, tables: list[pa.Table], before: int | None) -> pa.Table:
    """Late rows as a plan's `late_schema`: what they carry and their time, with the watermark that they have missed."""
    if not tables or before is None:
        return schema.empty_table()
    table = pa.concat_tables(tables)
    times = table.column(TIME).to_numpy()
    watermark, behind = pa.array(np.full(len(times), before, np.int64)), pa.array(before - times)
    columns = [table.column(name) for name in schema.names[:-2]]
    return pa.Table.from_arrays([*columns, watermark, behind], schema=schema)
