"""Pending acknowledgements: the streams that wait for one, and the lag, with a clock that is a number."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.sessions.acks import ENTRIES_MAX, AckLag, WaitingStreams

OFFSETS = st.integers(0, 20)


def test_an_ack_is_due_once_when_its_offset_is_reached() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert waiting.due(0, 9, 100).points == []
    assert waiting.due(1, 99, 100).points == []
    assert waiting
    assert waiting.due(0, 10, 100).points == [(7, 5)]
    assert not waiting
    assert waiting.due(0, inf, 100).points == []


def test_an_ack_below_a_pending_one_is_withheld_and_an_ack_at_it_ends_the_wait() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert not waiting.passes(7, 4)
    assert waiting.passes(8, 0)
    assert waiting.passes(7, 5)
    assert waiting.passes(7, 4)
    assert waiting.due(0, inf, 100).points == []


def test_a_pending_stream_waits_for_the_later_of_two_offsets() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    waiting.add_point(0, 20, stream_id=7, last_id=6)
    assert waiting.due(0, 10, 100).points == []
    assert waiting.due(0, 20, 100).points == [(7, 6)]
    assert not waiting


def test_ends_of_streams_stay_pending_when_their_acks_are_dropped() -> None:
    waiting = WaitingStreams()
    for offset in (30, 10, 20):
        waiting.add_end(0, offset, stream_id=offset)
        waiting.add_point(0, offset, stream_id=offset, last_id=1)
    waiting.keep_ends()
    assert waiting.due(0, 25, 100) == ([], [10, 20], True)
    assert waiting.due(0, inf, 100) == ([], [30], True)
    assert not waiting


@given(st.lists(st.tuples(OFFSETS, st.booleans()), max_size=30), st.lists(OFFSETS), st.integers(1, 5))
def test_every_ack_is_due_eventually_and_none_before_its_offset(
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


def test_nothing_is_pending_at_first_or_after_everything_is_acknowledged() -> None:
    lag = AckLag()
    assert lag.oldest(lambda _: 0) is None
    lag.add(10.0, {0: 100})
    assert lag.oldest(lambda _: 99) == 10.0
    assert lag.oldest(lambda _: 100) is None


def test_messages_are_pending_until_all_their_segments_have_passed() -> None:
    lag = AckLag()
    lag.add(1.0, {0: 100, 1: 50})
    lag.add(2.0, {1: 70})
    assert lag.oldest({0: 100, 1: 49}.__getitem__) == 1.0
    assert lag.oldest({0: 100, 1: 50}.__getitem__) == 2.0


def test_with_many_pending_acks_memory_is_bounded_and_the_oldest_is_approximately_right() -> None:
    lag = AckLag()
    for number in range(1, 100_001):
        lag.add(number * 0.01, {number % 2: number})
        assert len(lag._entries) <= ENTRIES_MAX
    for passed in (0, 1, 50_000, 90_000, 99_000):
        oldest = lag.oldest(lambda _, passed=passed: passed)  # type: ignore[misc]
        assert oldest is not None
        truth = (passed + 1) * 0.01
        assert truth - 2 * 1000 / (ENTRIES_MAX // 2) <= oldest <= truth, "never younger than the truth"


def test_after_a_long_wait_the_lag_is_precise_again() -> None:
    lag = AckLag()
    for number in range(10_000):
        lag.add(number, {0: number})
    assert lag.oldest(lambda _: 9_999) is None
    lag.add(10_000.0, {0: 10_000})
    lag.add(10_000.1, {0: 10_001})
    assert lag.oldest(lambda _: 10_000) == 10_000.1


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.booleans()), max_size=200))
def test_the_reported_oldest_is_never_too_young_and_none_only_if_nothing_is_pending(
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
