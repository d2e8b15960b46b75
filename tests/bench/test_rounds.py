"""The order of the rounds, and what is left behind: nothing."""

import os
import time
from pathlib import Path

import pytest

from penstock.bench.contender import BenchmarkFailed
from penstock.bench.contenders.bare import Bare
from penstock.bench.contenders.nats import Nats
from penstock.bench.contenders.redis import Redis
from penstock.bench.page_cache import recycled
from penstock.bench.process import filesystem
from penstock.bench.rounds import base_directory, interleave, split_missing, workspace


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
def test_memory_is_no_place_to_measure_fsync() -> None:
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
