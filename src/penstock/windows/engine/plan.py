"""What a window operator computes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.spark.run.takeover import StoredAggregate
from penstock.windows.aggregates import Aggregate
from penstock.windows.kinds import LENGTH_MAX_US, Late, LateRule, Session, Window

# Rows to groups of equal keys. Null is a key like any other, and so is NaN; -0.0 is 0.0: as in Spark's grouping.

DENSE_ROOM = 1 << 16
"""With more unused codes than this, a table of all codes costs more than a hash table of those in use."""

CODES_MAX = 1 << 62
"""Codes of several columns are multiplied: beyond this they are renumbered."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A number for each row, all below `bound`; equal for rows that are equal."""

    of_rows: NDArray[np.int64]
    bound: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """`groups[i]` is row i's group; `example[g]` is a row of group g. No group is empty."""

    groups: NDArray[np.int64]
    example: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.example)


def normalized(column: pa.Array) -> pa.Array:
    """A key column with one NaN and one zero."""
    if not pa.types.is_floating(column.type):
        return column
    values = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), column.type), values)


def codes_of(columns: Sequence[pa.Array], rows: int) -> Codes:
    """The codes of keys whose columns are `normalized`. Raises RequestError for types that cannot be keys."""
    codes = Codes(np.zeros(rows, np.int64), 1)
    for column in columns:
        codes = combined(codes, _encoded(column))
    return codes


def combined(left: Codes, right: Codes) -> Codes:
    """The codes of pairs."""
    if left.bound == 1:
        return right
    if left.bound > CODES_MAX // max(right.bound, 1):
        grouping = grouped(left)
        left = Codes(grouping.groups, grouping.count)
    return Codes(left.of_rows * right.bound + right.of_rows, left.bound * right.bound)


def codes_of_integers(values: NDArray[np.int64]) -> Codes:
    """Fast for numbers that are close together, such as window numbers; correct but slower for others."""
    if not len(values):
        return Codes(values, 1)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Codes(np.zeros(len(values), np.int64), 1)
    if high - low < len(values) + DENSE_ROOM:
        return _without_gaps(Codes(values - low, high - low + 1))
    numbers, distinct = pd.factorize(values)
    return Codes(numbers, len(distinct))


def grouped(codes: Codes) -> Grouping:
    """Groups of equal codes, in any order."""
    if codes.bound <= len(codes.of_rows) + DENSE_ROOM:
        codes = _without_gaps(codes)
    else:
        numbers, distinct = pd.factorize(codes.of_rows)
        codes = Codes(numbers, len(distinct))
    example = np.empty(codes.bound, np.int64)
    example[codes.of_rows] = np.arange(len(codes.of_rows))
    return Grouping(codes.of_rows, example)


def _without_gaps(codes: Codes) -> Codes:
    """Renumbered through a table of all codes."""
    present = np.zeros(codes.bound, bool)
    present[codes.of_rows] = True
    count = int(np.count_nonzero(present))
    if count == codes.bound:
        return codes
    return Codes((np.cumsum(present) - 1)[codes.of_rows], count)


def _encoded(column: pa.Array) -> Codes:
    plain = _as_plain(column)
    if pa.types.is_integer(plain.type) and not plain.null_count and len(plain):
        values = plain.to_numpy()
        low, high = int(values.min()), int(values.max())
        if high - low < len(values) + DENSE_ROOM:
            return Codes((values - low).astype(np.int64, copy=False), high - low + 1)
    encoded = plain.dictionary_encode(null_encoding="encode")
    return Codes(encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1))


def _as_plain(column: pa.Array) -> pa.Array:
    """The same bits as a type that Arrow's hash table accepts."""
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_nested(kind):
        raise RequestError(f"a column of type {kind} cannot be a key", "Use columns of plain types.")
    if pa.types.is_floating(kind):
        return column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pa.types.is_decimal(kind):
        return column.view(pa.binary(kind.byte_width))
    if pa.types.is_temporal(kind):
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column


TIME, BUCKET = "t", "b"
"""The columns of a prepared table that are not the user's: event time (int64 µs, never null), bucket (int32)."""

BUCKET_BYTES_MAX = 256 << 20
"""A task needs memory for a few copies of the windows it changes; an executor with 1 GB can afford this much."""

BOUNDS = pa.struct([pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Windows, keys, aggregates (by the name of their result) and what happens to late events.

    `schema` has the types of the keys, of the aggregates' inputs and of the carried columns, by their names in the
    table that is prepared. Keys and inputs may be the same columns. `carry` are columns that only late rows keep.
    `meaning` is whatever else the state depends on, such as what the names of keys refer to; `measures` has the user's
    names of each aggregate's result and columns (None for an expression).
    """

    window: Window
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    schema: pa.Schema
    buckets: int
    carry: tuple[str, ...] = ()
    lateness_us: int = 0
    late: Late = "keep"
    late_rule: LateRule = "window"
    bucket_bytes_max: int = BUCKET_BYTES_MAX
    meaning: tuple[Any, ...] = ()
    measures: tuple[tuple[str, tuple[str | None, ...]], ...] = ()
    closed_to_us: int | None = None
    """Windows that end here or earlier stay closed: they were purged while the allowed lateness was shorter."""

    def __post_init__(self) -> None:
        """Raises RequestError for a plan that contradicts itself."""
        if not 0 <= self.lateness_us <= LENGTH_MAX_US:
            raise RequestError(f"a lateness of {self.lateness_us} µs is out of range", "Write it like '10 minutes'.")
        if self.late_rule == "strict" and self.lateness_us:
            raise RequestError('late_rule="strict" leaves nothing for allowed_lateness to do', "Remove one of the two.")
        missing = set(self.columns) - set(self.schema.names)
        if missing:
            raise RequestError(f"columns not found: {', '.join(sorted(missing))}", "Name columns of the frame.")
        codes_of([pa.array([], field.type) for field in self.key_fields], 0)
        if len(set(self.pane_schema.names)) < len(self.pane_schema):
            raise RequestError("two columns of the result have the same name", "Choose another name for one of them.")

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The columns of a prepared table that are reduced to partials: keys, and inputs of aggregates."""
        names = (*self.keys, *(name for each in self.aggregates.values() for name in each.inputs))
        return tuple(dict.fromkeys(name for name in names if name != TIME))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The user's columns in the table that is prepared."""
        return tuple(dict.fromkeys((*self.reduced, *self.carry)))

    def types_of(self, aggregate: Aggregate) -> list[pa.DataType]:
        """The types of its inputs."""
        return [pa.int64() if name == TIME else self.schema.field(name).type for name in aggregate.inputs]

    @cached_property
    def partial_types(self) -> Mapping[str, pa.DataType]:
        """The type of each aggregate's partials in the state."""
        return {name: each.partial_type(self.types_of(each)) for name, each in self.aggregates.items()}

    @cached_property
    def key_fields(self) -> list[pa.Field]:
        """The key fields as they are in state and results."""
        return [self.schema.field(name).with_nullable(True).remove_metadata() for name in self.keys]

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """The schema of panes: keys, window_start, window_end, pane, revision, results, and replaces for sessions."""
        bounds = [pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())]
        kind = [pa.field("pane", pa.string()), pa.field("revision", pa.int32())]
        results = [pa.field(name, each.result_type(self.types_of(each))) for name, each in self.aggregates.items()]
        replaces = [pa.field("replaces", pa.list_(BOUNDS))] if isinstance(self.window, Session) else []
        return pa.schema([*self.key_fields, *bounds, *kind, *results, *replaces])

    @cached_property
    def late_schema(self) -> pa.Schema:
        return late_schema(self.schema, self.carry)

    @cached_property
    def stored(self) -> tuple[StoredAggregate, ...]:
        """How the state identifies each aggregate."""
        measures = self.measures or tuple((name, each.inputs) for name, each in self.aggregates.items())
        return tuple(
            StoredAggregate(label, self._text(name, columns))
            for name, (label, columns) in zip(self.aggregates, measures, strict=True)
        )

    def _text(self, name: str, columns: tuple[str | None, ...]) -> str:
        """The aggregate as users write it, with the type of its partials in the state."""
        aggregate = self.aggregates[name]
        read = ", ".join(column or "…" for column in columns)
        parameters = aggregate.parameters()
        more = f" {parameters!r}" if parameters else ""
        return f"{type(aggregate).__qualname__.lower()}({read}){more} {self.partial_types[name]}"

    def closed_to(self, watermark: int | None) -> int | None:
        """The end of the last windows that are closed at a watermark before the end of time."""
        bounds = [] if watermark is None else [watermark - self.lateness_us]
        return max([*bounds, *([] if self.closed_to_us is None else [self.closed_to_us])], default=None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what no state survives a change of. Aggregates and lateness are not in it."""
        return hash_of([*self._fixed, self.buckets, *self.meaning])

    @cached_property
    def fingerprint_1(self) -> str:
        """As in state of format 1, which is read only by the plan that wrote it: aggregates and lateness included."""
        aggregates = [
            (name, type(each).__qualname__, each.inputs, str(self.partial_types[name]), repr(each.parameters()))
            for name, each in self.aggregates.items()
        ]
        named = [[column for column in columns if column is not None] for _, columns in self.measures]
        meaning = json.dumps([*self.meaning, named])
        return hash_of([*self._fixed, aggregates, self.lateness_us, self.buckets, meaning])

    @property
    def _fixed(self) -> tuple[Any, Any]:
        window = (type(self.window).__name__, asdict(self.window))
        return window, [(field.name, str(field.type)) for field in self.key_fields]


def late_schema(schema: pa.Schema, carry: Sequence[str]) -> pa.Schema:
    """The schema of late rows: carried columns, t, watermark, behind (µs)."""
    carried = [schema.field(name).remove_metadata() for name in carry]
    return pa.schema([*carried, *(pa.field(name, pa.int64()) for name in (TIME, "watermark", "behind"))])


def hash_of(value: Any) -> str:
    """Short, and the same in all processes and versions."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
