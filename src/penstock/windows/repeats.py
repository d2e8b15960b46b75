"""Frames that may have several rows of one event, such as those of an `explode`: late, it leaves once all the same.

Its rows have keys, so they are in several buckets. What is late of them is sent once more through a shuffle, by the
place of the event, and one row of each is kept. Other frames do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine import TIME
from penstock.windows.engine.keys import codes_of, grouped
from penstock.windows.engine.rows import one_array, pieces_of
from penstock.windows.selection import CARRIED, PLACE, TIES

if TYPE_CHECKING:
    from penstock.windows.operator import Operator

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Odd: offsets and ids lie at regular distances, and must not all fall into the same part."""


def tells_events_apart(carried: Sequence[str]) -> bool:
    """Whether rows say which event they are of: by its place, or by its ids."""
    return set(PLACE) <= set(carried) or set(TIES) <= set(carried)


def parted(operator: Operator, table: pa.Table, bucket: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows in parts, all of an event in the part of one number; the bucket's own where events have one row each."""
    if operator.repeats:
        return pieces_of(table, _parts(table, operator.carried, operator.plan.buckets))
    return iter([(bucket, table)])


def distinct(tables: Iterable[pa.Table], carried: Sequence[str]) -> pa.Table:
    """One row of each event: the earliest, where rows have times. Rows that name no event are all kept."""
    table = pa.concat_tables(tables).combine_chunks()
    if TIME in table.column_names:
        table = table.sort_by([(TIME, "descending")])
    columns = [one_array(table.column(f"{CARRIED}{number}")) for number in range(len(carried))]
    kept = np.asarray(_numbers(table, carried).is_null())
    kept[grouped(codes_of(columns, table.num_rows)).example] = True
    return table.filter(pa.array(kept))


def _parts(table: pa.Table, carried: Sequence[str], count: int) -> NDArray[np.int64]:
    """A number below `count` for each row: the same for all rows of an event."""
    numbers = _numbers(table, carried).fill_null(0).to_numpy()
    mixed: NDArray[np.uint64] = (numbers.view(np.uint64) * _SPREAD) >> np.uint64(32)
    return (mixed % np.uint64(count)).astype(np.int64)


def _numbers(table: pa.Table, carried: Sequence[str]) -> pa.Array:
    """Of each row's event, in its segment or stream; null where the row names none."""
    name = PLACE[1] if PLACE[1] in carried else TIES[1]
    return one_array(table.column(f"{CARRIED}{carried.index(name)}"))
