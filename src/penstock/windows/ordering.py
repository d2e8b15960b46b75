"""Events in order as a part of Spark's plan: the operator of `windows.ordered`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import ERR, LATE
from penstock.spark.dead_letters.columns import carried
from penstock.spark.outputs import PLACE, quoted
from penstock.spark.pipeline_context import current_pipeline
from penstock.spark.run.state_plan import ORDERED, StatefulOperator, column_fact
from penstock.windows.builder import (
    bucket_of,
    check_frame,
    chosen_keys,
    shown_keys,
    stages,
    tie_columns,
    times,
    to_arrow,
)
from penstock.windows.engine import BUCKET, TIME, BucketState, OrderPlan, advance_order, prepare_order
from penstock.windows.kinds import Late
from penstock.windows.operator import CARRIED, Kind, Leaving, Operator, converted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.windows.measures import ColumnLike

ROW = "r"
"""Prefix of the frame's own columns: r0, r1, …"""

_STORED = "row "
"""Prefix of their names in the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOperator(Operator):
    plan: OrderPlan

    compression: ClassVar[str | None] = "lz4"
    """After the watermark has stood still, a bucket emits as much as it has stored."""

    @property
    def buckets(self) -> int:
        return self.plan.buckets

    @property
    def late_reason(self) -> str:
        return "event time is behind the watermark"

    def prepared(self, table: pa.Table, before: int | None, number: int) -> Mapping[int, bytes]:
        return prepare_order(self.plan, table, before, number).partials

    def advanced(
        self, bucket: int, state: BucketState, blobs: list[bytes], before: int | None, after: int | None
    ) -> Leaving:
        rows = advance_order(self.plan, bucket, state, blobs, before, after)
        found = yield from converted(rows, lambda table: [(Kind.RESULTS, table)])
        yield Kind.LATE, found.late
        return found.stats

    def result(self, table: pa.Table) -> pa.Table:
        return table.rename_columns(self.output.names).cast(self.output)


def build_ordered(
    frame: DataFrame,
    keys: Sequence[ColumnLike],
    *,
    late: Late,
    event_time: str,
    buckets: int,
    bucket_bytes_max: int,
    name: str,
) -> DataFrame:
    """Raises RequestError for columns that are missing, ambiguous, or of types that cannot be kept."""
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it
    from pyspark.sql.types import StructField, StructType

    check_frame(frame)
    _check_names(frame)
    context = current_pipeline("windows.ordered")
    key_columns, key_fields = chosen_keys(frame, keys)
    time_us = times(frame, event_time)
    columns = {TIME: time_us, BUCKET: bucket_of(key_columns, buckets)}
    own = {each: f"{ROW}{number}" for number, each in enumerate(frame.columns)}
    columns |= {own[each]: frame[quoted(each)] for each in frame.columns}
    carrying = dict[str, str]()
    for number, (each, column) in enumerate(carried(frame).items()):
        if each in PLACE:
            carrying[each] = own[each]
        else:
            carrying[each] = f"{CARRIED}{number}"
            columns[carrying[each]] = column if late == "keep" else F.when(time_us.isNull(), column)
    rows = frame.select(*(column.alias(each) for each, column in columns.items()))
    output = StructType([StructField(each.name, each.dataType) for each in frame.schema])
    plan = OrderPlan(
        schema=_arrow(rows.schema, own),
        rows={column: _STORED + each for each, column in own.items()},
        ties=tuple(_STORED + each for each in tie_columns(frame)),
        buckets=buckets,
        carry=tuple(carrying.values()) if late == "keep" else (),
        late=late,
        bucket_bytes_max=bucket_bytes_max,
        meaning=(event_time, shown_keys(key_fields)),
    )
    operator = OrderOperator(
        name=name,
        side=context.operator(f"windows {name}", ERR, LATE),
        origin=context.origin(),
        carried=carrying,
        output=to_arrow(output),
        plan=plan,
    )
    facts = {"keys": shown_keys(key_fields), "event_time": event_time, "buckets": str(buckets)}
    facts |= {column_fact(each): kind for each, kind in frame.dtypes}
    return stages(context, rows, operator, output, StatefulOperator(ORDERED, facts, buckets))


def _check_names(frame: DataFrame) -> None:
    """Spark compares names without case."""
    counts = Counter(name.lower() for name in frame.columns)
    for name in frame.columns:
        if counts[name.lower()] > 1:
            raise RequestError(f"two columns of the frame are named `{name}`", "Rename or drop one of them.")


def _arrow(fields: StructType, own: Mapping[str, str]) -> pa.Schema:
    """Raises RequestError for types that Python does not get from Spark."""
    from pyspark.errors import PySparkException

    for name, column in own.items():
        try:
            to_arrow(type(fields)([fields[column]]))
        except PySparkException:
            kind = fields[column].dataType.simpleString()
            raise RequestError(
                f"the column `{name}` is {kind}, which cannot be kept in state", "Drop it, or cast it to a string."
            ) from None
    return to_arrow(fields)
