"""Short real runs: a program that sends, Spark, and a program that commits, checked as in the benchmark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.bench import latency_flow
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.latency import Effort, Fsync, Options, measure
from penstock.bench.latency_flow import latencies
from penstock.bench.latency_report import RATES, to_json
from penstock.bench.latency_sender import STAMP, Paced
from penstock.bench.latency_sink import Commits
from penstock.bench.process import free_port
from penstock.client.coordinator import SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT = Effort(rounds=1, warm_s=0.5, measure_s=1, batches=2, skip=1, fsyncs=5, total_s_max=0)
PACED = Paced(first=0, count=4, began_ns=1_000_000_000, behind_ms_max=0.0, rate=1000)


@pytest.mark.spark
def test_every_message_has_its_latency_beside_the_floor(spark: SparkSession, tmp_path: Path) -> None:
    """`measure` itself compares what was committed with what was sent."""
    report = measure(spark, Options(effort=SHORT, rates=(100, 1000)), tmp_path)
    found = json.loads(to_json(report))
    times = found["latency_ms"]
    assert set(times) == {"smallest", "fsync", "at_100", "at_1000"}
    assert times["at_100"]["samples"] == 100
    assert times["at_1000"]["samples"] == 1000
    assert times["at_1000"]["p99"] >= times["at_1000"]["p50"] > times["fsync"]["p50"] > 0
    assert found["floor_ms"] == pytest.approx(times["smallest"]["p50"] + 6 * times["fsync"]["p50"], abs=0.01)
    assert set(found["ratios"]) == {"empty_batch", "empty_batch_100", "empty_batch_1000"}
    assert found["ratios"]["empty_batch"] == max(found["ratios"].values())
    parts = found["parts_ms"]["at_1000"]
    assert parts["triggerExecution"] >= parts["addBatch"] > parts["merge"] > 0
    assert parts["delivery"] >= 0


@pytest.mark.spark
def test_messages_that_are_never_committed_fail_the_benchmark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"connector://127.0.0.1:{free_port()}"
    monkeypatch.setattr(latency_flow, "SinkSpec", lambda port, _: SinkSpec(port, nobody))
    monkeypatch.setattr("penstock.bench.pipeline_flow.SILENCE_SECONDS_MAX", 3)
    with pytest.raises(BenchmarkFailed, match="has not committed everything"):
        measure(spark, Options(effort=SHORT, rates=(100,)), tmp_path)


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
    quick, full = Options(quick=True), Options()
    assert quick.chosen.measure_s < full.chosen.measure_s
    assert quick.rates == full.rates == RATES == (1_000, 50_000)
