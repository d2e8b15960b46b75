"""What is computed: fixed for the life of a pipeline's state."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.windows.aggregates import Aggregate
from penstock.windows.engine.keys import codes_of
from penstock.windows.kinds import LENGTH_MAX_US, Late, LateRule, Session, Window

TIME, BUCKET = "t", "b"
"""The columns of a prepared table that are not the user's: event time (int64 µs, never null), bucket (int32)."""

BUCKET_BYTES_MAX = 256 << 20
"""A task holds a few copies of the windows that it changes: this is what an executor of 1 GB bears."""

BOUNDS = pa.struct([pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Windows, keys, aggregates (by the name of their result) and what happens to late events.

    `schema` has the types of the keys, of the aggregates' inputs and of the carried columns, by their names in the
    table that is prepared. Keys and inputs may be the same columns. `carry` are columns that only late rows keep.
    `meaning` is whatever else state depends on, such as what those names stand for.
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
    meaning: str = ""

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
    def columns(self) -> tuple[str, ...]:
        """Of the user, in the table that is prepared."""
        names = (*self.keys, *(name for each in self.aggregates.values() for name in each.inputs), *self.carry)
        return tuple(dict.fromkeys(name for name in names if name != TIME))

    def types_of(self, aggregate: Aggregate) -> list[pa.DataType]:
        """Of its inputs."""
        return [pa.int64() if name == TIME else self.schema.field(name).type for name in aggregate.inputs]

    @cached_property
    def partial_types(self) -> Mapping[str, pa.DataType]:
        """Of what state holds of each aggregate."""
        return {name: each.partial_type(self.types_of(each)) for name, each in self.aggregates.items()}

    @cached_property
    def key_fields(self) -> list[pa.Field]:
        """As they stand in state and results."""
        return [self.schema.field(name).with_nullable(True).remove_metadata() for name in self.keys]

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Of panes: keys, window_start, window_end, pane, revision, results, and replaces for sessions."""
        bounds = [pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())]
        kind = [pa.field("pane", pa.string()), pa.field("revision", pa.int32())]
        results = [pa.field(name, each.result_type(self.types_of(each))) for name, each in self.aggregates.items()]
        replaces = [pa.field("replaces", pa.list_(BOUNDS))] if isinstance(self.window, Session) else []
        return pa.schema([*self.key_fields, *bounds, *kind, *results, *replaces])

    @cached_property
    def late_schema(self) -> pa.Schema:
        """Of late rows: carried columns, t, watermark, behind (µs)."""
        carried = [self.schema.field(name).remove_metadata() for name in self.carry]
        return pa.schema([*carried, *(pa.field(name, pa.int64()) for name in (TIME, "watermark", "behind"))])

    @cached_property
    def fingerprint(self) -> str:
        """Of all that decides what state means: with another one, state cannot be read.

        Lateness is part of it: windows that were purged too early for a longer one would come back without their past.
        """
        aggregates = [
            (name, type(each).__qualname__, each.inputs, str(self.partial_types[name]), repr(each.parameters()))
            for name, each in self.aggregates.items()
        ]
        window = (type(self.window).__name__, asdict(self.window))
        keys = [(field.name, str(field.type)) for field in self.key_fields]
        text = json.dumps([window, keys, aggregates, self.lateness_us, self.buckets, self.meaning])
        return hashlib.sha256(text.encode()).hexdigest()[:32]
