import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.errors import StoreInUse
from penstock.store.files import RealFiles

HOLD_THE_LOCK = """
import pathlib, sys
from penstock.store.files import RealFiles
RealFiles(pathlib.Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def descriptors(folder: Path) -> set[Path]:
    """Those open on the folder and what is in it: what other tests have left may be closed meanwhile."""
    found = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):
            if path.readlink().is_relative_to(folder):
                found.add(path)
    return found


class TestDirectory:
    def test_a_directory_is_created_with_its_parents_for_the_owner_only(self, tmp_path: Path) -> None:
        RealFiles(tmp_path / "a" / "b").create("c")
        assert mode(tmp_path / "a" / "b") == 0o700
        assert mode(tmp_path / "a" / "b" / "c") == 0o600

    def test_the_entry_of_a_new_directory_in_its_parent_is_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = []

        def fsync(fd: int) -> None:
            synced.append(Path(f"/proc/self/fd/{fd}").readlink())

        monkeypatch.setattr(os, "fsync", fsync)
        RealFiles(tmp_path / "a" / "b")
        assert synced == [tmp_path, tmp_path / "a"]

    def test_a_directory_is_not_created_unless_requested(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            RealFiles(tmp_path / "a", create=False)

    def test_a_file_is_refused_as_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        with pytest.raises(FileExistsError):
            RealFiles(tmp_path / "a")

    def test_only_plain_files_are_listed(self, tmp_path: Path) -> None:
        files = RealFiles(tmp_path)
        files.create("file")
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to("file")
        os.mkfifo(tmp_path / "pipe")
        assert files.list() == ["file"]
        assert files.list() == ["file"]

    def test_close_leaves_no_file_open(self, tmp_path: Path) -> None:
        before = descriptors(tmp_path)
        files = RealFiles(tmp_path / "data")
        opened = [files.create("a"), files.open("a")]
        files.lock()
        with pytest.raises(StoreInUse):
            files.lock()
        for file in opened:
            file.close()
        files.close()
        files.close()
        assert descriptors(tmp_path) == before

    def test_an_unreferenced_file_is_closed(self, tmp_path: Path) -> None:
        files = RealFiles(tmp_path)
        before = descriptors(tmp_path)
        file = files.create("a")
        assert descriptors(tmp_path) != before
        del file
        assert descriptors(tmp_path) == before

    def test_child_processes_do_not_inherit_open_files(self, tmp_path: Path) -> None:
        before = descriptors(tmp_path)
        files = RealFiles(tmp_path)
        file = files.create("a")
        files.lock()
        opened = [int(path.name) for path in descriptors(tmp_path) - before]
        assert len(opened) == 3
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in opened)
        file.close()

    def test_operations_after_close_raise(self, tmp_path: Path) -> None:
        files = RealFiles(tmp_path)
        files.close()
        acts: list[Callable[[], object]] = [
            lambda: files.create("a"),
            lambda: files.open("a"),
            lambda: files.rename("a", "b"),
            lambda: files.remove("a"),
            files.list,
            files.sync,
            files.free_bytes,
            files.lock,
        ]
        for act in acts:
            with pytest.raises(OSError, match="Bad file descriptor"):
                act()


class TestLock:
    def test_a_locked_directory_is_refused_to_another_process_with_the_pid_of_the_holder(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(StoreInUse, match=f"{tmp_path} is in use by process {holder.pid}"):
                RealFiles(tmp_path).lock()
            holder.kill()
            holder.wait()
        RealFiles(tmp_path).lock()

    @pytest.mark.parametrize("found", [b"", b"nonsense"])
    def test_the_lock_holds_even_if_its_file_has_no_valid_pid(self, tmp_path: Path, found: bytes) -> None:
        holder = RealFiles(tmp_path)
        holder.lock()
        (tmp_path / "lock").write_bytes(found)
        with pytest.raises(StoreInUse, match="in use by another process"):
            RealFiles(tmp_path).lock()

    def test_the_lock_can_be_taken_on_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def pwrite(fd: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "pwrite", pwrite)
        holder = RealFiles(tmp_path)
        holder.lock()
        with pytest.raises(StoreInUse):
            RealFiles(tmp_path).lock()

    def test_a_longer_pid_from_an_earlier_lock_is_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "lock").write_bytes(b"9" * 30)
        files = RealFiles(tmp_path)
        files.lock()
        assert (tmp_path / "lock").read_bytes() == b"%d\n" % os.getpid()


class TestSystemCalls:
    @pytest.mark.parametrize("most", [1, 2, 7, 1000])
    def test_a_partial_write_is_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        whole = os.pwritev

        def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
            return whole(fd, [b"".join(buffers)[:most]], offset)

        monkeypatch.setattr(os, "pwritev", pwritev)
        file = RealFiles(tmp_path).create("a")
        file.write(1, [b"abc", b"", memoryview(b"defg"), bytearray(b"h"), b"i" * 20])
        assert file.read(0, 100) == b"\0abcdefgh" + b"i" * 20

    def test_a_write_that_makes_no_progress_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwritev", lambda *_: 0)
        with pytest.raises(OSError, match="accepted no bytes"):
            RealFiles(tmp_path).create("a").write(0, [b"abc"])

    @pytest.mark.parametrize("most", [1, 3, 100])
    def test_a_partial_read_is_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        whole = os.pread
        file = RealFiles(tmp_path).create("a")
        file.write(0, [b"0123456789"])
        monkeypatch.setattr(os, "pread", lambda fd, n, at: whole(fd, min(n, most), at))
        assert file.read(2, 7) == b"2345678"
        assert file.read(2, 100) == b"23456789"

    def test_a_write_of_few_buffers_is_one_call(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        whole = os.pwritev

        def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
            calls.append(len(buffers))
            return whole(fd, buffers, offset)

        monkeypatch.setattr(os, "pwritev", pwritev)
        file = RealFiles(tmp_path).create("a")
        file.write(0, [b"x"] * 1024)
        assert calls == [1024]
        file.write(0, [b"y"] * 2500)
        assert calls == [1024, 1024, 1024, 452]
        assert file.read(0, 2500) == b"y" * 2500

    def test_allocate_reserves_the_blocks(self, tmp_path: Path) -> None:
        RealFiles(tmp_path).create("a").allocate(1 << 20)
        found = (tmp_path / "a").stat()
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20

    def test_an_allocate_without_room_leaves_the_file_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fallocate(fd: int, offset: int, length: int) -> None:
            os.ftruncate(fd, offset + length // 2)
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "posix_fallocate", fallocate)
        file = RealFiles(tmp_path).create("a")
        file.write(0, [b"kept"])
        with pytest.raises(OSError, match="full"):
            file.allocate(1 << 20)
        assert file.read(0, 100) == b"kept"
        assert file.size() == 4
