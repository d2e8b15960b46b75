"""Short real runs: a program that sends, Spark, and a program that commits, checked as in the benchmark itself."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from bench import latency_flow
from bench.harness import BenchmarkFailed
from bench.latency import FULL, QUICK, RATES, WEB_RATE, Effort, Fsync, LatencyReport, measure
from bench.latency_flow import STAMP, Paced, Timing, latencies
from bench.latency_sink import Commits
from bench.latency_web import listening
from penstock.client.coordinator import SinkSpec
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHORT = Effort(rounds=1, warm_s=0.5, measure_s=1, batches=2, skip=1, fsyncs=5, total_s_max=0)
PACED = Paced(first=0, count=4, began_ns=1_000_000_000, behind_ms_max=0.0, rate=1000)


@pytest.mark.long
@pytest.mark.spark
def test_every_message_has_its_latency_beside_the_floor(spark: SparkSession, tmp_path: Path) -> None:
    """`measure` itself compares what was committed with what was sent."""
    report = measure(spark, SHORT, tmp_path, rates=(100, 1000))
    found = json.loads(report.to_json())
    times = found["latency_ms"]
    assert set(times) == {"smallest", "fsync", "at_100", "at_1000", "web"}
    assert times["web"]["samples"] == WEB_RATE // 2
    assert times["at_100"]["samples"] == 100
    assert times["at_1000"]["samples"] == 1000
    assert times["at_1000"]["p99"] >= times["at_1000"]["p50"] > times["fsync"]["p50"] > 0
    assert found["floor_ms"] == pytest.approx(times["smallest"]["p50"] + 6 * times["fsync"]["p50"], abs=0.01)
    ratios = found["ratios"]
    assert set(ratios) == {"empty_batch", "empty_batch_100", "empty_batch_1000", "web"}
    assert ratios["empty_batch"] == max(ratios["empty_batch_100"], ratios["empty_batch_1000"])
    parts = found["parts_ms"]["at_1000"]
    assert parts["triggerExecution"] >= parts["addBatch"] > parts["merge"] > 0
    assert parts["delivery"] >= 0


@pytest.mark.long
@pytest.mark.spark
def test_messages_that_are_never_committed_fail_the_benchmark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"connector://127.0.0.1:{free_port()}"
    monkeypatch.setattr(latency_flow, "SinkSpec", lambda port, _: SinkSpec(port, nobody))
    monkeypatch.setattr("bench.pipeline_flow.QUERY_SILENCE_SECONDS_MAX", 3)
    with pytest.raises(BenchmarkFailed, match="has not committed everything"):
        measure(spark, SHORT, tmp_path, rates=(100,))


async def test_a_connector_that_listens_later_than_its_deployment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, started = free_port(), []

    async def start(_seconds: float) -> None:
        """In place of the pause after a connection was refused."""
        started.append(await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port))

    monkeypatch.setattr(asyncio, "sleep", start)
    await listening(port)
    (server,) = started
    server.close()


def write(folder: Path, stamps: list[int]) -> Path:
    payloads = np.zeros(len(stamps), STAMP)
    payloads["stamp"] = stamps
    path = folder / "data"
    path.write_bytes(payloads.tobytes())
    return path


def test_a_latency_lasts_from_when_a_message_was_due_until_its_commit(tmp_path: Path) -> None:
    data = write(tmp_path, [1_000_000_000, 1_001_000_000, 1_002_000_000, 1_003_000_000])
    commits = Commits(np.array([100, 400]), np.array([1_005_000_000, 1_010_000_000]))
    assert latencies(data, commits, [PACED]).tolist() == [5.0, 9.0, 8.0, 7.0]


@pytest.mark.parametrize("stamps", [[0, 1, 2], [0, 1, 2, 2], [1, 0, 2, 3], [0, 1, 2, 3, 4]])
def test_other_messages_than_were_sent_fail_the_benchmark(stamps: list[int], tmp_path: Path) -> None:
    data = write(tmp_path, [1_000_000_000 + stamp * 1_000_000 for stamp in stamps])
    commits = Commits(np.array([len(stamps) * 100]), np.array([2_000_000_000]))
    with pytest.raises(BenchmarkFailed, match="not the 4 sent"):
        latencies(data, commits, [PACED])


def test_fsyncs_are_timed_where_the_data_is(tmp_path: Path) -> None:
    timing = Fsync(tmp_path, 10).time()
    assert timing.count == 10
    assert timing.p99_ms >= timing.p50_ms > 0
    assert list(tmp_path.iterdir()) == []


def test_a_quick_run_does_less_at_the_same_rates() -> None:
    assert QUICK.measure_s < FULL.measure_s
    assert RATES == (1_000, 50_000)


PARTS = {"triggerExecution": 60.0, "merge": 4.0, "delivery": 9.0}


def timing(p50_ms: float) -> Timing:
    return Timing(100, p50_ms, 2 * p50_ms, PARTS)


REPORT = LatencyReport(
    {
        "smallest": [timing(44), timing(88)],
        "fsync": [timing(1), timing(2)],
        "at_1000": [timing(100), timing(100)],
        "at_50000": [timing(150), timing(50)],
        "web": [timing(75), timing(200)],
    },
    (1000, 50_000),
    {"cores": 2},
)


def test_the_floor_is_a_smallest_batch_and_six_fsyncs() -> None:
    assert REPORT.floors_ms() == [50, 100]


def test_the_rate_that_is_worse_counts() -> None:
    assert REPORT.round_ratios() == {
        "empty_batch": [3.0, 1.0],
        "empty_batch_1000": [2.0, 1.0],
        "empty_batch_50000": [3.0, 0.5],
        "web": [1.5, 2.0],
    }
    assert REPORT.ratios()["empty_batch"] == 2.0
    assert REPORT.missed() == {}


def test_a_time_above_its_goal_is_a_goal_missed() -> None:
    slow = LatencyReport({**REPORT.results, "at_1000": [timing(200), timing(400)]}, (1000, 50_000), {})
    assert slow.missed() == {"empty_batch_1000": 4.0}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(REPORT.to_json())
    assert found["benchmark"] == "latency"
    assert found["goals"] == {"empty_batch_1000": 1.8, "empty_batch_50000": 2.2}
    assert found["at_most"] == ["empty_batch_1000", "empty_batch_50000"]
    assert found["latency_ms"]["at_1000"]["p50"] == 100
    assert found["latency_ms"]["at_1000"]["p99"] == 200
    assert found["floor_ms"] == 75
    assert found["parts_ms"]["at_50000"] == PARTS


def test_the_tables_show_times_ratios_and_parts() -> None:
    console = Console(file=io.StringIO(), width=200)
    REPORT.print(console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "send → commit at the sink, 50,000 messages/s" in shown
    assert "2.00 (1.00–3.00)" in shown
    assert "≤ 1.8" in shown
    assert "JSON by HTTP → where → WebSocket, 100 requests/s" in shown
    assert "delivery" in shown


def test_a_timing_has_the_middle_and_the_end_of_its_samples() -> None:
    found = Timing.of([float(n) for n in range(1, 101)])
    assert (found.count, found.p50_ms, found.p99_ms) == (100, 50, 99)
