"""What stands in for calls that a platform lacks: the tests take them away from Linux, as on macOS."""

import errno
import fcntl
import os
import socket
import termios
from pathlib import Path

import pytest

from penstock.core import platforms
from penstock.store.files import RealFiles

F_FULLFSYNC = 51
"""Its number on macOS."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called, on a platform that has fsync alone."""
    called: list[str] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda fd: called.append("fsync"))
    return called


def full_sync(monkeypatch: pytest.MonkeyPatch, called: list[str], number: int = 0) -> None:
    def call(fd: int, command: int) -> int:
        assert command == F_FULLFSYNC
        if number:
            raise OSError(number, os.strerror(number))
        called.append("full")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", call)


def synced(folder: Path) -> None:
    files = RealFiles(folder)
    files.create("a").sync()
    files.sync()


def test_without_fdatasync_fsync_is_used(tmp_path: Path, calls: list[str]) -> None:
    synced(tmp_path)
    assert calls == ["fsync", "fsync"]


def test_on_macos_the_cache_of_the_disk_is_emptied_as_well(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_sync(monkeypatch, calls)
    synced(tmp_path)
    assert calls == ["full", "full"]


def test_a_file_system_without_a_full_sync_gets_an_fsync(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_sync(monkeypatch, calls, errno.ENOTSUP)
    synced(tmp_path)
    assert calls == ["fsync", "fsync"]


def test_a_full_sync_that_fails_is_an_error(tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    full_sync(monkeypatch, calls, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        synced(tmp_path)
    assert calls == []


def test_without_fallocate_zeros_are_written_after_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    file = RealFiles(tmp_path).create("a")
    file.write(0, [b"kept"])
    file.allocate((3 << 20) + 5)
    assert (tmp_path / "a").read_bytes() == b"kept" + bytes((3 << 20) + 1)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 3 << 20


def test_without_room_for_the_zeros_the_file_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        os.ftruncate(fd, offset + 100)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(os, "pwrite", full)
    file = RealFiles(tmp_path).create("a")
    file.write(0, [b"kept"])
    with pytest.raises(OSError, match="full"):
        file.allocate(1 << 20)
    assert file.size() == 4


def test_dead_peers_are_found_by_the_options_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", socket.TCP_KEEPIDLE, raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    with socket.socket() as connected:
        platforms.keep_alive(connected, 7, 5, 3)
        platforms.limit_unacknowledged(connected, 1000)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle = platforms.idle_option()
        assert idle is not None
        options = (idle, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [connected.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [7, 5, 3]


def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert platforms.cores() == os.cpu_count()


def test_linux_lacks_nothing() -> None:
    assert list(platforms.limitations()) == []


def test_everything_that_macos_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_macos(monkeypatch, tmp_path)
    said = list(platforms.limitations())
    names = ("fdatasync", "posix_fallocate", "syncfs", "/proc", "prctl", "TCP_USER_TIMEOUT", "TCP_INFO", "SO_PEERCRED")
    assert len(said) == len(names)
    assert [name for name, text in zip(names, said, strict=True) if name not in text] == []


def test_the_page_has_everything_that_macos_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_macos(monkeypatch, tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    table = page[page.index("## On macOS") : page.index("## Run it as a service")]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(platforms.limitations()))


def as_on_macos(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for module, name in (
        (os, "fdatasync"),
        (os, "posix_fallocate"),
        (socket, "TCP_USER_TIMEOUT"),
        (socket, "TCP_INFO"),
        (socket, "SO_PEERCRED"),
        (termios, "TIOCOUTQ"),
    ):
        monkeypatch.delattr(module, name)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(platforms, "libc", lambda function: None)
    monkeypatch.setattr(platforms, "BOOT_ID", folder / "boot_id")
