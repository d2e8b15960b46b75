"""`penstock source`, `penstock send --end`, and the options of event time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.event_times import parse_event_time, with_event_times
from penstock.cli.run import _worker_options
from penstock.cli.worker import with_partitions, with_windows
from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import RequestError
from penstock.ingest.settings import ProgramServerSettings, SourceSettings, WhenAllIdle
from penstock.protocol.event_time.field import EventTimeField
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker


def run(worker: RunningWorker, *arguments: str) -> Result:
    address = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    result = CliRunner().invoke(app, [arguments[0], arguments[1], *address, *arguments[2:]])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_watermark_is_declared_and_a_source_ends(worker: RunningWorker) -> None:
    with open_stream(worker.ports["connector"], "shops", "north") as stream:
        printed = run(worker, "source", "watermark", "shops", "2026-01-31T12:00:00Z").stdout
        assert printed == "shops: no more events before 2026-01-31 12:00:00 UTC on 1 stream\n"
        for named in ("north", str(stream.stream_id)):
            printed = run(worker, "source", "watermark", "--stream", named, "--", "shops", "-1000000").stdout
            assert printed == "shops: no more events before 1969-12-31 23:59:59 UTC on 1 stream\n"
        told = json.loads(run(worker, "source", "watermark", "shops", "1970-01-01", "--json").stdout)
        assert told == {"source": "shops", "watermark_us": 0, "streams": 1}
    assert run(worker, "source", "end", "shops").stdout == "shops has ended\n"
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", 5) as client:
        assert client.status().sources["shops"].has_finished
    with pytest.raises(RequestError, match="source 'nobody' not found"):
        run(worker, "source", "end", "nobody")
    for name in ("", "a/b"):
        with pytest.raises(RequestError, match="is not a valid source name"):
            run(worker, "source", "end", name)


def test_a_file_that_is_sent_may_be_the_end_of_its_source(worker: RunningWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\nand no more")
    printed = run(worker, "send", str(file), "--source", "files", "--stream", "lines", "--end").stdout
    assert printed.startswith("lines: 3 lines sent"), "the last one has no end, and there is no more of it"
    assert printed.endswith("files has ended\n")
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", 5) as client:
        assert client.status().sources["files"].has_finished


def test_times_are_iso_or_microseconds() -> None:
    assert parse_event_time("-5") == -5
    assert parse_event_time("1970-01-01") == 0
    assert parse_event_time("1970-01-01T00:00:01.5") == 1_500_000
    assert parse_event_time("1970-01-01T01:00:00+01:00") == 0
    assert parse_event_time("1969-12-31T23:59:59.999999Z") == -1
    assert parse_event_time("9999-12-31T23:59:59.999999Z") == 253_402_300_799_999_999
    with pytest.raises(RequestError, match="'noon' is not a valid time"):
        parse_event_time("noon")


def test_disorder_and_timeouts_are_for_all_sources_or_for_one() -> None:
    given = SourceSettings(segments=3)
    default, named = with_event_times(given, ["2s", "slow=1m"], ["30s", "bursts=off", "slow=2h"])
    settings = ProgramServerSettings(source=default, sources=named)
    assert settings.of("any") == SourceSettings(segments=3, max_disorder_us=2_000_000, idle_timeout_seconds=30.0)
    assert (settings.of("slow").max_disorder_us, settings.of("slow").idle_timeout_seconds) == (60_000_000, 7200.0)
    assert (settings.of("bursts").max_disorder_us, settings.of("bursts").idle_timeout_seconds) == (2_000_000, None)
    assert with_event_times(given, [], []) == (given, {})


def test_the_window_is_for_all_sources_or_for_one() -> None:
    slow = SourceSettings(max_disorder_us=5)
    default, named = with_windows(SourceSettings(), {"slow": slow}, ["64KiB", "fast=8MiB"])
    settings = ProgramServerSettings(source=default, sources=named)
    assert settings.of("any") == SourceSettings(window_bytes=64 << 10)
    assert settings.of("slow") == SourceSettings(max_disorder_us=5, window_bytes=64 << 10)
    assert settings.of("fast") == SourceSettings(window_bytes=8 << 20)
    assert with_windows(SourceSettings(), {"slow": slow}, []) == (SourceSettings(), {"slow": slow})
    for given, why in (
        (["much"], "--window: 'much' is not a size"),
        (["1KiB"], "too small"),
        (["a=9MiB"], "too large"),
    ):
        with pytest.raises(RequestError, match=why):
            with_windows(SourceSettings(), {}, given)


def test_mistakes_in_them_are_reported() -> None:
    for disorder, timeout, why in (
        (["soon"], [], "--max-disorder: 'soon' is not a valid duration"),
        (["a="], [], "--max-disorder: '' is not a valid duration"),
        (["1s", "2s"], [], "--max-disorder is given twice for all sources"),
        ([], ["a=1s", "a=2s"], "--idle-timeout is given twice for a"),
        ([], ["0s"], "--idle-timeout: a timeout of 0"),
    ):
        with pytest.raises(RequestError, match=why):
            with_event_times(SourceSettings(), disorder, timeout)


def test_the_field_of_event_times_can_be_set_for_all_sources_or_for_one() -> None:
    given = ["ts", "a=order.time,format=%d, %b %Y,missing=arrival", "b=2,format=ms,codec=csv"]
    default, named = with_event_times(SourceSettings(), [], [], (), given)
    assert default.event_time == EventTimeField(field="ts", format="iso", missing="dead-letter", codec="json")
    assert named["a"].event_time == EventTimeField(
        field="order.time", format="%d, %b %Y", missing="arrival", codec="json"
    )
    assert named["b"].event_time == EventTimeField(field="2", format="ms", codec="csv", column=2)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["ts", "t"], "given twice for all sources"),
        (["a=b..c"], "not a valid field"),
        (["a=ts,format=minutes"], "not a format of times"),
        (["a=ts,missing=drop"], "neither arrival nor dead-letter"),
        (["a=ts,codec=string"], "has no fields"),
        (["a=ts,codec=csv"], "not the number of a column"),
    ],
)
def test_a_mistake_in_the_field_of_event_times_is_reported(given: list[str], why: str) -> None:
    with pytest.raises(RequestError, match=f"--event-time.*{why}"):
        with_event_times(SourceSettings(), [], [], (), given)


def test_penstock_run_passes_them_to_the_worker_that_it_starts() -> None:
    given = {
        "--event-time": ["ts,format=%d, %Y", "a=b.c,format=ms"],
        "--max-disorder": ["1s", "a=2s"],
        "--idle-timeout": ["1s", "a=off"],
        "--when-all-idle": ["clock", "a=wait"],
    }
    options = _worker_options("7d", given)
    assert options == [
        *("--retention=7d", "--event-time=ts,format=%d, %Y", "--event-time=a=b.c,format=ms"),
        *("--max-disorder=1s", "--max-disorder=a=2s", "--idle-timeout=1s", "--idle-timeout=a=off"),
        *("--when-all-idle=clock", "--when-all-idle=a=wait"),
    ]
    with pytest.raises(RequestError):
        _worker_options(None, {**given, "--max-disorder": ["soon"]})


def test_sources_that_are_all_idle_wait_or_follow_the_clock_as_configured() -> None:
    default, named = with_event_times(SourceSettings(), [], ["b=5s", "c=5s"], ["clock", "c=wait"])
    assert (default.when_all_idle, named["b"].when_all_idle) == (WhenAllIdle.CLOCK, WhenAllIdle.CLOCK)
    assert named["c"].when_all_idle is WhenAllIdle.WAIT
    assert SourceSettings().when_all_idle is WhenAllIdle.WAIT, "nobody follows it unasked"
    for timeouts, rules, why in (
        ([], ["clock"], "--when-all-idle clock needs an idle timeout: without one no stream is ever idle"),
        (["b=1s"], ["a=clock"], "--when-all-idle a=clock needs an idle timeout"),
        (["a=off", "1s"], ["a=clock"], "--when-all-idle a=clock needs an idle timeout"),
        ([], ["never"], "--when-all-idle: 'never' is neither wait nor clock"),
    ):
        with pytest.raises(RequestError, match=why):
            with_event_times(SourceSettings(), [], timeouts, rules)


def test_partitions_are_declared_for_single_sources() -> None:
    slow = SourceSettings(idle_timeout_seconds=1)
    named = with_partitions(SourceSettings(), {"slow": slow}, ["orders=4", "slow=2"])
    assert named == {"orders": SourceSettings(partitions=4), "slow": replace(slow, partitions=2)}
    assert ProgramServerSettings(sources=named).partitions == {"orders": 4, "slow": 2}
    for given, problem in (("4", "--partitions needs the name of a source"), ("orders=0", "'0' is not a valid number")):
        with pytest.raises(RequestError, match=problem):
            with_partitions(SourceSettings(), {}, [given])
