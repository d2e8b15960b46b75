"""Events in order: what the engine emits is what the reference emits, and its state is small, and can be continued."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Damaged, LimitExceeded, RequestError
from penstock.protocol.stored.event import END_OF_TIME
from penstock.windows.engine import OrderPlan, advance_order, order, prepare_order
from penstock.windows.engine.bucket import Stats
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US
from tests.windows.engine.driving import DictState
from tests.windows.order_reference import Event, OrderReference

TIES = ("stream", "message")
PLAN = OrderPlan(
    schema=pa.schema(
        {"key": pa.string(), "stream": pa.int64(), "message": pa.int64(), "text": pa.string(), "place": pa.int64()}
    ),
    rows={name: name for name in ("key", "stream", "message", "text", "place")},
    ties=TIES,
    buckets=3,
    carry=("place",),
)
ONE = replace(PLAN, buckets=1)


def table_of(plan: OrderPlan, events: Sequence[Event], text: str = "…") -> pa.Table:
    names = {"key": "key", "stream": "stream", "message": "message", "place": "number"}
    columns = {
        name: pa.array([getattr(event, names[name]) for event in events], plan.schema.field(name).type)
        for name in plan.schema.names
        if name in names
    }
    columns |= {
        "text": pa.array([text] * len(events), pa.string()),
        "t": pa.array([event.time for event in events], pa.int64()),
        "b": pa.array([bucket_of(plan, event) for event in events], pa.int32()),
    }
    columns |= {
        name: pa.nulls(len(events), plan.schema.field(name).type) for name in plan.schema.names if name not in columns
    }
    return pa.table(columns)


def bucket_of(plan: OrderPlan, event: Event) -> int:
    return sum((event.key or "").encode()) % plan.buckets


class Driver:
    """A pipeline's ordered events, batch after batch."""

    def __init__(self, plan: OrderPlan = PLAN) -> None:
        self.plan = plan
        self.states = [DictState() for _ in range(plan.buckets)]
        self.watermark: int | None = None
        self.stats: list[Stats] = []
        self.tables: list[pa.Table] = []

    def batch(
        self, tasks: Iterable[Sequence[Event]], after: int | None, text: str = "…"
    ) -> tuple[list[list[int]], list[dict[str, Any]]]:
        """The numbers of the events that each bucket emits, and late rows."""
        rows, late, self.stats = self._attempt(self.states, tasks, after, text)
        self.watermark = after
        return rows, late

    def crash(self, tasks: Iterable[Sequence[Event]], after: int | None) -> None:
        """A batch that is never committed."""
        self._attempt(deepcopy(self.states), tasks, after, "…")

    def _attempt(
        self, states: list[DictState], tasks: Iterable[Sequence[Event]], after: int | None, text: str
    ) -> tuple[list[list[int]], list[dict[str, Any]], list[Stats]]:
        blobs = [self._prepared(events, text, number << 40) for number, events in enumerate(tasks)]
        rows, late, stats = [], list[dict[str, Any]](), []
        for bucket, state in enumerate(states):
            given_blobs = [each[bucket] for each in blobs if bucket in each]
            run = advance_order(self.plan, bucket, state, given_blobs, self.watermark, after)
            self.tables = []
            while True:
                try:
                    self.tables.append(next(run))
                except StopIteration as end:
                    found = end.value
                    break
            assert {table.schema for table in self.tables} == {self.plan.row_schema}
            rows.append([number for table in self.tables for number in table.column("place").to_pylist()])
            late += found.late.to_pylist()
            stats.append(found.stats)
        return rows, late, stats

    def _prepared(self, events: Sequence[Event], text: str, number: int) -> dict[int, bytes]:
        return prepare_order(self.plan, table_of(self.plan, events, text), self.watermark, number).partials

    @property
    def pieces(self) -> list[order.Piece]:
        indices = [msgpack.unpackb(state.head, strict_map_key=False) for state in self.states if state.head]
        return [order.Piece(*each) for index in indices for each in index[-1].values()]


def events_of(times: Iterable[int], first: int = 0, key: str = "k") -> list[Event]:
    return [Event(time, key, 1, number, number) for number, time in enumerate(times, first)]


KEYS = ["a", "b", "c", None]
IDS = st.none() | st.integers(-2, 2)
EVENTS = st.lists(st.tuples(st.integers(-30, 30), st.sampled_from(KEYS), IDS, IDS), max_size=25)
STEPS = st.none() | st.integers(0, 25) | st.just("end")
EPOCHS = st.lists(st.tuples(EVENTS, STEPS, st.integers(1, 3), st.booleans()), min_size=1, max_size=8)
SIZES = st.sampled_from([(64, 64), (300, 900), (order.PIECE_BYTES, order.EMIT_BYTES)])
"""Of pieces and of emitted tables: with the small ones, a bucket has many of both."""


@settings(max_examples=80, deadline=None)
@given(EPOCHS, SIZES, st.integers(0, 99))
def test_each_bucket_emits_the_events_of_the_reference_in_the_same_order(
    epochs: list[Any], sizes: tuple[int, int], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "PIECE_BYTES", sizes[0])
        patch.setattr(order, "EMIT_BYTES", sizes[1])
        check(epochs, random.Random(seed))


def check(epochs: list[Any], rng: random.Random) -> None:
    driver, reference, number = Driver(), OrderReference(), 0
    before: int | None = None
    late_seen = 0
    for drawn, step, tasks, crashes in epochs:
        events = [Event(t, k, stream, message, number + n) for n, (t, k, stream, message) in enumerate(drawn)]
        number += len(events)
        after = before
        if step == "end" or before == END_OF_TIME:
            after = END_OF_TIME
        elif step is not None:
            after = step - 35 if before is None else before + step
        cuts = [0, *sorted(rng.randrange(len(events) + 1) for _ in range(tasks - 1)), len(events)]
        parts = [events[start:end] for start, end in pairwise(cuts)]
        if crashes:
            driver.crash(parts, after)
        rows, late = driver.batch(parts, after)
        ready, missed = reference.epoch(events, before, after)
        buckets = [[event for event in ready if bucket_of(PLAN, event) == bucket] for bucket in range(PLAN.buckets)]
        assert rows == [[event.number for event in bucket] for bucket in buckets]
        assert sorted((row["place"], row["t"], row["watermark"], row["behind"]) for row in late) == sorted(
            (event.number, event.time, before, (before or 0) - event.time) for event in missed
        )
        late_seen += len(missed)
        check_state(driver, reference, late_seen)
        before = after


def check_state(driver: Driver, reference: OrderReference, late: int) -> None:
    assert sum(each.buffered for each in driver.stats) == len(reference.held)
    assert sum(each.late_kept for each in driver.stats) == late
    stored = sum(len(data) for state in driver.states for data in state.data.values())
    assert sum(each.state_bytes for each in driver.stats) == stored
    first = min((event.time for event in reference.held), default=None)
    due = [each.next_time for each in driver.stats if each.next_time is not None]
    assert min(due, default=None) == (None if first is None else first + 1)
    assert all(piece.rows < 2 * piece.waiting for piece in driver.pieces), "at most twice what waits"


def test_an_event_at_the_watermark_waits_and_one_before_it_is_emitted() -> None:
    driver = Driver(ONE)
    assert driver.batch([events_of([10, 9, 11])], 10) == ([[1]], [])
    rows, late = driver.batch([events_of([10, 9], first=3)], 11)
    assert rows == [[0, 3]], "equal times: by message"
    assert [(row["place"], row["behind"]) for row in late] == [(4, 1)]


def test_everything_waits_while_the_watermark_is_unknown_and_nothing_at_the_end_of_time() -> None:
    driver = Driver(ONE)
    times = [TIME_MAX_US, 5, TIME_MIN_US]
    assert driver.batch([events_of(times)], None) == ([[]], [])
    assert driver.batch([], END_OF_TIME) == ([[2, 1, 0]], [])
    rows, late = driver.batch([events_of([TIME_MAX_US], first=3)], END_OF_TIME)
    assert rows == [[]]
    assert [row["place"] for row in late] == [3], "all sources have ended"
    assert not driver.states[0].data


def test_events_of_one_time_are_ordered_by_stream_and_message_then_as_read() -> None:
    driver = Driver(ONE)
    first = [Event(5, "k", 2, 1, 0), Event(5, "k", 1, 2, 1), Event(5, "k", 1, 1, 2), Event(5, "k", 1, 1, 3)]
    later = [Event(5, "k", 1, 1, 4), Event(5, "k", None, 9, 5)]
    driver.batch([first[:3], first[3:]], 1)
    assert driver.batch([later], 6)[0] == [[5, 2, 3, 4, 1, 0]]


def test_without_ordering_columns_events_of_one_time_stay_in_the_order_read() -> None:
    driver = Driver(replace(ONE, ties=()))
    events = [Event(5, "k", -number, -number, number) for number in range(6)]
    driver.batch([events[:3], events[3:]], 1)
    assert driver.batch([], 6)[0] == [[0, 1, 2, 3, 4, 5]]


def test_a_batch_that_changes_nothing_writes_nothing_and_a_piece_is_not_rewritten_for_what_it_emits() -> None:
    driver = Driver(ONE)
    driver.batch([events_of(range(100))], 0)
    state = driver.states[0]
    state.puts.clear()
    head = state.head
    driver.batch([], 0)
    assert state.head is head
    assert driver.batch([], 40)[0] == [[*range(40)]]
    assert not state.puts
    assert driver.batch([], 60)[0] == [[*range(40, 60)]]
    assert len(state.puts) == 1, "less than half of it waits"
    assert [piece.rows for piece in driver.pieces] == [40]


def test_while_the_watermark_stands_still_small_batches_make_few_pieces_that_are_rarely_rewritten() -> None:
    driver, batches, rows = Driver(ONE), 400, 10
    written = 0
    for number in range(batches):
        times = [(number * rows + place) * 7 % (batches * rows) for place in range(rows)]
        driver.batch([events_of(times, number * rows)], 0)
        written += sum(len(driver.states[0].data[put]) for put in driver.states[0].puts)
        driver.states[0].puts.clear()
        assert len(driver.pieces) <= 12
    stored = sum(len(data) for data in driver.states[0].data.values())
    assert written < 15 * stored
    (emitted,) = driver.batch([], batches * rows)[0]
    assert sorted(emitted) == [*range(batches * rows)]


def test_many_events_are_emitted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(order, "EMIT_BYTES", 50_000)
    driver = Driver(ONE)
    for number in range(20):
        driver.batch([events_of(range(number * 90, number * 90 + 100), number * 100)], 0, "x" * 100)
    assert len(driver.pieces) >= 10
    (rows,) = driver.batch([], 10_000)[0]
    assert len(rows) == len(set(rows)) == 2000
    assert len(driver.tables) > 3
    assert max(table.nbytes for table in driver.tables) < 200_000


def test_too_many_buffered_events_are_an_error_that_says_what_to_do_and_changes_nothing() -> None:
    driver = Driver(replace(ONE, bucket_bytes_max=2000))
    driver.batch([events_of([5])], 0)
    before = deepcopy(driver.states)
    with pytest.raises(
        LimitExceeded, match=r"bucket 0 that wait for the watermark use .* the limit is 2,000"
    ) as caught:
        driver.batch([events_of(range(1000), 1)], 0)
    assert "idle_timeout" in caught.value.hint
    assert (driver.states[0].data, driver.states[0].head) == (before[0].data, before[0].head)


def test_dropped_late_events_are_counted() -> None:
    driver = Driver(replace(ONE, late="drop", carry=()))
    driver.batch([events_of([5])], 10)
    assert driver.batch([events_of([1, 2], 1)], 11) == ([[]], [])
    assert (driver.stats[0].late_kept, driver.stats[0].late_dropped) == (0, 2)


def test_times_that_are_not_dates_are_refused() -> None:
    for time in (TIME_MIN_US - 1, TIME_MAX_US + 1):
        with pytest.raises(RequestError, match="before year 1 or after year 9999"):
            prepare_order(ONE, table_of(ONE, events_of([time])), None, 0)


# Who may continue the state.


@pytest.mark.parametrize("other", [replace(ONE, meaning=("other key",)), replace(ONE, buckets=2)])
def test_an_incompatible_plan_does_not_take_over_the_state(other: OrderPlan) -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5])], 1)
    with pytest.raises(RequestError, match="other keys or buckets") as caught:
        next(advance_order(other, 0, driver.states[0], [], 1, 2))
    assert "reset" in caught.value.hint


def test_state_of_a_newer_version_is_refused_with_both_versions() -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5])], 1)
    version, *fields = msgpack.unpackb(driver.states[0].head or b"", strict_map_key=False)
    driver.states[0].head = msgpack.packb([version + 1, *fields])
    with pytest.raises(RequestError, match=rf"newer version of Penstock .format {version + 1}; this version reads"):
        driver.batch([], 2)


def test_a_batch_that_does_not_begin_where_the_state_ends_is_refused() -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5])], 1)
    for before in (None, 0, 2):
        with pytest.raises(RequestError, match="ends at watermark 1"):
            next(advance_order(ONE, 0, driver.states[0], [], before, 3))
    blobs = prepare_order(ONE, table_of(ONE, events_of([7])), 0, 0).partials
    with pytest.raises(RequestError, match="compared with watermark 0"):
        next(advance_order(ONE, 0, driver.states[0], blobs.values(), 1, 3))


def test_a_missing_piece_is_damage() -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5])], 1)
    driver.states[0].data.clear()
    with pytest.raises(Damaged, match="part 0 is missing"):
        driver.batch([], 9)


def test_an_added_column_is_null_in_buffered_events_and_a_removed_one_is_gone() -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5, 6])], 1)
    fields = [field for field in ONE.schema if field.name not in ("text", "stream")]
    driver.plan = replace(
        ONE,
        schema=pa.schema([*fields, pa.field("more", pa.list_(pa.string()))]),
        rows={name: name for name in ("more", "key", "message", "place")},
        ties=("message",),
    )
    rows, _ = driver.batch([events_of([5], 2)], 6)
    assert rows == [[0, 2]]
    assert [row["more"] for table in driver.tables for row in table.to_pylist()] == [None, None]


def test_a_column_of_another_type_is_refused() -> None:
    driver = Driver(ONE)
    driver.batch([events_of([5, 6])], 1)
    number = ONE.schema.get_field_index("text")
    driver.plan = replace(ONE, schema=ONE.schema.set(number, pa.field("text", pa.binary())))
    with pytest.raises(RequestError, match="has the column text as string, not binary") as caught:
        driver.batch([], 9)
    assert "another name" in caught.value.hint


def test_the_fingerprint_of_a_plan_is_the_same_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(PLAN)).fingerprint == PLAN.fingerprint


FIXTURE = Path(__file__).parents[2] / "fixtures" / "windows" / "ordered-1.msgpack"


def test_state_stored_in_format_1_is_continued() -> None:
    """Written by `Driver(ONE)` with the events of times 7, 3, 9 at watermark 5."""
    head, data = msgpack.unpackb(FIXTURE.read_bytes(), strict_map_key=False)
    driver = Driver(ONE)
    driver.states = [DictState(data, head)]
    driver.watermark = 5
    assert driver.batch([events_of([8], 3)], 10)[0] == [[0, 3, 2]]
