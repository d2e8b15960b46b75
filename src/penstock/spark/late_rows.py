"""The filter of `watermarked`: events behind the watermark leave through `late` before Spark's operators drop them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.stored.dead_letters import LATE
from penstock.spark.python_worker import freeze, hinted
from penstock.spark.side_outputs import Origin, Rejected, SideOutputs, side_outputs

if TYPE_CHECKING:
    from pyspark.sql import Column

_REASON = "event time is behind the watermark"


def is_on_time(origin: Origin, operator: str, time: "Column", carried: dict[str, "Column"]) -> "Column":
    """False for rows behind the watermark at which the batch starts, whose events it stages."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # it is not in `__all__`

    judge = _Judge(origin, operator, tuple(carried))

    def on_time(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return judge.batches(batches)

    # Nondeterministic, so that Spark computes it once for each row, and moves no other filter before it.
    judged: Column = arrow_udf(on_time, "boolean").asNondeterministic()(time, *carried.values())
    return judged


@dataclass(frozen=True, slots=True)
class _Judge:
    origin: Origin
    operator: str
    carried: tuple[str, ...]

    def batches(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        freeze()
        with hinted(), side_outputs(self.origin, self.operator) as sides:
            before: int | None = None
            is_known = False
            for times, *carried in batches:
                if not is_known:
                    before, is_known = self.origin.watermark_before(), True
                yield self._on_time(times, carried, before, sides)

    def _on_time(self, times: Any, carried: list[Any], before: int | None, sides: SideOutputs) -> Any:
        if before is None:
            return pa.repeat(True, len(times))
        behind = pc.subtract(before, times.cast(pa.int64()))
        late = pc.fill_null(pc.greater(behind, 0), False)
        count = late.true_count
        if count:
            rows = pa.table({name: column.filter(late) for name, column in zip(self.carried, carried, strict=True)})
            rows = rows.append_column("event_time", times.filter(late))
            sides.stage(rows, Rejected(LATE, [_REASON] * count, [before] * count, behind.filter(late).to_pylist()))
        return pc.invert(late)
