"""The order of the rounds, and what is left behind: nothing."""

import io
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.contender import Measurement, split_missing
from bench.contenders.bare import Bare
from bench.contenders.nats import Nats
from bench.contenders.redis import Redis
from bench.harness import (
    BenchmarkFailed,
    base_directory,
    goal_cell,
    interleave,
    missed,
    percentile,
    progress,
    ratios,
    spread_cell,
    workspace,
)
from bench.processes import Cpu, filesystem, recycled


def test_contenders_take_turns_and_every_second_round_runs_backwards() -> None:
    notes: list[str] = []
    contenders = [Bare(1000, 1), Redis(1), Nats()]
    results = interleave(contenders, 2, lambda contender: len(notes), notes.append)
    assert [note.rpartition(" ")[2] for note in notes] == ["bare", "redis", "nats", "nats", "redis", "bare"]
    assert results == {"bare": [1, 6], "redis": [2, 5], "nats": [3, 4]}


def test_no_round_is_begun_that_might_not_end_in_time() -> None:
    deadline = time.monotonic() + 0.3
    results = interleave([Bare(1000, 1)], 100, lambda contender: time.sleep(0.1), lambda note: None, deadline)
    assert 1 <= len(results["bare"]) <= 3


def test_there_is_always_a_first_round() -> None:
    results = interleave([Bare(1000, 1)], 100, lambda contender: 1, lambda note: None, deadline=0)
    assert results == {"bare": [1]}


def test_a_peer_that_is_missing_is_skipped_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redis, "installed", lambda self: False)
    present, missing = split_missing([Bare(1000, 1), Redis(1)])
    assert [contender.name for contender in present] == ["bare"]
    assert missing == {"redis": "apt-get install redis-server"}


def test_a_workspace_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), workspace(tmp_path) as directory:
        (directory / "no" / "such").mkdir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no /dev/shm to write to")
def test_fsync_is_not_measured_on_a_memory_file_system() -> None:
    shm = Path("/dev/shm")
    if filesystem(shm) != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs here")
    with pytest.raises(BenchmarkFailed, match="in memory"), base_directory(shm):
        pass
    assert not list(shm.glob("penstock-bench-*"))


def test_dropping_pages_from_the_cache_changes_no_file(tmp_path: Path) -> None:
    with recycled(tmp_path):
        for number in range(20):
            (tmp_path / str(number % 3)).write_bytes(b"%d" % number * 10_000)
            time.sleep(0.01)
    assert (tmp_path / "1").read_bytes() == b"19" * 10_000


GOALS = {"parquet": 1.0, "small_batch": 1.5}
AT_MOST = ("small_batch",)


@pytest.mark.parametrize(
    ("ratios", "short"),
    [
        ({"parquet": 1.0, "small_batch": 1.5}, set()),
        ({"parquet": 0.99, "small_batch": 1.0}, {"parquet"}),
        ({"parquet": 3.0, "small_batch": 1.51}, {"small_batch"}),
        ({"small_batch": 2.0}, {"small_batch"}),
        ({"something else": 0.0}, set()),
    ],
)
def test_a_goal_is_met_at_equality_and_an_upper_limit_from_below(ratios: dict[str, float], short: set[str]) -> None:
    assert missed(ratios, GOALS, AT_MOST) == {name: ratios[name] for name in short}


def test_the_table_distinguishes_limits_from_goals() -> None:
    assert [goal_cell(name, GOALS, AT_MOST) for name in ("parquet", "small_batch", "sink")] == ["≥ 1", "≤ 1.5", ""]


def test_a_cell_shows_the_median_and_the_spread_and_whether_the_goal_was_missed() -> None:
    assert spread_cell([3.0, 1.0, 2.0], is_missed=True) == "[red]2.00[/] (1.00–3.00)"
    assert spread_cell([1.0], is_missed=False) == "[green]1.00[/] (1.00–1.00)"


def test_events_and_megabytes_are_of_the_measured_seconds() -> None:
    measurement = Measurement(events=1_000_000, seconds=0.5, event_bytes=100)
    assert measurement.events_per_s == 2_000_000
    assert measurement.mb_per_s == 200


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_at_least_that_share_does_not_exceed_the_percentile(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values) - 1e-6


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 20, 30], [5, 5, 60]) == [2, 4, 0.5]


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


def test_cpu_is_cores_busy_over_the_time_between() -> None:
    assert Cpu(3.0, 1.5).since(Cpu(1.0, 1.0), seconds=2.0) == Cpu(1.0, 0.25)


def test_progress_goes_to_the_console_that_was_given() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress(console, steps=2) as note:
        note("round 1 of 1: bare")
    assert isinstance(console.file, io.StringIO)
    assert "round 1 of 1: bare" in console.file.getvalue()
