"""A failed query is restarted after growing pauses, a limited number of times; the count is reset by progress."""

from itertools import pairwise

from penstock.spark.run.attempt import RestartPolicy, Restarts

POLICY = RestartPolicy(restarts_max=4, pause_seconds_first=1, pause_seconds_max=5, healthy_seconds=60)


def pauses(healthy_for: list[float], *, is_outage: bool = False) -> list[float | None]:
    restarts, found = Restarts(), []
    for seconds in healthy_for:
        restarts, pause = restarts.after_failure(seconds, POLICY, is_outage=is_outage)
        found.append(pause)
    return found


def test_each_pause_is_twice_the_one_before_up_to_a_limit() -> None:
    assert pauses([0, 0, 0, 0]) == [1, 2, 4, 5]


def test_after_the_maximum_of_failures_in_a_row_there_is_no_restart() -> None:
    assert pauses([0, 0, 0, 0, 59.9]) == [1, 2, 4, 5, None]


def test_an_outage_is_retried_forever_at_growing_intervals() -> None:
    assert pauses([0] * 100, is_outage=True) == [1, 2, 4] + [5] * 97


def test_an_outage_does_not_use_up_the_restarts_of_other_failures() -> None:
    restarts = Restarts()
    for _ in range(100):
        restarts, _ = restarts.after_failure(0, POLICY, is_outage=True)
    for _ in range(POLICY.restarts_max):
        restarts, pause = restarts.after_failure(0, POLICY)
        assert pause == POLICY.pause_seconds_max
    assert restarts.after_failure(0, POLICY)[1] is None
    assert restarts.after_failure(0, POLICY, is_outage=True)[1] is not None


def test_progress_for_a_while_resets_the_count() -> None:
    assert pauses([0, 0, 60, 0]) == [1, 2, 1, 2]
    assert pauses([0, 0, 0, 0, 61]) == [1, 2, 4, 5, 1]


def test_the_usual_policy_waits_about_a_minute_in_all() -> None:
    policy, restarts, waited = RestartPolicy(), Restarts(), []
    while True:
        restarts, pause = restarts.after_failure(0, policy)
        if pause is None:
            break
        waited.append(pause)
    assert len(waited) == policy.restarts_max
    assert all(a <= b for a, b in pairwise(waited))
    assert 30 <= sum(waited) <= 120
