"""A changed plan takes over a bucket's state: its blobs are rewritten once, in the first batch of the new plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.spark.run.takeover import matched
from penstock.windows.engine.bucket import (
    Blobs,
    Changes,
    Index,
    Layout,
    Written,
    other_plan,
    read_state,
)
from penstock.windows.engine.fixed import written
from penstock.windows.engine.plan import Plan
from penstock.windows.engine.sessions import blob_stretch, numbers_of, read_sessions, write_sessions
from penstock.windows.engine.tables import END, Batch, one_array, partial_names, pieces_of
from penstock.windows.groups import Aggregate, Groups
from penstock.windows.kinds import TIME_MAX_US, Session

# An aggregate that was added while there was state.


@dataclass(frozen=True)
class Added(Aggregate):
    """The aggregate, with partials that may be unknown (null): a window that had events before the aggregate was added
    has lost what these contribute. Its result is null: a value of the other events would look like a right one.
    """

    inputs: tuple[str, ...]
    aggregate: Aggregate

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """All known."""
        return known(self.aggregate.add(columns, groups, count))

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Unknown where one of them is."""
        unknown = np.zeros(count, bool)
        unknown[groups[np.asarray(partials.is_null())]] = True
        if unknown.all():
            return pa.nulls(count, partials.type)
        chosen, places = ~unknown[groups], np.cumsum(~unknown) - 1
        parts = partials.filter(pa.array(chosen)).field(0)
        return _spread(known(self.aggregate.merge(parts, places[groups[chosen]], int(places[-1]) + 1)), unknown)

    def result(self, partials: pa.Array) -> pa.Array:
        """Null where the partial is unknown."""
        values = self.aggregate.result(partials.drop_null().field(0))
        return _spread(values, np.asarray(partials.is_null())) if partials.null_count else values


def known(partials: pa.Array) -> pa.Array:
    """Partials as those of an added aggregate."""
    return pa.StructArray.from_arrays([partials], ["partial"])


def _spread(values: pa.Array, unknown: NDArray[np.bool_]) -> pa.Array:
    """The values in their places, null where unknown."""
    return values.take(pa.array(np.cumsum(~unknown) - 1, mask=unknown))


# Taking over.


@dataclass(frozen=True, slots=True)
class Taken:
    """A bucket's state as the plan continues it."""

    plan: Plan
    """Its aggregates read the partials of the state, unknown ones included."""
    index: Index
    state: Blobs
    rewritten: Mapping[int, Written] | None = None
    """All its blobs; None if they stay as they are."""

    def adapted(self, batch: Batch) -> Batch:
        """The batch, with partials as in the state."""
        columns = [
            column
            for column, each in zip(partial_names(self.plan), self.plan.aggregates.values(), strict=True)
            if isinstance(each, Added)
        ]
        return replace(batch, partials=[_known_in(table, columns) for table in batch.partials]) if columns else batch

    def with_rewritten(self, changes: Changes, stored: Index) -> Changes:
        """What changes in the stored blobs: the batch's changes on top of what was rewritten."""
        if self.rewritten is None:
            return changes
        puts = {number: each for number, each in self.rewritten.items() if number not in changes.removed}
        puts |= changes.puts
        return replace(changes, puts=puts, removed=frozenset(stored.blobs.keys() - puts.keys()))


def _known_in(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    for column in columns:
        number = table.column_names.index(column)
        table = table.set_column(number, column, known(one_array(table.column(column))))
    return table


def take_over(plan: Plan, stored: Index, state: Blobs) -> Taken:
    """Changes nothing yet. Raises RequestError if the plan cannot continue this state."""
    layout = stored.layout
    if layout is None or layout == Layout(plan.stored, frozenset(), plan.lateness_us):
        return Taken(plan, replace(stored, layout=Layout(plan.stored, frozenset(), plan.lateness_us)), state)
    match = matched(layout.aggregates, plan.stored)
    if match.changed:
        raise other_plan()
    _check_closed(plan, stored)
    added = frozenset(
        one.name
        for one, place in zip(plan.stored, match.places, strict=True)
        if place is None or layout.aggregates[place].name in layout.added
    )
    index = replace(stored, layout=Layout(plan.stored, added, plan.lateness_us))
    adapted = _with_added(plan, added)
    is_same = match.places == tuple(range(len(layout.aggregates))) and not match.removed
    if is_same and blob_stretch(plan, layout.lateness_us) == blob_stretch(plan, plan.lateness_us):
        return Taken(adapted, index, state)
    blobs = _rewritten(adapted, stored, state, match.places)
    infos = {number: each.info for number, each in blobs.items()}
    return Taken(adapted, replace(index, blobs=infos), _Rewritten(blobs), blobs)


def _check_closed(plan: Plan, stored: Index) -> None:
    """A plan that does not know which windows were purged would open them again without their past."""
    if stored.closed_to is None or stored.watermark is None or stored.watermark >= TIME_MAX_US:
        return
    closed_to = plan.closed_to(stored.watermark)
    if closed_to is None or closed_to < stored.closed_to:
        raise RequestError(
            "the allowed lateness is longer than that of the state, whose windows were purged earlier",
            "Start the query with penstock run, which keeps those windows closed, or start from scratch: "
            "penstock pipeline reset NAME",
        )


def _with_added(plan: Plan, added: frozenset[str]) -> Plan:
    if not added:
        return plan
    aggregates = {
        name: Added(each.inputs, each) if one.name in added else each
        for (name, each), one in zip(plan.aggregates.items(), plan.stored, strict=True)
    }
    return replace(plan, aggregates=aggregates)


def _rewritten(plan: Plan, stored: Index, state: Blobs, places: tuple[int | None, ...]) -> dict[int, Written]:
    """All blobs, with the plan's columns."""
    if not isinstance(plan.window, Session):
        return {
            number: written(plan, number, _with_columns(plan, read_state(state, number), places))
            for number in stored.blobs
        }
    tables = [_with_columns(plan, read_state(state, number), places) for number in stored.blobs]
    sessions = [read_sessions(plan, table, stored.watermark) for table in tables]
    if not sessions:
        return {}
    table = pa.concat_tables(sessions).combine_chunks()
    pieces = pieces_of(table, numbers_of(plan, table.column(END).to_numpy()))
    found = ((number, write_sessions(plan, [piece])) for number, piece in pieces)
    return {number: each for number, each in found if each is not None}


def _with_columns(plan: Plan, table: pa.Table, places: tuple[int | None, ...]) -> pa.Table:
    """The rows of a blob, with a partial of each of the plan's aggregates: unknown for those that were added."""
    old = [one for one in table.column_names if one[0] == "a" and one[1:].isdigit()]
    kept = table.drop_columns(old)
    for column, place, name in zip(partial_names(plan), places, plan.aggregates, strict=True):
        kind = plan.partial_types[name]
        kept = kept.append_column(
            column, pa.nulls(table.num_rows, kind) if place is None else table.column(f"a{place}")
        )
    return kept


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """Blobs that are not in the store yet, to be read by the batch that writes them."""

    blobs: Mapping[int, Written]

    def get(self, window: int) -> bytes | None:
        return self.blobs[window].data if window in self.blobs else None
