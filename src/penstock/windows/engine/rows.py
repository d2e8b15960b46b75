"""The rows of a table that is prepared."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.keys import normalized
from penstock.windows.engine.plan import BUCKET, TIME, Plan


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns by name, with the plan's types, keys normalized; `times` and `buckets` also as numbers."""

    columns: dict[str, pa.Array]
    times: NDArray[np.int64]
    buckets: NDArray[np.int32]

    @staticmethod
    def of(plan: Plan, table: pa.Table | pa.RecordBatch) -> "Rows":
        """Of a table as `prepare` takes it."""
        columns = {name: one_array(table.column(name)).cast(plan.schema.field(name).type) for name in plan.columns}
        columns |= {name: normalized(columns[name]) for name in plan.keys}
        times, buckets = one_array(table.column(TIME)), one_array(table.column(BUCKET))
        return Rows(columns | {TIME: times}, times.to_numpy(), buckets.to_numpy())

    def __len__(self) -> int:
        return len(self.times)

    def where(self, mask: NDArray[np.bool_]) -> "Rows":
        """Those rows alone."""
        if mask.all():
            return self
        chosen = np.flatnonzero(mask)
        columns = {name: column.take(pa.array(chosen)) for name, column in self.columns.items()}
        return Rows(columns, self.times[chosen], self.buckets[chosen])

    def table(self, names: tuple[str, ...]) -> pa.Table:
        """Those columns alone."""
        return pa.table([self.columns[name] for name in names], names=list(names))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Without chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
