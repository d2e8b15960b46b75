"""The checkpoint is on disk before anything is merged: with syncfs if available, otherwise with sync."""

import os
from pathlib import Path

import pytest

from penstock.core.errors import StoreFailed
from penstock.spark.run import checkpoint_files
from penstock.spark.run.checkpoint_files import sync_checkpoint


class Calls:
    """Counts calls, and calls the real functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_syncfs: bool = True, result: int = 0) -> None:
        self.synced: list[str] = []
        self._result = result
        monkeypatch.setattr(os, "sync", lambda: self.synced.append("everything"))
        monkeypatch.setattr(checkpoint_files, "_syncfs", lambda: self._syncfs if has_syncfs else None)

    def _syncfs(self, descriptor: int) -> int:
        self.synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        return self._result


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_the_file_system_of_a_local_checkpoint_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    calls = Calls(monkeypatch)
    sync_checkpoint(f"{scheme}{tmp_path}")
    assert calls.synced == [str(tmp_path)]


@pytest.mark.parametrize("location", ["s3a://bucket/checkpoints", "hdfs:///checkpoints"])
def test_a_remote_checkpoint_is_left_to_its_own_file_system(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    calls = Calls(monkeypatch)
    sync_checkpoint(location)
    assert calls.synced == []


@pytest.mark.parametrize("location", [None, "/no/such/directory"])
def test_everything_is_synced_if_the_location_is_unknown(monkeypatch: pytest.MonkeyPatch, location: str | None) -> None:
    calls = Calls(monkeypatch)
    sync_checkpoint(location)
    assert calls.synced == ["everything"]


def test_everything_is_synced_if_there_is_no_syncfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, has_syncfs=False)
    sync_checkpoint(str(tmp_path))
    assert calls.synced == ["everything"]


def test_a_disk_failure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Calls(monkeypatch, result=-1)
    with pytest.raises(StoreFailed, match="cannot be made durable"):
        sync_checkpoint(str(tmp_path))


def test_the_real_syncfs_accepts_a_directory(tmp_path: Path) -> None:
    real = checkpoint_files._syncfs()
    assert real is not None
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert real(descriptor) == 0
    os.close(descriptor)
    assert real(descriptor) == -1
