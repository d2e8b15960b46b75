"""A window operator as a part of Spark's plan: rows → blobs → state, with the epoch's control rows → results.

One pass over the data: late rows, and those without a time, leave beside the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.core.durations import format_duration
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.stored.dead_letters import ERR, LATE
from penstock.spark.dead_letters.columns import carried
from penstock.spark.input_frames import InputFrame
from penstock.spark.pipeline_context import PipelineContext, current_pipeline
from penstock.spark.run.plan_text import described
from penstock.spark.run.state_plan import AGGREGATES, LATENESS, StatefulOperator, WindowState
from penstock.spark.run.takeover import closed_to
from penstock.spark.source.control import control_rows, fused_rows
from penstock.spark.source.fused import EVENTS_READ, as_option
from penstock.spark.source.schema import STATE_COLUMNS
from penstock.windows.engine import BUCKET, TIME, Plan
from penstock.windows.fused import FusedWindows
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Late, LateRule, Session, Window
from penstock.windows.measures import Measure
from penstock.windows.operator import CARRIED, ENTERING, LEAVING, TIES, Kind, Operator, WindowOperator
from penstock.windows.reading import Request, reading_or_note

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from penstock.windows.aggregates import Aggregate
    from penstock.windows.measures import ColumnLike

# The columns that a window operator needs, checked and renamed.

KEY, INPUT, TIE = "k", "v", "o"
"""Prefixes of column names: keys, inputs of aggregates, what orders events of the same time."""

_PLAIN = (
    "string binary boolean tinyint smallint int bigint float double decimal date timestamp timestamp_ntz char varchar"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`frame` has the columns t, b, then those of each kind by number."""

    frame: DataFrame
    keys: tuple[StructField, ...]
    """With the user's names; their columns are k0, k1, …"""
    aggregates: Mapping[str, Aggregate]
    """By the name of their result; they read the columns v0, v1, …"""
    carried: Mapping[str, str]
    """Column of an event → the column that contains it: c0, c1, …"""
    inputs: Mapping[str, tuple[ColumnLike, bool]]
    """What is in each of the columns for aggregates, and whether it is its hash."""

    @property
    def fields(self) -> StructType:
        return self.frame.schema


def choose(
    frame: DataFrame,
    keys: Sequence[ColumnLike],
    measures: Mapping[str, Measure],
    event_time: str,
    buckets: int,
    *,
    late: bool,
) -> Chosen:
    """`late`: whether late rows are kept, so that every row must carry what a late event needs; otherwise only rows
    without an event time carry it.

    Raises RequestError for columns that are missing, or of types that cannot be used.
    """
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

    time_us = times(frame, event_time)
    key_columns, key_fields = chosen_keys(frame, keys)
    columns = {TIME: time_us, BUCKET: bucket_of(key_columns, buckets)}
    columns |= {f"{KEY}{number}": column for number, column in enumerate(key_columns)}
    inputs = _Inputs(frame)
    aggregates = {name: inputs.take(measure) for name, measure in measures.items()}
    event_columns = carried(frame)
    for number, column in enumerate(event_columns.values()):
        columns[f"{CARRIED}{number}"] = column if late else F.when(time_us.isNull(), column)
    columns |= inputs.columns
    chosen = frame.select(*(column.alias(name) for name, column in columns.items()))
    carrying = {name: f"{CARRIED}{number}" for number, name in enumerate(event_columns)}
    return Chosen(frame=chosen, keys=key_fields, aggregates=aggregates, carried=carrying, inputs=inputs.given)


class _Inputs:
    """Columns for aggregates; columns with the same name are included once."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._named: dict[tuple[str, bool], str] = {}
        self.columns: dict[str, Column] = {}
        self.given: dict[str, tuple[ColumnLike, bool]] = {}

    def take(self, measure: Measure) -> Aggregate:
        """The aggregate, reading the chosen columns."""
        names = [self._name(column, hashed=measure.hashed) for column in measure.columns]
        return measure.aggregate.reading(*names, *(self._order() if measure.aggregate.ordered else ()))

    def _name(self, column: ColumnLike, *, hashed: bool) -> str:
        from pyspark.sql import functions as F  # noqa: N812

        known = self._named.get((column, hashed)) if isinstance(column, str) else None
        if known is not None:
            return known
        found = _column(self._frame, column)
        name = f"{INPUT}{len(self.columns)}"
        self.columns[name] = F.when(found.isNotNull(), F.xxhash64(found)) if hashed else found
        self.given[name] = column, hashed
        if isinstance(column, str):
            self._named[column, hashed] = name
        return name

    def _order(self) -> list[str]:
        """The columns that order events: by time, then among events of the same time."""
        ties = tie_columns(self._frame)
        self.columns |= {f"{TIE}{name}": self._frame[name] for name in ties}
        self.given |= {f"{TIE}{name}": (name, False) for name in ties}
        return [TIME, *(f"{TIE}{name}" for name in ties)]


def tie_columns(frame: DataFrame) -> list[str]:
    """The columns that order events of the same time, if the frame has kept them."""
    kinds = dict(frame.dtypes)
    return [name for name in TIES if kinds.get(name) == "bigint"]


def chosen_keys(frame: DataFrame, keys: Sequence[ColumnLike]) -> tuple[list[Column], tuple[StructField, ...]]:
    """Their columns, and their names and types. Raises RequestError."""
    columns = [_column(frame, key) for key in keys]
    fields = tuple(frame.select(*columns).schema.fields) if columns else ()
    _check_keys(fields)
    return columns, fields


def bucket_of(keys: Sequence[Column], buckets: int) -> Column:
    """Equal keys have equal hashes, including 0.0 and -0.0, and all NaNs."""
    from pyspark.sql import functions as F  # noqa: N812

    return (F.pmod(F.xxhash64(*keys), F.lit(buckets)) if keys else F.lit(0)).cast("int")


def times(frame: DataFrame, name: str) -> Column:
    """The event time in microseconds; null if it cannot be written as a date. Raises RequestError."""
    from pyspark.sql import functions as F  # noqa: N812

    column = _column(frame, name)
    kind = frame.select(column).dtypes[0][1]
    if kind == "timestamp_ntz":
        raise RequestError(
            f"`{name}` is a timestamp_ntz: it has no time zone",
            f"Convert it: withColumn({name!r}, to_utc_timestamp({name!r}, 'Europe/Berlin')).",
        )
    if kind != "timestamp":
        raise RequestError(
            f"`{name}` is {kind}, not a timestamp",
            f"Convert it: withColumn({name!r}, timestamp_millis({name!r})), or name the column: event_time='…'.",
        )
    micros = F.unix_micros(column)
    return F.when(micros.between(TIME_MIN_US, TIME_MAX_US), micros)


def _column(frame: DataFrame, given: ColumnLike) -> Column:
    """Raises RequestError that suggests the nearest name."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(given) if isinstance(given, str) else given
    if isinstance(given, str) and given in frame.columns:
        return F.col("`" + given.replace("`", "``") + "`")
    try:
        frame.select(column)
    except AnalysisException as error:
        raise RequestError(
            f"{given!r} is not a column of the frame: {str(error).splitlines()[0]}",
            suggestion(str(given), frame.columns, "It has"),
        ) from None
    return column


def _check_keys(fields: Sequence[StructField]) -> None:
    for field in fields:
        kind = field.dataType.simpleString()
        if kind.partition("(")[0] not in _PLAIN.split():
            raise RequestError(
                f"the key `{field.name}` is {kind}, which cannot be a key",
                "Use columns of plain types: a struct's fields one by one, or to_json(…) of an array or a map.",
            )


_BOUNDS = "window_start timestamp, window_end timestamp, pane string, revision int"
_REPLACES = "replaces array<struct<window_start: timestamp, window_end: timestamp>>"
_LAST = "event_time timestamp"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_RESERVED = ("window_start", "window_end", "pane", "revision", "replaces", "event_time")
"""Column names of every result, which users cannot use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of a window operator, as its user wrote them."""

    window: Window
    keys: Sequence[ColumnLike]
    measures: Mapping[str, Measure]
    where: str | None
    select: Mapping[str, str]
    lateness_us: int
    late: Late
    late_rule: LateRule
    event_time: str
    buckets: int
    bucket_bytes_max: int
    name: str


def build(frame: DataFrame, settings: Settings) -> DataFrame:
    """Raises RequestError for what cannot be computed."""
    check_frame(frame)
    context = current_pipeline("windows.aggregate")
    request = Request(
        given=context.input_of(frame),
        where=settings.where,
        select=settings.select,
        event_time=settings.event_time,
        keys=settings.keys,
    )
    rows = request.computed_by_spark(frame)
    late = settings.late == "keep"
    chosen = choose(rows, settings.keys, settings.measures, settings.event_time, settings.buckets, late=late)
    plan = _plan(settings, chosen)
    output = _output(chosen, plan)
    operator = WindowOperator(
        name=settings.name,
        side=context.operator(f"windows {settings.name}", ERR, LATE),
        plan=plan,
        origin=context.origin(),
        carried=chosen.carried,
        output=to_arrow(output),
    )
    stateful = _stateful(settings.name, plan, chosen, settings.event_time)
    reading = reading_or_note(context, settings.name, request, chosen.inputs, plan.schema, rows)
    if reading is None:
        return stages(context, chosen.frame, operator, output, stateful)
    windows = FusedWindows.of(operator, reading)
    return _after_readers(_fused_rows(context, request.input, windows), windows.operator, output, stateful)


def _plan(settings: Settings, chosen: Chosen) -> Plan:
    return Plan(
        window=settings.window,
        keys=tuple(f"{KEY}{number}" for number in range(len(chosen.keys))),
        aggregates={f"r{number}": each for number, each in enumerate(chosen.aggregates.values())},
        schema=_arrow(chosen.fields),
        buckets=settings.buckets,
        carry=tuple(chosen.carried.values()) if settings.late == "keep" else (),
        lateness_us=settings.lateness_us,
        late=settings.late,
        late_rule=settings.late_rule,
        bucket_bytes_max=settings.bucket_bytes_max,
        meaning=(settings.event_time, [field.name for field in chosen.keys]),
        measures=tuple((result, _named(each)) for result, each in settings.measures.items()),
        closed_to_us=closed_to(settings.name),
    )


def _stateful(name: str, plan: Plan, chosen: Chosen, event_time: str) -> StatefulOperator:
    """What the state depends on, readable, and for the comparison before a query starts."""
    lengths = (f"{name.removesuffix('_us')} {format_duration(us)}" for name, us in asdict(plan.window).items())
    facts = {
        "window": f"{type(plan.window).__name__.lower()} {', '.join(lengths)}",
        "keys": shown_keys(chosen.keys),
        AGGREGATES: ", ".join(one.text for one in plan.stored),
        "event_time": event_time,
        LATENESS: format_duration(plan.lateness_us) if plan.lateness_us else "none",
        "buckets": str(plan.buckets),
    }
    windows = WindowState(name, {one.name: one.text for one in plan.stored}, plan.lateness_us, plan.closed_to_us)
    return StatefulOperator("windows", facts, plan.buckets, windows)


def shown_keys(keys: Sequence[StructField]) -> str:
    """As a fact of an operator with state."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in keys) or "none"


def _named(measure: Measure) -> tuple[str | None, ...]:
    """The columns that the user has named; None for expressions."""
    return tuple(column if isinstance(column, str) else None for column in measure.columns)


def stages(
    context: PipelineContext, rows: DataFrame, operator: Operator, output: StructType, stateful: StatefulOperator
) -> DataFrame:
    """The operator's result, of rows with a time and a bucket."""
    from pyspark.sql import functions as F  # noqa: N812

    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.windows.stages import map_rows

        return map_rows(operator, batches)

    ids = F.array(*(F.lit(number) for number in operator.ids))
    control = control_rows(rows.sparkSession, context, range(operator.buckets), reports=True).select(
        F.element_at(ids, F.col("bucket") + 1).alias("bucket"),
        F.lit(int(Kind.CONTROL)).alias("kind"),
        F.lit(None).cast("binary").alias("data"),
        *("epoch", "before", "watermark"),
    )
    entering = rows.mapInArrow(mapped, ENTERING).unionByName(control)
    return _after_readers(entering, operator, output, stateful)


def _fused_rows(context: PipelineContext, given: InputFrame, windows: FusedWindows) -> DataFrame:
    """What the readers of the input return, beside no rows of the input itself: Spark leaves those out, and does not
    read them, but its checkpoint has offsets of the same loads as if it did.
    """
    from pyspark.sql import functions as F  # noqa: N812

    operator = windows.operator
    columns = (F.lit(None).cast(kind).alias(name) for name, kind in STATE_COLUMNS.items())
    nothing = given.frame.limit(0).select(*columns)
    rows = fused_rows(given.frame.sparkSession, context, given, operator.buckets, as_option(windows))
    counted = rows.observe(EVENTS_READ + operator.side, F.sum("events").alias("events")).where("kind is not null")
    return nothing.unionByName(counted.drop("events"))


def _after_readers(
    entering: DataFrame, operator: Operator, output: StructType, stateful: StatefulOperator
) -> DataFrame:
    """From the shuffle on: the state, and the rows of the result."""
    from penstock.windows.stages import BucketProcessor

    def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.windows.stages import unpack

        return unpack(operator, batches)

    grouped = entering.groupBy("bucket")
    left = described(grouped.transformWithState(BucketProcessor(operator), LEAVING, "Append", "None"), stateful)
    return left.mapInArrow(unpacked, output)


def check_frame(frame: DataFrame) -> None:
    """Raises RequestError for a frame whose rows cannot be kept in state."""
    if not frame.isStreaming:
        raise RequestError("windows need a stream, and this frame is not one", "Read it with readStream.")
    _check_session(frame.sparkSession)


def _check_session(spark: SparkSession) -> None:
    provider = spark.conf.get(_PROVIDER, None) or ""
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise RequestError(
            "the session keeps state on its heap: windows need RocksDB's state store",
            f"Create the session with penstock.spark.run.session.spark_settings(), which sets {_PROVIDER}.",
        )


def _output(chosen: Chosen, plan: Plan) -> StructType:
    """The result's Spark schema. Raises RequestError for reserved names, and for results of unknown types."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    names = [*(field.name for field in chosen.keys), *chosen.aggregates]
    for name in names:
        if name in _RESERVED:
            raise RequestError(f"`{name}` is a column of every result", "Rename the key or the result.")
        if names.count(name) > 1:
            raise RequestError(f"`{name}` appears twice in the result", "Rename the key or the result.")
    results = []
    for number, name in enumerate(chosen.aggregates):
        kind = plan.pane_schema.field(f"r{number}").type
        try:
            results.append(StructField(name, from_arrow_type(kind)))
        except PySparkException:
            raise RequestError(f"the result `{name}` is {kind}, which Spark does not support") from None
    replaced = _fields(_REPLACES) if isinstance(plan.window, Session) else []
    keys = [StructField(field.name, field.dataType) for field in chosen.keys]
    return StructType([*keys, *_fields(_BOUNDS), *results, *replaced, *_fields(_LAST)])


def _fields(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(ddl)
    assert isinstance(fields, StructType)
    return fields.fields


def _arrow(fields: StructType) -> pa.Schema:
    """The types of the columns that the engine knows by name."""
    import pyarrow as pa

    return pa.schema([field for field in to_arrow(fields) if field.name not in (TIME, BUCKET)])


def to_arrow(fields: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")
