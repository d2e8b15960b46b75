"""Acknowledgements that wait: streams against a list of them, and the lag with a clock that is a number."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.sessions.acks import ENTRIES_MAX, AckLag, WaitingStreams

OFFSETS = st.integers(0, 20)


def test_a_point_is_due_once_at_its_offset() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert waiting.due(0, 9, 100).points == []
    assert waiting.due(1, 99, 100).points == []
    assert waiting
    assert waiting.due(0, 10, 100).points == [(7, 5)]
    assert not waiting
    assert waiting.due(0, inf, 100).points == []


def test_what_is_below_a_point_does_not_pass_and_what_is_not_ends_the_waiting() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert not waiting.passes(7, 4)
    assert waiting.passes(8, 0)
    assert waiting.passes(7, 5)
    assert waiting.passes(7, 4)
    assert waiting.due(0, inf, 100).points == []


def test_a_stream_that_waits_already_waits_for_the_later_offset() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    waiting.add_point(0, 20, stream_id=7, last_id=6)
    assert waiting.due(0, 10, 100).points == []
    assert waiting.due(0, 20, 100).points == [(7, 6)]
    assert not waiting


def test_ends_stay_when_points_are_forgotten() -> None:
    waiting = WaitingStreams()
    for offset in (30, 10, 20):
        waiting.add_end(0, offset, stream_id=offset)
        waiting.add_point(0, offset, stream_id=offset, last_id=1)
    waiting.keep_ends()
    assert waiting.due(0, 25, 100) == ([], [10, 20], True)
    assert waiting.due(0, inf, 100) == ([], [30], True)
    assert not waiting


@given(st.lists(st.tuples(OFFSETS, st.booleans()), max_size=30), st.lists(OFFSETS), st.integers(1, 5))
def test_everything_is_due_in_the_end_and_nothing_before_its_offset(
    entries: list[tuple[int, bool]], releases: list[int], limit: int
) -> None:
    waiting = WaitingStreams()
    for stream_id, (offset, is_end) in enumerate(entries):
        if is_end:
            waiting.add_end(0, offset, stream_id)
        else:
            waiting.add_point(0, offset, stream_id, last_id=1)
    taken: set[int] = set()
    for passed in [*sorted(releases), inf]:
        while True:
            points, ends, is_all = waiting.due(0, passed, limit)
            assert len(points) + len(ends) <= limit
            taken |= {stream_id for stream_id, _ in points} | set(ends)
            if is_all:
                break
        assert taken == {stream_id for stream_id, (offset, _) in enumerate(entries) if offset <= passed}


# The lag.


def test_nothing_waits_at_first_and_when_all_is_acknowledged() -> None:
    lag = AckLag()
    assert lag.oldest(lambda _: 0) is None
    lag.add(10.0, {0: 100})
    assert lag.oldest(lambda _: 99) == 10.0
    assert lag.oldest(lambda _: 100) is None


def test_messages_wait_for_all_the_segments_they_went_to() -> None:
    lag = AckLag()
    lag.add(1.0, {0: 100, 1: 50})
    lag.add(2.0, {1: 70})
    assert lag.oldest({0: 100, 1: 49}.__getitem__) == 1.0
    assert lag.oldest({0: 100, 1: 50}.__getitem__) == 2.0


def test_however_many_wait_the_memory_is_bounded_and_the_oldest_is_nearly_right() -> None:
    lag = AckLag()
    for number in range(1, 100_001):
        lag.add(number * 0.01, {number % 2: number})
        assert len(lag._entries) <= ENTRIES_MAX
    for passed in (0, 1, 50_000, 90_000, 99_000):
        oldest = lag.oldest(lambda _, passed=passed: passed)  # type: ignore[misc]
        assert oldest is not None
        truth = (passed + 1) * 0.01
        assert truth - 2 * 1000 / (ENTRIES_MAX // 2) <= oldest <= truth, "never younger than the truth"


def test_after_a_long_wait_short_ones_are_distinguished_again() -> None:
    lag = AckLag()
    for number in range(10_000):
        lag.add(number, {0: number})
    assert lag.oldest(lambda _: 9_999) is None
    lag.add(10_000.0, {0: 10_000})
    lag.add(10_000.1, {0: 10_001})
    assert lag.oldest(lambda _: 10_000) == 10_000.1


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.booleans()), max_size=200))
def test_the_oldest_is_never_younger_than_the_truth_and_none_only_when_nothing_waits(
    steps: list[tuple[float, int, bool]],
) -> None:
    lag, now, end, passed = AckLag(), 0.0, 0, 0
    waiting: list[tuple[float, int]] = []
    for pause, route, releases in steps:
        now += pause
        end += 10
        lag.add(now, {route: end})
        waiting.append((now, end))
        if releases:
            passed = end - 25
            waiting = [entry for entry in waiting if entry[1] > passed]
            oldest = lag.oldest(lambda _, passed=passed: passed)  # type: ignore[misc]
            assert oldest is not None
            assert oldest <= waiting[0][0]
    assert lag.oldest(lambda _: end) is None
