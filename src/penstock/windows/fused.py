"""Windows that the readers of an input compute themselves: what enters the JVM is one partial per key and slice.

`reading.py` decides whether that gives what Spark would compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.api.side_outputs import SideKey
from penstock.spark.side_outputs import SideOutputs, registered
from penstock.spark.source.schema import ASKED_COLUMNS, COLUMNS, arrow_schema
from penstock.windows.engine import TIME
from penstock.windows.evaluation import Expression
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US
from penstock.windows.operator import CARRIED, Kind, WindowOperator, as_batch, entering_schema

if TYPE_CHECKING:
    from penstock.spark.source.partitions import ControlRows, FusedRanges

PLACE = ("segment", "offset")
"""What late events and dead letters carry: readers know it of every event, whatever columns a frame has."""


@dataclass(frozen=True, slots=True)
class Input:
    """A column for aggregates; `is_hashed`: they read its hash."""

    expression: Expression
    is_hashed: bool = False

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        from penstock.windows.hashing import hashes_of  # here: kernels take a second to import

        found = self.expression.values(batch)
        if not self.is_hashed:
            return found
        hashes = pa.array(hashes_of([found], len(found)))
        return pc.if_else(found.is_valid(), hashes, None) if found.null_count else hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What becomes of a batch of events before windows are computed. The names are those of `builder.choose`."""

    where: tuple[Expression, ...]
    """Conditions. A row for which one does not hold is not looked at by those after it."""
    time: Expression
    keys: Mapping[str, Expression]
    inputs: Mapping[str, Input]

    def columns(self) -> tuple[str, ...]:
        """Those of the input that it reads."""
        used = (*self.where, self.time, *self.keys.values(), *(one.expression for one in self.inputs.values()))
        return tuple(dict.fromkeys(name for one in used for name in one.columns()))

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that windows need, of the rows that they take; without their buckets."""
        batch = batch.select([*dict.fromkeys((*self.columns(), *PLACE))])
        for condition in self.where:
            holds = condition.values(batch)
            if holds.true_count < batch.num_rows:
                batch = batch.filter(holds)
        keys = {name: one.values(batch) for name, one in self.keys.items()}
        columns = {
            TIME: _times(self.time.values(batch)),
            **keys,
            **{f"{CARRIED}{number}": batch.column(name) for number, name in enumerate(PLACE)},
            **{name: one.values(batch) for name, one in self.inputs.items()},
        }
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _times(column: pa.Array) -> pa.Array:
    """In microseconds; null outside the years 1 to 9999."""
    times = column.cast(pa.int64())
    bounds = pc.min_max(times)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= TIME_MIN_US and high <= TIME_MAX_US):
        return times
    inside = pc.and_(pc.greater_equal(times, TIME_MIN_US), pc.less_equal(times, TIME_MAX_US))
    return pc.if_else(inside, times, pa.scalar(None, pa.int64()))


@dataclass(frozen=True, slots=True)
class FusedWindows:
    """A window operator up to the shuffle, as readers run it: `penstock.spark.source.fused.FusedOperator`."""

    operator: WindowOperator
    reading: Reading

    @classmethod
    def of(cls, operator: WindowOperator, reading: Reading) -> FusedWindows:
        """The operator, with rows that carry the position of their event, whatever columns the frame has."""
        plan = operator.plan
        carried = {name: f"{CARRIED}{number}" for number, name in enumerate(PLACE)}
        others = [field for field in plan.schema if not field.name.startswith(CARRIED)]
        own = arrow_schema(PLACE)
        schema = pa.schema([*others, *(own.field(name).with_name(column) for name, column in carried.items())])
        carry = tuple(carried.values()) if plan.late == "keep" else ()
        return cls(replace(operator, plan=replace(plan, schema=schema, carry=carry), carried=carried), reading)

    @property
    def columns(self) -> tuple[str, ...]:
        """The events' own columns that its readers must return."""
        own = [name for name in self.reading.columns() if name in COLUMNS | ASKED_COLUMNS]
        return tuple(dict.fromkeys((*own, *PLACE)))

    def control(self, rows: ControlRows) -> pa.RecordBatch:
        """One row for each bucket."""
        epoch = (rows.epoch, rows.before, rows.watermark)
        return as_batch(entering_schema(), [(bucket, int(Kind.CONTROL), None, *epoch) for bucket in self.operator.ids])

    def entering(self, events: Iterator[pa.RecordBatch], read: FusedRanges) -> Iterator[pa.RecordBatch]:
        """Partials. Events without a time are dead letters; it depends on the events alone which they are, so there is
        nothing to register if there are none.
        """
        from penstock.windows.stages import entering, times_operator

        key = SideKey(True, times_operator(self.operator), read.number)
        sides = SideOutputs.of(self.operator.origin, read.control.epoch, key)
        with registered(sides, even_empty=False):
            batches = (chosen for batch in events if (chosen := self.reading.chosen(batch)).num_rows)
            yield from entering(self.operator, batches, sides, lambda: read.control.before)
