"""Recoveries are compared by CPU time; a short real run is left to script/test --long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import cpu_seconds_of_tree
from bench.recovery import BARE, BEFORE, PHASES, WITHOUT, Effort, Measured, RecoveryReport, Spent, run, stages_ms

SHORT = Effort(rounds=1, total_s_max=0)


def measured(cpu_s: float, wall_s: float = 1.0) -> Measured:
    return Measured({"JVM": Spent(cpu_s / 4, wall_s), "first epoch": Spent(cpu_s * 3 / 4, wall_s)}, {"addBatch": 7})


def test_ratios_are_of_cpu_seconds_in_total_and_the_goal_is_half_of_what_it_took_before() -> None:
    results = {BARE: [measured(10)], "plain": [measured(12)], f"plain {WITHOUT}": [measured(16)]}
    results |= {"windowed": [measured(20)], f"windowed {WITHOUT}": [measured(25)], f"windowed {BEFORE}": [measured(32)]}
    report = RecoveryReport(results, {})
    assert report.ratios() == {
        "plain ÷ bare": 1.2,
        "plain ÷ plain without archive": 0.75,
        "windowed ÷ bare": 2.0,
        "windowed ÷ windowed without archive": 0.8,
        "windowed ÷ windowed before": 0.625,
    }
    assert report.missed() == {"windowed ÷ windowed before": 0.625}
    assert report.details()["cpu_s"]["plain"] == {"JVM": 3.0, "first epoch": 9.0, "total": 12.0}  # type: ignore[index]


def test_stages_are_read_from_the_line_about_the_first_epoch() -> None:
    line = "… INFO penstock.spark.run.runner: plain: its first epoch since the start, 3, is committed: "
    assert stages_ms(line + "addBatch 12 ms, state load 3 ms\n") == {"addBatch": 12, "state load": 3}


@pytest.mark.process
def test_cpu_time_includes_children_that_have_ended() -> None:
    child = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds_of_tree(process.pid) >= 0.3
        process.kill()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_every_phase_of_every_start_is_measured(tmp_path: Path) -> None:
    report = run(SHORT, tmp_path)
    assert {name for name in report.results if name != BARE} == {
        "plain", f"plain {WITHOUT}", "windowed", f"windowed {WITHOUT}",
    }  # fmt: skip
    for name, rounds in report.results.items():
        assert name == BARE or list(rounds[0].phases) == list(PHASES)
