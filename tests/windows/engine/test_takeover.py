"""A changed plan takes over the state of the previous one: aggregates are added and removed, lateness changes."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.takeover import StoredAggregate, matched
from penstock.windows.aggregates import Aggregate, Collect, Count, First, Max, Sum
from penstock.windows.engine import Plan, advance
from penstock.windows.kinds import Session, Sliding, Tumbling, Window
from tests.windows.engine.driving import DictState, Driver, split

FIXTURE = Path(__file__).parents[2] / "fixtures" / "windows" / "state-1.msgpack"
"""States of format 1, as the version before format 2 wrote them; see `plan_of_fixture`."""

WINDOWS = [Tumbling(size_us=10), Sliding(size_us=10, slide_us=4), Session(gap_us=6)]
OLD: dict[str, Aggregate] = {"n": Count()}
ADDED: dict[str, Aggregate] = {
    "total": Sum(("value",)),
    "first": First(("value", "t")),
    "all": Collect(("value", "t"), 100),
}


def plan(window: Window, aggregates: dict[str, Aggregate], lateness_us: int = 20) -> Plan:
    return Plan(
        window=window,
        keys=("key",),
        aggregates=aggregates,
        schema=pa.schema({"key": pa.string(), "value": pa.int64()}),
        buckets=2,
        lateness_us=lateness_us,
    )


def row(time: int, key: str = "k", value: int = 1) -> dict[str, Any]:
    return {"t": time, "key": key, "value": value}


def results(panes: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(pane[name] for name in ("window_start", "revision", *names)) for pane in panes]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
@pytest.mark.parametrize("seed", range(10))
def test_an_added_aggregate_is_exact_or_null_and_the_others_are_unchanged(window: Window, seed: int) -> None:
    """Null where the key had events in the window before the change. Compared with windows that had the aggregate from
    the start, and with windows that started at the change.
    """
    rng = random.Random(seed)
    changed = plan(window, {"total": ADDED["total"], **OLD, **ADDED})
    one, whole, since = Driver(plan(window, OLD)), Driver(changed), Driver(changed)
    watermark, change_at = 0, rng.randrange(1, 8)
    for number in range(12):
        rows = [row(watermark + rng.randrange(-25, 15), rng.choice("abc"), rng.randrange(9)) for _ in range(6)]
        tasks = split(rows, 2, rng)
        if number == change_at:
            one.plan, since.watermark = changed, watermark
        watermark += rng.randrange(0, 9)
        panes, late = one.batch(tasks, watermark)
        expected, expected_late = whole.batch(tasks, watermark)
        if number < change_at:
            expected = [{name: pane[name] for name in pane if name not in ADDED} for pane in expected]
        else:
            counts = {(pane["key"], pane["window_start"]): pane["n"] for pane in since.batch(tasks, watermark)[0]}
            is_new = [counts.get((pane["key"], pane["window_start"])) == pane["n"] for pane in expected]
            expected = [
                pane if new else pane | dict.fromkeys(ADDED) for pane, new in zip(expected, is_new, strict=True)
            ]
        assert sorted(panes, key=repr_of) == sorted(expected, key=repr_of)
        assert sorted(late, key=repr_of) == sorted(expected_late, key=repr_of)


def repr_of(row: dict[str, Any]) -> str:
    return repr(sorted(row.items(), key=str))


def test_an_added_aggregate_is_null_for_keys_with_earlier_events_and_has_a_result_for_new_keys() -> None:
    driver = Driver(plan(Tumbling(size_us=10), OLD))
    driver.batch([[row(0, "a"), row(11, "a")]], 5)
    driver.plan = plan(Tumbling(size_us=10), {**OLD, "total": Sum(("value",))})
    panes, _ = driver.batch([[row(1, "a", 5), row(2, "b", 6), row(21, "a", 7)]], 40)
    assert sorted((pane["key"], pane["window_start"], pane["n"], pane["total"]) for pane in panes) == [
        ("a", 0, 2, None),
        ("a", 10, 1, None),
        ("a", 20, 1, 7),
        ("b", 0, 1, 6),
    ]


def test_a_removed_aggregate_loses_its_state_and_is_null_when_it_is_added_again() -> None:
    window = Tumbling(size_us=10)
    driver = Driver(plan(window, {"total": Sum(("value",)), **OLD}))
    driver.batch([[row(0, value=5)]], 5)
    driver.plan = plan(window, OLD)
    panes, _ = driver.batch([[row(1)]], 12)
    assert results(panes, "n") == [(0, 0, 2)]
    driver.plan = plan(window, {**OLD, "total": Sum(("value",))})
    panes, _ = driver.batch([[row(2, value=7), row(13, value=8)]], 25)
    assert sorted(results(panes, "n", "total")) == [(0, 1, 3, None), (10, 0, 1, 8)]


def test_a_renamed_aggregate_keeps_its_state() -> None:
    driver = Driver(plan(Tumbling(size_us=10), OLD))
    driver.batch([[row(0)]], 5)
    driver.plan = plan(Tumbling(size_us=10), {"count": Count(), "most": Max(("value",))})
    panes, _ = driver.batch([[row(1)]], 12)
    assert results(panes, "count", "most") == [(0, 0, 2, None)]


def test_aggregates_are_matched_by_name_then_by_what_they_compute() -> None:
    a, b, other = StoredAggregate("a", "sum(…)"), StoredAggregate("b", "sum(…)"), StoredAggregate("b", "max(v)")
    assert matched([a, b], [b, a]).places == (1, 0)
    assert matched([a], [StoredAggregate("new", "sum(…)"), a]).places == (None, 0)
    assert matched([b], [a]).places == (0,)
    assert matched([a, b], [a]).removed == (b,)
    assert matched([a, b], [a, other]).changed == ((b, other),)


@pytest.mark.parametrize("window", [Tumbling(size_us=10), Sliding(size_us=10, slide_us=5)])
def test_with_more_lateness_purged_windows_stay_closed_and_the_others_stay_open_longer(window: Window) -> None:
    driver = Driver(plan(window, OLD, lateness_us=10))
    driver.batch([[row(3), row(13), row(23)]], 25)
    # Windows that end at 15 or earlier are purged; the next ones end at 20.
    driver.plan = replace(plan(window, OLD, lateness_us=30), closed_to_us=15)
    panes, late = driver.batch([[row(3), row(14)]], 45)
    assert [each["t"] for each in late] == [3]
    assert (10, 1, 2) in results(panes, "n")
    # With a lateness of 10 it would be closed.
    panes, late = driver.batch([[row(4), row(15)]], 46)
    assert [each["t"] for each in late] == [4]
    assert (10, 2, 3) in results(panes, "n")
    # From here on, only the lateness decides.
    panes, late = driver.batch([[row(24)]], 61)
    assert not late
    panes, late = driver.batch([[row(16), row(31)]], 62)
    assert [each["t"] for each in late] == [16]


def test_sessions_with_a_changed_lateness_keep_their_state_in_other_blobs() -> None:
    minute = 60_000_000
    driver = Driver(plan(Session(gap_us=minute), OLD, lateness_us=0))
    driver.batch([[row(number * minute, key) for number in range(0, 90, 3) for key in "ab"]], 0)
    driver.plan = replace(plan(Session(gap_us=minute), OLD, lateness_us=60 * 24 * minute), closed_to_us=0)
    panes, late = driver.batch([[row(number * minute + 1, "a") for number in range(0, 90, 3)]], 91 * minute)
    assert not late
    assert sorted((pane["key"], pane["n"]) for pane in panes) == [("a", 2)] * 30 + [("b", 1)] * 30
    driver.plan = plan(Session(gap_us=minute), OLD, lateness_us=0)
    panes, late = driver.batch([[row(0, "a"), row(90 * minute + 2, "a")]], 200 * minute)
    assert (len(late), [pane["n"] for pane in panes]) == (1, [1])
    assert not any(state.data for state in driver.states)


def test_a_longer_lateness_is_refused_if_it_is_unknown_what_was_purged() -> None:
    driver = Driver(plan(Tumbling(size_us=10), OLD, lateness_us=10))
    driver.batch([[row(3)]], 25)
    driver.plan = plan(Tumbling(size_us=10), OLD, lateness_us=30)
    with pytest.raises(RequestError, match="allowed lateness is longer"):
        driver.batch([[row(4)]], 30)


def test_with_less_lateness_windows_close_at_once() -> None:
    driver = Driver(plan(Tumbling(size_us=10), OLD, lateness_us=30))
    driver.batch([[row(3), row(33)]], 25)
    driver.plan = plan(Tumbling(size_us=10), OLD, lateness_us=0)
    panes, late = driver.batch([[row(4), row(34)]], 26)
    assert (results(panes, "n"), [each["t"] for each in late]) == ([], [4])
    assert driver.batch([], 40)[0][0]["n"] == 2


def test_an_uncommitted_batch_with_a_new_plan_leaves_no_trace() -> None:
    driver = Driver(plan(Tumbling(size_us=10), OLD))
    driver.batch([[row(0), row(11)]], 5)
    old, new = driver.plan, plan(Tumbling(size_us=10), {**OLD, "total": Sum(("value",))})
    driver.plan = new
    driver.crash([[row(1)]], 12)
    driver.plan = old
    panes, _ = driver.batch([[row(1)]], 12)
    assert results(panes, "n") == [(0, 0, 2)]
    driver.plan = new
    panes, _ = driver.batch([[row(12)]], 25)
    assert results(panes, "n", "total") == [(10, 0, 2, None)]


def plan_of_fixture(window: Window, **changes: Any) -> Plan:
    plan = Plan(
        window=window,
        keys=("k0",),
        aggregates={"r0": Count(), "r1": Sum(("v0",))},
        schema=pa.schema({"k0": pa.string(), "v0": pa.int64()}),
        buckets=1,
        lateness_us=20,
        meaning=("event_time", ["key"]),
        measures=(("n", ()), ("total", ("value",))),
    )
    return replace(plan, **changes)


@pytest.mark.parametrize(
    ("name", "window"), [("tumbling", Tumbling(size_us=10)), ("session", Session(gap_us=10))], ids=str
)
def test_state_of_format_1_is_continued_by_the_same_plan_and_can_be_taken_over_later(name: str, window: Window) -> None:
    stored = msgpack.unpackb(FIXTURE.read_bytes(), strict_map_key=False)[name]
    state = DictState(dict(stored["blobs"]), stored["index"])
    added = {"r0": Count(), "r1": Sum(("v0",)), "r2": Max(("v0",))}
    measures = (("n", ()), ("total", ("value",)), ("most", ("value",)))
    changed = plan_of_fixture(window, aggregates=added, measures=measures)
    with pytest.raises(RequestError, match="other windows, keys or aggregates"):
        advance(changed, 0, state, [], 12, 12)
    advance(plan_of_fixture(window), 0, state, [], 12, 12)
    panes = advance(changed, 0, state, [], 12, 31).panes.to_pylist()
    found = {(pane["k0"], pane["r0"], pane["r1"], pane["r2"]) for pane in panes}
    assert found == {("a", 1, 7, None)} | ({("b", 1, 1, None)} if name == "session" else set())
