"""A window operator as a part of Spark's plan: rows → partials → state, with the epoch's control rows → results.

One pass over the data: everything that becomes of it, late rows among it, leaves in one frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import LETTER, LETTER_DDL, check_letters, has_letters
from penstock.spark.run.state_plan import StatefulOperator, described
from penstock.spark.source.control import control_rows, options_of, origin_of
from penstock.spark.source.options import SourceOptions
from penstock.windows.durations import written
from penstock.windows.engine import BUCKET, TIME, Plan
from penstock.windows.kinds import Late, LateRule, Session, Window
from penstock.windows.operator import ENTERING, LEAVING, Kind, Operator
from penstock.windows.repeats import tells_events_apart
from penstock.windows.selection import CARRIED, Chosen, choose

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from penstock.windows.measures import ColumnLike, Measure

# What a frame's plan says of its rows, before anything is run.

_ROW_BY_ROW = {
    "StreamingRelationV2",
    "Project",
    "Filter",
    "SubqueryAlias",
    "EventTimeWatermark",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "CollectMetrics",
    "Deduplicate",
    "DeduplicateWithinWatermark",
}
"""Nodes that make of a row one or none. Of all others that is not known: to be wrong about them costs a shuffle."""


def row_by_row(frame: DataFrame) -> bool:
    """Whether it is one load, of which each row became one or none: what it says of its event it says in all rows."""
    return _only(_plan(frame), _ROW_BY_ROW)


def one_row_each(frame: DataFrame) -> bool:
    """Whether of each event there is one row at most: of a load, or a union of loads that read different sources."""
    return _sources(_plan(frame)) is not None


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001  no public way to the plan


def _only(node: Any, kinds: set[str]) -> bool:
    return _kind(node) in kinds and all(_only(child, kinds) for child in _children(node))


def _sources(node: Any) -> list[str] | None:
    """What is read, without any of it read twice; None where an event may have several rows."""
    kind = _kind(node)
    if kind == "StreamingRelationV2":
        options = options_of(node)
        return None if options is None else [*SourceOptions.parse(options).sources]
    below = [_sources(child) for child in _children(node)]
    found = [name for sources in below if sources is not None for name in sources]
    known = kind == "Union" or kind in _ROW_BY_ROW
    return found if known and None not in below and len(set(found)) == len(found) else None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]


_BOUNDS = "window_start timestamp, window_end timestamp, pane string, revision int"
_REPLACES = "replaces array<struct<window_start: timestamp, window_end: timestamp>>"
_LAST = f"event_time timestamp, {LETTER} {LETTER_DDL}"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_TAKEN = ("window_start", "window_end", "pane", "revision", "replaces", "event_time", LETTER)
"""Columns of the result that are not the user's."""


def build(
    frame: DataFrame,
    window: Window,
    keys: Sequence[ColumnLike],
    measures: Mapping[str, Measure],
    *,
    lateness_us: int,
    late: Late,
    late_rule: LateRule,
    event_time: str,
    buckets: int,
    bucket_bytes_max: int,
    name: str,
) -> DataFrame:
    """Raises RequestError for what cannot be computed."""
    _check_frame(frame)
    chosen = choose(frame, keys, measures, event_time, buckets, late=late == "keep", placed=row_by_row(frame))
    plan = Plan(
        window=window,
        keys=tuple(f"k{number}" for number in range(len(chosen.keys))),
        aggregates={f"r{number}": each for number, each in enumerate(chosen.aggregates.values())},
        schema=_arrow(chosen.fields),
        buckets=buckets,
        carry=tuple(f"{CARRIED}{number}" for number in range(len(chosen.carried))) if late == "keep" else (),
        lateness_us=lateness_us,
        late=late,
        late_rule=late_rule,
        bucket_bytes_max=bucket_bytes_max,
        meaning=_meaning(event_time, chosen, measures),
    )
    output = _output(chosen, plan)
    options = SourceOptions.parse(origin_of(frame))
    assert options.pipeline is not None
    operator = Operator(
        name=name,
        plan=plan,
        worker=options.worker,
        pipeline=options.pipeline,
        generation=options.generation,
        tls=options.tls,
        carried=chosen.carried,
        repeats=tells_events_apart(chosen.carried) and not one_row_each(frame),
        output=_to_arrow(output),
    )
    return _stages(frame, chosen, operator, output, _stateful(plan, chosen, measures, event_time))


def _stateful(plan: Plan, chosen: Chosen, measures: Mapping[str, Measure], event_time: str) -> StatefulOperator:
    """What the plan's fingerprint is made of, for people and for what is compared before a query starts."""
    lengths = (f"{name.removesuffix('_us')} {written(us)}" for name, us in asdict(plan.window).items())
    facts = {
        "window": f"{type(plan.window).__name__.lower()} {', '.join(lengths)}",
        "keys": ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in chosen.keys) or "none",
        "aggregates": ", ".join(
            _aggregate(plan, name, measure) for name, measure in zip(plan.aggregates, measures.values(), strict=True)
        ),
        "event_time": event_time,
        "allowed_lateness": written(plan.lateness_us) if plan.lateness_us else "none",
        "buckets": str(plan.buckets),
    }
    return StatefulOperator("windows", facts, plan.buckets)


def _aggregate(plan: Plan, name: str, measure: Measure) -> str:
    """As users write it, with what state holds of it."""
    aggregate = plan.aggregates[name]
    columns = ", ".join(column if isinstance(column, str) else "…" for column in measure.columns)
    parameters = aggregate.parameters()
    more = f" {parameters!r}" if parameters else ""
    return f"{type(aggregate).__qualname__.lower()}({columns}){more} {plan.partial_types[name]}"


def _meaning(event_time: str, chosen: Chosen, measures: Mapping[str, Measure]) -> str:
    """What the plan's own names stand for, as far as the user has named it."""
    inputs = [[column for column in each.columns if isinstance(column, str)] for each in measures.values()]
    return json.dumps([event_time, [field.name for field in chosen.keys], inputs])


def _stages(
    frame: DataFrame, chosen: Chosen, operator: Operator, output: StructType, stateful: StatefulOperator
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.windows.processor import WindowProcessor

    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.windows.mapping import map_rows

        return map_rows(operator, batches)

    def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.windows.unpacking import unpack

        return unpack(operator, batches)

    ids = F.array(*(F.lit(number) for number in operator.ids))
    control = control_rows(frame, range(operator.plan.buckets), reports=True).select(
        F.element_at(ids, F.col("bucket") + 1).alias("bucket"),
        F.lit(int(Kind.CONTROL)).alias("kind"),
        F.lit(None).cast("binary").alias("data"),
        *("epoch", "before", "watermark"),
    )
    entering = chosen.frame.mapInArrow(mapped, ENTERING).unionByName(control)
    grouped = entering.groupBy("bucket")
    left = described(grouped.transformWithState(WindowProcessor(operator), LEAVING, "Append", "None"), stateful)
    return (left.repartition("part") if operator.repeats else left).mapInArrow(unpacked, output)


def _check_frame(frame: DataFrame) -> None:
    if not frame.isStreaming:
        raise RequestError("windows are computed over a stream, and this frame is none", "Read it with readStream.")
    if LETTER in frame.columns and not has_letters(frame):
        raise RequestError(f"the frame has a column `{LETTER}` that is not of letters", "Give it another name.")
    check_letters(frame)
    _check_session(frame.sparkSession)


def _check_session(spark: SparkSession) -> None:
    provider = spark.conf.get(_PROVIDER, None) or ""
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise RequestError(
            "the session keeps state in its heap: windows need RocksDB's state store",
            f"Give the session the settings of penstock.spark.run.session.spark_settings(), {_PROVIDER} among them.",
        )


def _output(chosen: Chosen, plan: Plan) -> StructType:
    """Of the result, as Spark knows it. Raises RequestError for names that are taken, and results of unknown types."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    names = [*(field.name for field in chosen.keys), *chosen.aggregates]
    for name in names:
        if name in _TAKEN:
            raise RequestError(f"`{name}` is a column of every result", "Give the key or the result another name.")
        if names.count(name) > 1:
            raise RequestError(f"`{name}` is there twice in the result", "Give the key or the result another name.")
    results = []
    for number, name in enumerate(chosen.aggregates):
        kind = plan.pane_schema.field(f"r{number}").type
        try:
            results.append(StructField(name, from_arrow_type(kind)))
        except PySparkException:
            raise RequestError(f"the result `{name}` is {kind}, which Spark does not have") from None
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

    return pa.schema([field for field in _to_arrow(fields) if field.name not in (TIME, BUCKET, LETTER)])


def _to_arrow(fields: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")
