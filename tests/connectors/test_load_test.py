"""`bench`: events of a size, a rate and a number, and what arrives of them."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.connectors.api import Host, Lost, Outgoing
from penstock.connectors.load_test import Arrived, Bench, BenchOptions
from penstock.testing.frame import Frame
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually


def bench(**options: Any) -> Bench:
    return Bench(BenchOptions.model_validate(options))


async def test_it_sends_so_many_events_of_a_size_in_so_many_streams_and_ends() -> None:
    host = RecordingHost(has_in=False)
    async with running(bench(size=7, count=2500, streams=2), host) as run:
        await asyncio.wait_for(run, SECONDS_MAX)
    assert [stream.ids for stream in host.streams] == [[*range(1, 2501)]] * 2
    assert {*host.streams[0].events} == {b"x" * 7}
    assert host.has_finished


async def test_the_lines_of_a_file_are_replayed_over_and_over(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n\nc")
    host = RecordingHost(has_in=False)
    async with running(bench(path=str(tmp_path / "lines"), count=7), host) as run:
        await asyncio.wait_for(run, SECONDS_MAX)
    assert host.streams[0].events == [b"a", b"b", b"c", b"a", b"b", b"c", b"a"]


async def test_a_rate_bounds_what_is_sent() -> None:
    host, tested = RecordingHost(), bench(rate=1000, size=1)
    now = [1000.0]
    tested.clock = lambda: now[0]
    async with running(tested, host):
        for second in (0.5, 2.0):
            now[0] = 1000.0 + second
            await eventually(lambda second=second: len(host.streams[0].events) == second * 1000)  # type: ignore[misc]


async def test_an_empty_or_missing_file_is_lost(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    for name, reason in (("empty", "has no lines"), ("missing", "cannot be read")):
        with pytest.raises(Lost, match=reason):
            await bench(path=str(tmp_path / name)).run(RecordingHost())


def test_size_and_path_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        bench(size=1, path="lines")


async def test_what_arrives_is_counted_by_its_latency(caplog: pytest.LogCaptureFixture) -> None:
    host, tested = RecordingHost(has_out=False), bench(report="10ms")
    tested.clock = lambda: 1000.0
    times = [1000_000_000 - latency for latency in (500, 1000, 1001, 4_000, 70_000_000)]
    with caplog.at_level(logging.INFO, "penstock.connectors.load_test"):
        async with running(tested, host):
            await tested.deliver(Outgoing(None, [b"abc"] * 5, [0] * 5, event_times_us=times), host)
            await tested.deliver(Outgoing(None, [b"joined, so without times"], [0]), host)
            await eventually(lambda: "events/s" in caplog.text)
    assert host.counts == {
        "arrived_events": 6,
        "arrived_bytes": 39,
        "latency_to_1ms": 2,
        "latency_to_2ms": 1,
        "latency_to_5ms": 1,
        "latency_over_60000ms": 1,
    }


async def test_a_delivery_that_has_failed_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an outbox, as every connector that does not take epochs: nothing is left out, and it may come twice."""
    deliver, failures = Bench.deliver, iter([True, False])

    async def failing_once(self: Bench, outgoing: Outgoing, host: Host) -> None:
        await deliver(self, outgoing, host)
        if next(failures, False):
            raise Lost("its reply is lost")

    monkeypatch.setattr(Bench, "deliver", failing_once)
    async with Frame(tmp_path, Bench, {}) as frame:
        epoch = frame.give(None, [b"a", b"b", b"c"])
        await frame.until(lambda: frame.has_left(epoch))
        assert frame.instance.host.counts["arrived_events"] == 6


def test_a_line_has_the_rate_and_percentiles_since_the_last_one() -> None:
    arrived = Arrived()
    arrived.add(1000, 2_000_000, [10_000_000 - 3000] * 1000, 10.0)
    assert arrived.line(12.0) == "500 events/s, 1.00 MB/s; latency p50 ≤ 5 ms, p99 ≤ 5 ms, longest 3.0 ms"
    assert arrived.line(13.0) == ""
    arrived.add(10, 10, [], 13.0)
    assert arrived.line(14.0) == "5 events/s, 0.00 MB/s"
