"""Short real runs: a worker with its program server, driven and checked as in the benchmark itself."""

import json
from pathlib import Path

import pytest

from bench.contender import Effort, LoadReport
from bench.contenders.ingest import Ingest, PlainPrograms, Session
from bench.harness import BenchmarkFailed
from bench.ingest import Options, contenders, run

pytestmark = pytest.mark.process

SHORT = Effort(rounds=1, warmup_s=0.2, measure_s=0.5, probe_s=0.1, read_s=0, total_s_max=60)


def short(directory: Path, *only: str) -> LoadReport:
    return run(SHORT, directory, options=Options(only=only, connections=3, many_streams=5000))


@pytest.mark.parametrize("name", ["append", "ingest", "event_times", "many_streams", "plain_programs"])
def test_every_acknowledged_message_is_stored(name: str, tmp_path: Path) -> None:
    """`run` itself compares what was acknowledged with what the worker holds."""
    (measurement,) = short(tmp_path, name).results[name]
    assert measurement.events > 0
    assert measurement.latencies_ms
    assert measurement.read_mb_per_s is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ratios_have_the_goals_names_and_the_time_is_accounted_for(tmp_path: Path) -> None:
    report = short(tmp_path, "append", "ingest", "event_times", "many_streams", "plain_programs")
    assert set(report.ratios()) == {"append", "event_times", "many_streams", "plain_programs"}
    rates = {name: rounds[0].events_per_s for name, rounds in report.results.items()}
    assert report.ratios()["append"] == pytest.approx(rates["ingest"] / rates["append"])
    assert report.ratios()["event_times"] == pytest.approx(rates["event_times"] / rates["ingest"])
    assert report.ratios()["many_streams"] == pytest.approx(rates["many_streams"] / rates["ingest"])
    assert report.ratios()["plain_programs"] == pytest.approx(rates["plain_programs"] / rates["ingest"])
    times = json.loads(report.to_json())["ns_per_event"]
    assert times["clock"] > times["scan"] > 0


def test_all_are_compared() -> None:
    names = ["append", "ingest", "event_times", "many_streams", "plain_programs", "redis", "nats"]
    assert [c.name for c in contenders(Options())] == names


def test_a_plain_program_has_64_credits(tmp_path: Path) -> None:
    with PlainPrograms(1, 1).start(tmp_path) as server:
        port = server.ports["connector"]
        plain, ours = (Session.open(port, "s", [n], announces_window=bool(n)) for n in range(2))
        assert (plain.granted, ours.granted) == (64, 2048)
        plain.sock.close()
        ours.sock.close()


def test_messages_that_were_lost_fail_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ingest.stored
    monkeypatch.setattr(Ingest, "stored", lambda self, server: honest(self, server) - 1)
    with pytest.raises(BenchmarkFailed, match="ingest acknowledged"):
        short(tmp_path, "ingest")
