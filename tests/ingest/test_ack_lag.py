"""How long the oldest message has waited, with a clock that is a number."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.sessions.acks import ENTRIES_MAX, AckLag


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


def test_after_a_long_wait_short_ones_are_told_apart_again() -> None:
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
