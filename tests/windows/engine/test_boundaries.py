"""At the boundaries: which window an event belongs to, when a window fires, when it is purged, what is late."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import RequestError
from penstock.windows.aggregates import Count
from penstock.windows.engine import Plan
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Late, LateRule, Session, Sliding, Tumbling, Window
from tests.windows.engine.driving import Driver

MINUTE = 60_000_000


def driver(window: Window, lateness: int = 0, rule: LateRule = "window", late: Late = "keep") -> Driver:
    schema = pa.schema({"key": pa.string(), "number": pa.int64()})
    return Driver(
        Plan(
            window=window,
            keys=("key",),
            aggregates={"n": Count()},
            schema=schema,
            buckets=2,
            carry=("number",),
            lateness_us=lateness,
            late=late,
            late_rule=rule,
        )
    )


def epoch(
    driver: Driver, times: list[int], after: int | None, key: str = "k"
) -> tuple[list[tuple[Any, ...]], list[int]]:
    """(start, end, pane, revision, n) of each pane, and the times of late events."""
    panes, late = driver.batch([[{"t": time, "key": key, "number": time} for time in times]], after)
    names = ("window_start", "window_end", "pane", "revision", "n")
    return sorted(tuple(pane[name] for name in names) for pane in panes), sorted(row["t"] for row in late)


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    panes, _ = epoch(driver(Tumbling(size_us=MINUTE)), [0, MINUTE - 1, MINUTE, -1], 2 * MINUTE)
    assert panes == [
        (-MINUTE, 0, "on_time", 0, 1),
        (0, MINUTE, "on_time", 0, 2),
        (MINUTE, 2 * MINUTE, "on_time", 0, 1),
    ]


def test_a_window_fires_when_the_watermark_reaches_its_end_and_not_before() -> None:
    windows = driver(Tumbling(size_us=MINUTE))
    assert epoch(windows, [5], MINUTE - 1) == ([], [])
    assert epoch(windows, [], MINUTE) == ([(0, MINUTE, "on_time", 0, 1)], [])
    assert epoch(windows, [], MINUTE) == ([], [])


def test_an_unknown_watermark_fires_nothing_and_makes_nothing_late() -> None:
    windows = driver(Tumbling(size_us=10))
    assert epoch(windows, [TIME_MIN_US + 10, 0], None) == ([], [])
    assert epoch(windows, [-5], None) == ([], [])
    assert len(epoch(windows, [], 10)[0]) == 3


def test_without_lateness_an_event_is_late_once_the_watermark_has_reached_its_windows_end() -> None:
    windows = driver(Tumbling(size_us=10))
    epoch(windows, [], 9)
    assert epoch(windows, [3], 10) == ([(0, 10, "on_time", 0, 1)], [])
    assert epoch(windows, [9], 10) == ([], [9])
    assert epoch(windows, [10], 20) == ([(10, 20, "on_time", 0, 1)], [])


def test_an_event_behind_the_watermark_counts_while_its_window_is_open() -> None:
    windows = driver(Tumbling(size_us=10))
    epoch(windows, [], 9)
    assert epoch(windows, [0], 9) == ([], [])


def test_with_the_strict_rule_an_event_behind_the_watermark_is_late_and_one_at_it_is_not() -> None:
    windows = driver(Tumbling(size_us=10), rule="strict")
    epoch(windows, [], 5)
    assert epoch(windows, [4, 5], 10) == ([(0, 10, "on_time", 0, 1)], [4])


def test_with_the_strict_rule_an_event_behind_the_watermark_is_late_even_if_it_would_join_a_session() -> None:
    windows = driver(Session(gap_us=10), rule="strict")
    epoch(windows, [5], 6)
    assert epoch(windows, [5, 6], 20) == ([(5, 16, "on_time", 0, 2)], [5])


def test_the_strict_rule_with_lateness_is_refused() -> None:
    with pytest.raises(RequestError, match="nothing for allowed_lateness"):
        driver(Tumbling(size_us=10), 1, "strict")


def test_a_window_is_open_until_the_watermark_reaches_its_end_plus_lateness() -> None:
    windows = driver(Tumbling(size_us=10), 5)
    assert epoch(windows, [1], 10) == ([(0, 10, "on_time", 0, 1)], [])
    assert epoch(windows, [2], 14) == ([(0, 10, "update", 1, 2)], [])
    assert epoch(windows, [3], 15) == ([(0, 10, "update", 2, 3)], [])
    assert windows.stats[0].keys + windows.stats[1].keys == 0
    assert epoch(windows, [4], 15) == ([], [4])


def test_the_first_pane_of_a_key_seen_after_the_firing_is_an_update() -> None:
    windows = driver(Tumbling(size_us=10), 5)
    epoch(windows, [1], 12, key="a")
    assert epoch(windows, [1], 12, key="b") == ([(0, 10, "update", 1, 1)], [])
    assert epoch(windows, [1], 12, key="b") == ([(0, 10, "update", 2, 2)], [])
    assert epoch(windows, [1], 12, key="a") == ([(0, 10, "update", 1, 2)], [])


def test_an_update_emits_only_keys_that_changed() -> None:
    windows = driver(Tumbling(size_us=10), 5)
    for key in ("a", "b", "c"):
        epoch(windows, [1], None, key=key)
    assert len(epoch(windows, [], 12)[0]) == 3
    assert len(epoch(windows, [1], 12, key="b")[0]) == 1


def test_a_window_that_opens_and_closes_in_one_batch_fires_once_and_leaves_no_state() -> None:
    windows = driver(Tumbling(size_us=10))
    assert epoch(windows, [1], 1000) == ([(0, 10, "on_time", 0, 1)], [])
    assert all(not state.data and not state.puts for state in windows.states)


def test_times_before_1970_and_offsets_give_aligned_windows() -> None:
    panes, _ = epoch(driver(Tumbling(size_us=10, offset_us=3)), [-8, -7, 2, 3], 100)
    assert [(start, end, n) for start, end, _, _, n in panes] == [(-17, -7, 1), (-7, 3, 2), (3, 13, 1)]
    panes, _ = epoch(driver(Tumbling(size_us=10, offset_us=-27)), [-8, -7, 2, 3], 100)
    assert [(start, end, n) for start, end, _, _, n in panes] == [(-17, -7, 1), (-7, 3, 2), (3, 13, 1)]


def test_the_lowest_and_the_highest_event_time_have_windows() -> None:
    panes, _ = epoch(driver(Tumbling(size_us=86_400_000_000)), [TIME_MIN_US, TIME_MAX_US], TIME_MAX_US + 1)
    assert [n for *_, n in panes] == [1, 1]


@pytest.mark.parametrize("time", [TIME_MIN_US - 1, TIME_MAX_US + 1])
def test_times_outside_the_range_of_dates_are_refused(time: int) -> None:
    with pytest.raises(RequestError, match="year"):
        epoch(driver(Tumbling(size_us=10)), [time], None)


def test_a_closed_sliding_window_gets_no_event_that_its_open_windows_get() -> None:
    windows = driver(Sliding(size_us=10, slide_us=5))
    epoch(windows, [], 10)
    assert epoch(windows, [7, 4], 15) == ([(5, 15, "on_time", 0, 1)], [4])


def test_with_slides_that_do_not_divide_the_size_events_go_to_every_window_that_contains_them() -> None:
    panes, _ = epoch(driver(Sliding(size_us=10, slide_us=4, offset_us=1)), [0, 1, 10, 11], 100)
    assert [(start, end, n) for start, end, _, _, n in panes] == [
        (-7, 3, 2),
        (-3, 7, 2),
        (1, 11, 2),
        (5, 15, 2),
        (9, 19, 2),
    ]


def test_adjacent_sessions_stay_separate() -> None:
    assert epoch(driver(Session(gap_us=10)), [0, 10], 100)[0] == [(0, 10, "on_time", 0, 1), (10, 20, "on_time", 0, 1)]
    assert epoch(driver(Session(gap_us=10)), [0, 9], 100)[0] == [(0, 19, "on_time", 0, 2)]
    windows = driver(Session(gap_us=10))
    epoch(windows, [0], None)
    assert epoch(windows, [10], 100)[0] == [(0, 10, "on_time", 0, 1), (10, 20, "on_time", 0, 1)]
    windows = driver(Session(gap_us=10))
    epoch(windows, [0], None)
    assert epoch(windows, [9], 100)[0] == [(0, 19, "on_time", 0, 2)]


def test_a_single_event_is_late_if_its_session_would_be_closed() -> None:
    windows = driver(Session(gap_us=10), 5)
    epoch(windows, [], 15)
    assert epoch(windows, [0, 1], 15, key="a") == ([(0, 11, "update", 1, 2)], [])
    assert epoch(windows, [0], 15, key="b") == ([], [0])
    assert epoch(windows, [1], 15, key="c") == ([(1, 11, "update", 1, 1)], [])


def test_an_old_event_that_joins_an_open_session_is_not_late() -> None:
    windows = driver(Session(gap_us=10))
    epoch(windows, [9], 12)
    assert epoch(windows, [0], 19) == ([(0, 19, "on_time", 0, 2)], [])


def test_an_old_event_adjacent_to_an_open_session_is_late() -> None:
    windows = driver(Session(gap_us=10))
    epoch(windows, [10], 12)
    assert epoch(windows, [0], 20) == ([(10, 20, "on_time", 0, 1)], [0])


def test_late_events_that_are_dropped_are_counted() -> None:
    for window in (Tumbling(size_us=10), Session(gap_us=10)):
        windows = driver(window, late="drop")
        epoch(windows, [], 100)
        assert epoch(windows, [0, 1, 105], 100) == ([], [])
        assert sum(each.late_dropped for each in windows.stats) == 2
        assert sum(each.late_kept for each in windows.stats) == 0


@pytest.mark.parametrize(
    "window", [Tumbling(size_us=MINUTE), Sliding(size_us=MINUTE, slide_us=MINUTE // 7), Session(gap_us=5)]
)
@pytest.mark.parametrize(("lateness", "rule"), [(0, "window"), (MINUTE, "window"), (0, "strict")])
def test_the_end_of_time_closes_even_windows_that_end_after_it(window: Window, lateness: int, rule: LateRule) -> None:
    """When all sources have ended, no window waits any more, and later events are late."""
    windows = driver(window, lateness, rule)
    panes, late = epoch(windows, [0, TIME_MAX_US], TIME_MAX_US)
    assert max(end for _, end, *_ in panes) > TIME_MAX_US
    assert {pane for _, _, pane, *_ in panes} == {"on_time"}
    assert (late, sum(each.keys for each in windows.stats)) == ([], 0)
    assert epoch(windows, [TIME_MAX_US, 3], TIME_MAX_US) == ([], [3, TIME_MAX_US])
