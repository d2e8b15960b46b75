"""Sessions merge, late ones too, and report which panes they replace."""

from typing import Any

import pyarrow as pa

from penstock.windows.aggregates import Count
from penstock.windows.engine import Plan
from penstock.windows.kinds import Session
from tests.windows.engine.driving import Driver

GAP = 10


def driver(lateness: int = 0, gap: int = GAP) -> Driver:
    schema = pa.schema({"key": pa.string(), "number": pa.int64()})
    keys, counts = ("key",), {"n": Count()}
    window = Session(gap_us=gap)
    return Driver(Plan(window=window, keys=keys, aggregates=counts, schema=schema, buckets=1, lateness_us=lateness))


def epoch(driver: Driver, times: list[int], after: int | None, key: str = "k") -> list[tuple[Any, ...]]:
    """(start, end, revision, n, replaced bounds) of each pane. Checks that exactly revision 0 is on time."""
    panes, _ = driver.batch([[{"t": time, "key": key, "number": time}] for time in times], after)
    assert all((pane["pane"] == "on_time") == (pane["revision"] == 0) for pane in panes)
    return sorted(
        (pane["window_start"], pane["window_end"], pane["revision"], pane["n"], [*map(_bounds, pane["replaces"])])
        for pane in panes
    )


def _bounds(pane: dict[str, int]) -> tuple[int, int]:
    return pane["window_start"], pane["window_end"]


def test_an_event_between_two_sessions_merges_them() -> None:
    windows = driver()
    epoch(windows, [0, 15], None)
    assert epoch(windows, [8], 100) == [(0, 25, 0, 3, [])]


def test_a_late_event_that_joins_two_panes_replaces_both() -> None:
    windows = driver(lateness=50)
    assert epoch(windows, [0, 15], 30) == [(0, 10, 0, 1, []), (15, 25, 0, 1, [])]
    assert epoch(windows, [8], 30) == [(0, 25, 1, 3, [(0, 10), (15, 25)])]
    assert epoch(windows, [8], 30) == [(0, 25, 2, 4, [])]


def test_an_update_within_the_bounds_replaces_no_other_pane() -> None:
    windows = driver(lateness=50)
    epoch(windows, [0, 5], 30)
    assert epoch(windows, [3], 30) == [(0, 15, 1, 3, [])]


def test_a_pane_extended_beyond_the_watermark_is_replaced_when_the_watermark_reaches_its_new_end() -> None:
    windows = driver(lateness=50)
    assert epoch(windows, [0], 12) == [(0, 10, 0, 1, [])]
    assert epoch(windows, [9], 12) == []
    assert epoch(windows, [], 18) == []
    assert epoch(windows, [], 19) == [(0, 19, 1, 2, [(0, 10)])]
    assert epoch(windows, [], 40) == []


def test_panes_to_be_replaced_are_remembered_when_sessions_merge_again() -> None:
    windows = driver(lateness=50)
    assert epoch(windows, [0], 12) == [(0, 10, 0, 1, [])]
    assert epoch(windows, [9], 12) == []
    assert epoch(windows, [18], 12) == []
    assert epoch(windows, [-9], 100) == [(-9, 28, 1, 4, [(0, 10)])]


def test_the_revision_of_a_merged_session_is_higher_than_those_of_its_parts() -> None:
    windows = driver(lateness=50)
    epoch(windows, [0], 25)
    assert epoch(windows, [0], 25) == [(0, 10, 1, 2, [])]
    assert epoch(windows, [0], 25) == [(0, 10, 2, 3, [])]
    assert epoch(windows, [15], 25) == [(15, 25, 1, 1, [])]
    assert epoch(windows, [7], 25) == [(0, 25, 3, 5, [(0, 10), (15, 25)])]


def test_a_session_keeps_its_revision_when_its_neighbour_changes() -> None:
    windows = driver(lateness=50)
    epoch(windows, [0], 25, key="a")
    assert epoch(windows, [0], 25, key="b") == [(0, 10, 1, 1, [])]
    assert epoch(windows, [0], 25, key="b") == [(0, 10, 2, 2, [])]
    assert epoch(windows, [0], 25, key="a") == [(0, 10, 1, 2, [])]


def test_an_event_inside_a_session_does_not_shorten_it() -> None:
    windows = driver()
    epoch(windows, [0, 5, 10, 15], None)
    assert epoch(windows, [1, 24], 100) == [(0, 34, 0, 6, [])]


def test_keys_do_not_share_sessions() -> None:
    windows = driver()
    epoch(windows, [0], None, key="a")
    assert epoch(windows, [5], 100, key="b") == [(0, 10, 0, 1, []), (5, 15, 0, 1, [])]


def test_sessions_are_purged_when_they_can_no_longer_change() -> None:
    windows = driver(lateness=20)
    epoch(windows, [0], 29)
    assert windows.stats[0].open_windows == 1
    epoch(windows, [], 30)
    assert windows.stats[0].open_windows == 0
    assert not windows.states[0].data


def test_sessions_far_from_new_events_are_neither_read_nor_written() -> None:
    minute = 60_000_000
    windows = driver(lateness=1000 * minute)
    for start in range(0, 500 * minute, 10 * minute):
        epoch(windows, [start], start)
    state = windows.states[0]
    state.puts.clear()
    epoch(windows, [500 * minute], 500 * minute)
    assert len(state.data) > 5
    assert len(state.puts) == 1


def test_closed_sessions_stay_closed_while_neighbours_share_their_blob() -> None:
    windows = driver(gap=100)
    epoch(windows, [0], None, key="a")
    epoch(windows, [50], None, key="b")
    assert epoch(windows, [], 100) == [(0, 100, 0, 1, [])]
    assert epoch(windows, [99], 100, key="a") == []
    assert epoch(windows, [], 200) == [(50, 150, 0, 1, []), (99, 199, 0, 1, [])]


def test_a_long_session_is_found_behind_a_short_one_that_starts_later() -> None:
    second = 1_000_000
    windows = driver(gap=10 * second)
    epoch(windows, [60 * second], None, key="a")
    chain = [{"t": time * second, "key": "a", "number": 0} for time in range(0, 181, 9)]
    windows.batch([[*chain, {"t": 20 * second, "key": "b", "number": 0}]], None)
    assert epoch(windows, [], 80 * second) == [(20 * second, 30 * second, 0, 1, [])]
    assert epoch(windows, [], 999 * second) == [(0, 190 * second, 0, 22, [])]
