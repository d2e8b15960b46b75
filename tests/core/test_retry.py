"""The retry policy: pauses grow up to the longest, random in the part that the jitter says, from the first one again
after a success.
"""

from collections.abc import Iterator

import pytest

from penstock.core.retry import Pauses, RetryPolicy

POLICY = RetryPolicy(first_seconds=0.1, max_seconds=1.0)


def longest(low: float, high: float) -> float:
    assert low <= high
    return high


def test_pauses_grow_up_to_the_longest() -> None:
    assert [POLICY.pause(failures, longest) for failures in (1, 2, 3, 4, 5, 10_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(("jitter", "shortest"), [(0.0, 0.1), (0.5, 0.05), (1.0, 0.0)])
def test_the_jitter_is_the_random_part_of_a_pause(jitter: float, shortest: float) -> None:
    policy = RetryPolicy(0.1, 1.0, jitter=jitter)
    assert policy.pause(1, lambda low, _: low) == pytest.approx(shortest)
    assert all(shortest <= policy.pause(1) <= 0.1 for _ in range(100))


def test_after_a_success_the_first_pause_comes_again() -> None:
    pauses = Pauses(POLICY, longest)
    assert [pauses.next(), pauses.next()] == [0.1, 0.2]
    pauses.reset()
    assert (pauses.next(), pauses.failures) == (0.1, 1)


def fail(errors: Iterator[Exception], policy: RetryPolicy, seconds_max: float) -> None:
    for attempt in policy.retrying(seconds_max, ConnectionError):
        with attempt:
            raise next(errors)


def test_a_loop_raises_the_last_error_when_its_time_is_up() -> None:
    with pytest.raises(ConnectionError, match="the first"):
        fail(iter([ConnectionError("the first")]), POLICY, 0.0)


def test_a_loop_does_not_retry_other_errors() -> None:
    with pytest.raises(ValueError, match="the second"):
        fail(iter([ConnectionError("the first"), ValueError("the second")]), RetryPolicy(0.001, 0.001), 60.0)


async def test_the_asyncio_loop_retries_too() -> None:
    tries = 0
    async for attempt in RetryPolicy(0.001, 0.001).async_retrying(60.0, ConnectionError):
        with attempt:
            tries += 1
            if tries < 3:
                raise ConnectionError
    assert tries == 3
