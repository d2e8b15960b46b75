"""Values by the order of their events: event time, then what tells ties apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.aggregating.grouped import first_rows, nth_in_group, offsets_of, order_numbers, sorted_rows
from penstock.windows.aggregating.interface import Aggregate, Groups

COLLECT_MAX = 100_000
"""Of a key and window: a list is one value of a row, and is copied whenever it grows."""


@dataclass(frozen=True)
class First(Aggregate):
    """The value of the first event, null or not. Inputs: the value, then what events are ordered by."""

    inputs: tuple[str, ...]
    ordered: ClassVar[bool] = True

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """The value, with its event's order."""
        value, *order = columns
        return self.merge(_events(value, [order_numbers(each) for each in order]), groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Of each group that which comes first."""
        order = _order_of(partials)
        return partials.take(pa.array(first_rows(order, groups, count, last=self._takes_last())))

    def result(self, partials: pa.Array) -> pa.Array:
        """The values alone."""
        return partials.field(0)

    def _takes_last(self) -> bool:
        return False


class Last(First):
    """The value of the last event, null or not. Inputs: the value, then what events are ordered by."""

    def _takes_last(self) -> bool:
        return True


@dataclass(frozen=True)
class Collect(Aggregate):
    """The values that are not null, in order, the first `limit` of them. Inputs: the value, then the events' order."""

    inputs: tuple[str, ...]
    limit: int
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises RequestError for a limit that is out of range."""
        if not 0 < self.limit <= COLLECT_MAX:
            raise RequestError(f"collect takes 1 to {COLLECT_MAX:,} values, not {self.limit:,}", "Give another limit.")

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """A list of values with their events' order."""
        valid = np.asarray(columns[0].is_valid())
        value, *order = [column.filter(pa.array(valid)) for column in columns]
        return self._lists(_events(value, [order_numbers(each) for each in order]), groups[valid], count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Of each group one list, in order."""
        lengths = partials.value_lengths().to_numpy()
        return self._lists(partials.flatten(), np.repeat(groups, lengths), count)

    def result(self, partials: pa.Array) -> pa.Array:
        """The values alone."""
        offsets = partials.offsets.to_numpy()
        values = partials.flatten().field(0)
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0] if len(offsets) else offsets), values)

    def _lists(self, events: pa.Array, groups: Groups, count: int) -> pa.Array:
        rows = sorted_rows(_order_of(events), groups)
        rows = rows[nth_in_group(groups[rows], count) < self.limit]
        return pa.ListArray.from_arrays(offsets_of(groups[rows], count), events.take(pa.array(rows)))


def _events(value: pa.Array, order: list[NDArray[np.int64]]) -> pa.Array:
    names = ["value", *(f"order{number}" for number in range(len(order)))]
    return pa.StructArray.from_arrays([value, *map(pa.array, order)], names)


def _order_of(events: pa.Array) -> list[NDArray[np.int64]]:
    return [events.field(number).to_numpy() for number in range(1, events.type.num_fields)]
