"""What a driver reports about its query while the JVM answers, and when it does not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.spark.run import query_probe
from penstock.spark.run.query_probe import Answer, Ask, QueryProbe
from tests.support.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Jvm:
    """Answers unless it is `stopped`."""

    def __init__(self) -> None:
        self.answer = Answer("Processing new data", 1, 4)
        self.asked = 0
        self.may_continue = threading.Event()
        self.may_continue.set()

    def __call__(self) -> Answer:
        self.asked += 1
        self.may_continue.wait(60)
        return self.answer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_probe, "ASK_SECONDS", 0.001)


@contextmanager
def probing(ask: Ask, clock: Clock) -> Iterator[QueryProbe]:
    probe = QueryProbe(ask, clock)
    try:
        yield probe
    finally:
        probe.stop()


def test_a_responsive_jvm_reports_how_long_there_was_no_progress() -> None:
    jvm, clock = Jvm(), Clock()
    with probing(jvm, clock) as probe:
        until(lambda: probe.report().tasks_done == 1)
        clock.now += 30
        until(lambda: probe.report().jvm_silent_seconds == 0)
        assert probe.report().unmoved_seconds == 30
        jvm.answer = Answer("Processing new data", 2, 4)
        until(lambda: probe.report().tasks_done == 2)
        assert probe.report().unmoved_seconds == 0


def test_the_silence_of_an_unresponsive_jvm_grows() -> None:
    jvm, clock = Jvm(), Clock()
    with probing(jvm, clock) as probe:
        until(lambda: probe.report().tasks == 4)
        jvm.may_continue.clear()

        def is_silent_for(seconds: float) -> bool:
            """An answer that was already sent may still arrive."""
            clock.now += seconds
            return probe.report().jvm_silent_seconds >= seconds

        until(lambda: is_silent_for(12))
        jvm.may_continue.set()
        until(lambda: probe.report().jvm_silent_seconds == 0)


def test_a_request_that_fails_counts_as_no_answer_and_is_repeated() -> None:
    jvm, clock = Jvm(), Clock()
    failing = threading.Event()

    def ask() -> Answer:
        if failing.is_set():
            raise ConnectionError
        return jvm()

    failing.set()
    with probing(ask, clock) as probe:
        clock.now += 12
        assert probe.report().jvm_silent_seconds == 12
        assert probe.report().doing == ""
        failing.clear()
        until(lambda: probe.report().tasks == 4)
        assert probe.report().jvm_silent_seconds == 0
