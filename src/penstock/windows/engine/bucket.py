"""The state of a bucket of keys: its index, its blobs of partials, what a batch changes in it, and what it emits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import msgpack
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import Damaged, RequestError, UnreadableFormat
from penstock.spark.run.takeover import StoredAggregate
from penstock.windows.engine import tables
from penstock.windows.engine.plan import CODES_MAX, Codes, Grouping, Plan
from penstock.windows.engine.tables import END, REPLACES, REVISION, START, key_names, one_array, results
from penstock.windows.kinds import TIME_MAX_US


class Blobs(Protocol):
    """A bucket's blobs, by number."""

    def get(self, window: int) -> bytes | None:
        """None if there is none."""


class BucketState(Blobs, Protocol):
    """A bucket's storage: an index, and blobs by number. A batch never reads what it has written itself; the next one
    does.
    """

    def index(self) -> bytes | None:
        """None for a new bucket."""

    def put_index(self, data: bytes) -> None:
        """Replaces it."""

    def put(self, window: int, data: bytes) -> None:
        """Creates or replaces it."""

    def remove(self, window: int) -> None:
        """The blob exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A bucket after a batch. `keys` counts a key once per window; late rows count since the state was created."""

    open_windows: int
    keys: int
    state_bytes: int
    late_kept: int
    late_dropped: int
    waiting: int
    """Windows that have not fired, counted per key and window."""
    first_end: int | None
    """When the first of them ends, in microseconds; None if there is none."""
    next_time: int | None
    """The watermark at which something fires or is removed next; None if nothing will."""
    buffered: int = 0
    """Events that wait for the watermark, to be emitted in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What a batch produced: panes as `plan.pane_schema`, late rows as `plan.late_schema` (none with late="drop")."""

    panes: pa.Table
    late: pa.Table
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Blobs for `advance`, by bucket; a bucket without rows has none."""

    partials: dict[int, bytes]


# The index of a bucket's state: its blobs, what is in them, and the watermark the bucket has reached.

_VERSION = 2
_WHAT = "the state of these windows"
_RESET = "Start from scratch: penstock pipeline reset NAME"


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A blob of the state: its rows, its size, and the bounds of the windows in it."""

    rows: int
    size: int
    first_start: int
    first_end: int
    last_end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What wrote the blobs: their columns a0, a1, … are partials of these aggregates."""

    aggregates: tuple[StoredAggregate, ...]
    added: frozenset[str]
    """The results of those that were added while there was state: their partials may be unknown."""
    lateness_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Blobs by number; the watermark at the end of the last batch; late rows since the state was created."""

    layout: Layout | None = None
    """None if the blobs are those of the plan, and the index has the format of an earlier version or is new."""
    closed_to: int | None = None
    """Windows that end here or earlier have been purged."""
    blobs: Mapping[int, BlobInfo] = field(default_factory=dict)
    watermark: int | None = None
    late_kept: int = 0
    late_dropped: int = 0

    @property
    def rows(self) -> int:
        """The rows of all blobs."""
        return sum(each.rows for each in self.blobs.values())

    @property
    def size(self) -> int:
        """The size of all blobs, in bytes."""
        return sum(each.size for each in self.blobs.values())


def load(plan: Plan, state: BucketState, before: int | None) -> Index:
    """Raises RequestError if the plan cannot continue the state, or if it does not end where the batch starts."""
    data = state.index()
    if data is None:
        return Index(watermark=before)
    version, *fields = msgpack.unpackb(data, strict_map_key=False, use_list=False)
    if version not in (1, _VERSION):
        raise unreadable(_WHAT, version, _VERSION)
    index = _decoded(plan, fields) if version == _VERSION else _decoded_1(plan, fields)
    check_continued(_WHAT, index.watermark, before)
    return index


def unreadable(what: str, version: int, newest: int) -> RequestError:
    """The error for state of a newer version. It is not UnreadableFormat: a restart of the query does not help."""
    error = UnreadableFormat(what, version, newest, _RESET)
    return RequestError(str(error), error.hint)


def check_continued(what: str, watermark: int | None, before: int | None) -> None:
    """Raises RequestError unless the batch starts where the state ends."""
    if watermark != before:
        raise RequestError(f"{what} ends at watermark {watermark}, the batch starts at {before}", _RESET)


def _decoded(plan: Plan, fields: list[Any]) -> Index:
    fingerprint, aggregates, added, lateness_us, closed_to, watermark, kept, dropped, blobs = fields
    if fingerprint != plan.fingerprint:
        raise other_plan()
    return Index(
        layout=Layout(tuple(StoredAggregate(*one) for one in aggregates), frozenset(added), lateness_us),
        closed_to=closed_to,
        blobs={number: BlobInfo(*each) for number, each in blobs.items()},
        watermark=watermark,
        late_kept=kept,
        late_dropped=dropped,
    )


def _decoded_1(plan: Plan, fields: list[Any]) -> Index:
    """Format 1 does not describe what is in the blobs: only the plan that wrote them can read them."""
    fingerprint, watermark, kept, dropped, blobs = fields
    if fingerprint != plan.fingerprint_1:
        raise other_plan()
    entries = {number: BlobInfo(*each) for number, each in blobs.items()}
    return Index(blobs=entries, watermark=watermark, late_kept=kept, late_dropped=dropped)


def other_plan() -> RequestError:
    """The state belongs to a plan that this one cannot continue."""
    return RequestError(f"{_WHAT} was written by other windows, keys or aggregates", _RESET)


def dump(plan: Plan, index: Index) -> bytes:
    """The inverse of `load`."""
    blobs = {number: (e.rows, e.size, e.first_start, e.first_end, e.last_end) for number, e in index.blobs.items()}
    assert index.layout is not None
    layout = (index.layout.aggregates, sorted(index.layout.added), index.layout.lateness_us)
    counted = (index.watermark, index.late_kept, index.late_dropped, blobs)
    data: bytes = msgpack.packb((_VERSION, plan.fingerprint, *layout, index.closed_to, *counted))
    return data


# State as bytes: a table of partials. Most windows are never updated after they fire; then no revision is stored.

_STATE = "state"
_COMPRESSION = "lz4"
"""Halves the bytes of a count by key, at 30 ns per key; moving the extra bytes to the state store and its log would
cost more.
"""


def write_state(table: pa.Table) -> bytes:
    """The inverse of `read_state`."""
    if not table.column(REVISION).to_numpy().any():
        table = table.drop_columns([REVISION])
    return packed_state(table)


def read_state(state: Blobs, number: int) -> pa.Table:
    """Raises Damaged if a blob named in the index is missing."""
    table = stored_table(state, number, _WHAT)
    if REVISION in table.column_names:
        return table
    return table.append_column(REVISION, pa.array(np.zeros(table.num_rows, np.int32)))


def packed_state(table: pa.Table) -> bytes:
    """The inverse of `stored_table`."""
    return tables.pack({_STATE: table}, {}, _COMPRESSION)


def stored_table(state: Blobs, number: int, what: str) -> pa.Table:
    """Raises Damaged if there is none."""
    data = state.get(number)
    if data is None:
        raise Damaged(f"{what} is damaged: part {number} is missing", _RESET)
    return tables.unpack(data).tables[_STATE]


# Intervals of keys that overlap, directly or through others: sessions.


@dataclass(frozen=True, slots=True)
class Runs:
    """Groups of intervals, and each group's bounds."""

    grouping: Grouping
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def runs_of(codes: Codes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Runs:
    """Connected intervals of equal codes: they overlap. One that starts where another ends is not connected to it."""
    if not len(starts):
        none = np.empty(0, np.int64)
        return Runs(Grouping(none, none), none, none)
    order = _by_key_and_time(codes, starts)
    keys, begins = codes.of_rows[order], starts[order]
    new_key = np.concatenate(([True], keys[1:] != keys[:-1]))
    highest = _running_maximum(new_key, ends[order])
    new_run = new_key.copy()
    new_run[1:] |= begins[1:] >= highest[:-1]
    first = np.flatnonzero(new_run)
    last = np.concatenate((first[1:], [len(order)])) - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(new_run) - 1
    return Runs(Grouping(groups, order[first]), begins[first], highest[last])


def _by_key_and_time(codes: Codes, times: NDArray[np.int64]) -> NDArray[np.int64]:
    low, high = int(times.min()), int(times.max())
    length = high - low + 1
    if codes.bound <= CODES_MAX // length:
        return np.argsort(codes.of_rows * length + (times - low))
    return np.lexsort((times, codes.of_rows))


def _running_maximum(new_key: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The maximum of the key's ends so far: the end itself, unless an earlier interval contains this one."""
    if np.all((ends[1:] >= ends[:-1]) | new_key[1:]):
        return ends
    distinct, ranks = np.unique(ends, return_inverse=True)
    key_first = (np.cumsum(new_key) - 1) * len(distinct)
    highest: NDArray[np.int64] = distinct[np.maximum.accumulate(key_first + ranks) - key_first]
    return highest


# Comparisons with a watermark. An unknown watermark has reached nothing. At the end of time (all sources have ended)
# it has reached everything, including windows of the last possible times, which end after it.


@overload
def reached(times: int, watermark: int | None) -> bool: ...
@overload
def reached(times: NDArray[np.int64], watermark: int | None) -> NDArray[np.bool_]: ...
def reached(times: int | NDArray[np.int64], watermark: int | None) -> bool | NDArray[np.bool_]:
    """Whether the watermark is at or past these times."""
    if watermark is not None and watermark < TIME_MAX_US:
        return times <= watermark
    everything = watermark is not None
    return everything if isinstance(times, int) else np.full(len(times), everything)


@overload
def closed(plan: Plan, ends: int, watermark: int | None) -> bool: ...
@overload
def closed(plan: Plan, ends: NDArray[np.int64], watermark: int | None) -> NDArray[np.bool_]: ...
def closed(plan: Plan, ends: int | NDArray[np.int64], watermark: int | None) -> bool | NDArray[np.bool_]:
    """Whether windows with these ends take no more events."""
    past = reached(ends + plan.lateness_us, watermark)
    return past if plan.closed_to_us is None else past | (ends <= plan.closed_to_us)


# A batch's changes to a bucket: decided first, then written by `advance` once nothing can fail any more.


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A blob and its entry in the index."""

    data: bytes
    info: BlobInfo


@dataclass(frozen=True, slots=True)
class Waiting:
    """Windows that have not fired, counted per key and window; and when the first of them ends, if there is one."""

    count: int = 0
    first_end: int | None = None

    def __add__(self, other: "Waiting") -> "Waiting":
        ends = [end for end in (self.first_end, other.first_end) if end is not None]
        return Waiting(self.count + other.count, min(ends, default=None))


def waiting_in(blobs: Iterable[BlobInfo], watermark: int | None) -> Waiting:
    """For blobs in which either all windows have fired at this watermark, or none."""
    open_ones = [each for each in blobs if not reached(each.first_end, watermark)]
    return Waiting(sum(each.rows for each in open_ones), min((each.first_end for each in open_ones), default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Panes in the plan's schema; rows that turned out to be late (t, carried); blobs to put and to remove; and the
    windows that are still waiting to fire.
    """

    panes: list[pa.Table]
    late: list[pa.Table]
    puts: Mapping[int, Written]
    removed: frozenset[int]
    waiting: Waiting


# Panes: the rows that windows emit when they fire.

ON_TIME, UPDATE = "on_time", "update"


def panes_of(plan: Plan, table: pa.Table) -> pa.Table:
    """The panes of a table of partials with bounds and revisions; revision 0 is the window's first pane, on time."""
    keys = [one_array(table.column(name)) for name in key_names(plan)]
    revisions = one_array(table.column(REVISION))
    pane = _names(revisions.to_numpy())
    replaces = [one_array(table.column(REPLACES))] if REPLACES in table.column_names else []
    bounds = [one_array(table.column(START)), one_array(table.column(END))]
    arrays = [*keys, *bounds, pane, revisions, *results(plan, table), *replaces]
    return pa.Table.from_arrays(arrays, schema=plan.pane_schema)


def _names(revisions: NDArray[np.int32]) -> pa.Array:
    kinds = pa.array((revisions > 0).astype(np.int8))
    return pa.DictionaryArray.from_arrays(kinds, pa.array([ON_TIME, UPDATE])).cast(pa.string())
