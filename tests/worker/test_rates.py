"""Rates over a short time, from counters."""

from penstock.worker.flow import SAMPLES_MAX, WINDOW_SECONDS, Key, Rates

EVENTS: Key = ("source", "shops", "events")


class Counted:
    """Counters and a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.counts: dict[Key, int] = {EVENTS: 0}
        self.rates = Rates(lambda: dict(self.counts), lambda: self.now)

    def pass_seconds(self, seconds: int, events: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.counts[EVENTS] += events
            self.rates.sample()


def test_a_rate_is_over_the_window_alone() -> None:
    counted = Counted()
    counted.pass_seconds(100, events=1000)
    counted.pass_seconds(SAMPLES_MAX, events=7)
    assert counted.rates.seconds == WINDOW_SECONDS
    assert counted.rates.per_second() == {EVENTS: 7.0}


def test_it_counts_what_came_after_the_last_sample() -> None:
    counted = Counted()
    counted.pass_seconds(4, events=10)
    counted.now, counted.counts[EVENTS] = 4.5, 45
    assert counted.rates.per_second() == {EVENTS: 10.0}


def test_a_counter_that_is_new_began_at_zero_and_one_that_is_gone_has_no_rate() -> None:
    counted = Counted()
    counted.pass_seconds(4, events=10)
    counted.counts = {("source", "new", "events"): 8}
    assert counted.rates.per_second() == {("source", "new", "events"): 2.0}


def test_a_counter_that_begins_again_has_no_negative_rate() -> None:
    counted = Counted()
    counted.pass_seconds(4, events=10)
    counted.counts[EVENTS] = 4
    assert counted.rates.per_second() == {EVENTS: 1.0}


def test_right_after_the_start_a_rate_is_not_overstated() -> None:
    counted = Counted()
    counted.now, counted.counts[EVENTS] = 0.01, 5
    assert counted.rates.per_second() == {EVENTS: 5.0}
