"""ports.json: whole or not there, and written without new room on the disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from penstock.worker.ports_file import PortsFile


def test_it_is_written_in_place_of_the_one_before(tmp_path: Path) -> None:
    ports, file = PortsFile(tmp_path), tmp_path / "ports.json"
    ports.publish({"http": 12345, "id": "a longer one than the next"})
    first = file.stat()
    ports.withdraw()
    assert not file.exists()
    PortsFile(tmp_path).publish({"http": 1})
    assert json.loads(file.read_text()) == {"http": 1}
    assert (file.stat().st_ino, file.stat().st_blocks) == (first.st_ino, first.st_blocks)
    assert [path.name for path in tmp_path.iterdir()] == ["ports.json"]


def test_that_of_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    PortsFile(tmp_path).publish({"http": 1})
    PortsFile(tmp_path).publish({"http": 2})
    assert json.loads((tmp_path / "ports.json").read_text()) == {"http": 2}


def test_it_is_not_there_when_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    PortsFile(tmp_path).publish({"http": 1})
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="space"):
        PortsFile(tmp_path).publish({"http": 2})
    assert not (tmp_path / "ports.json").exists()


def test_nothing_to_withdraw_is_fine(tmp_path: Path) -> None:
    PortsFile(tmp_path).withdraw()
    assert list(tmp_path.iterdir()) == []
