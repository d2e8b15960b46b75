"""The file sink."""

import errno
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from penstock.client.sink import DataFile
from penstock.client.sink.log import TransactionLog
from penstock.connectors.file import read_committed_parts
from penstock.connectors.file.options import FileOptions
from penstock.connectors.file.sink import FileFormat, FileSink
from penstock.connectors.sink_api import SinkLost, Transaction
from penstock.core.errors import RequestError
from tests.connectors.stores.contract import StoreContract
from tests.connectors.stores.kinds import FileStore, OneFileStore, written_to
from tests.connectors.stores.rounds import Round, chain, example
from tests.delivery.fake_epoch import Row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "out"


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> FileStore:
        return FileStore(str(folder))


class TestContractWithoutRotation(StoreContract):
    @pytest.fixture
    def store(self, folder: Path) -> OneFileStore:
        return OneFileStore(str(folder))


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def deliver(options: FileOptions, rounds: list[Round], decided: bytes = b"") -> None:
    sink = FileSink(options)
    sink.open(decided)
    for one in rounds:
        one.deliver(sink)
    sink.close()


def sizes(folder: Path) -> list[int]:
    return [part.size for part in read_committed_parts(folder)]


EPOCHS = chain([[Row(b"one"), Row(b""), Row(b"three")], [Row(b"four")]])


@pytest.mark.parametrize(
    ("form", "name", "data"),
    [
        (FileFormat.LINES, "part-00000000000000000000.txt", b"one\n\nthree\nfour\n"),
        (FileFormat.RAW, "part-00000000000000000000.bin", b"onethreefour"),
        (
            FileFormat.FRAMES,
            "part-00000000000000000000.frames",
            b"\0\0\0\3one\0\0\0\0\0\0\0\5three\0\0\0\4four",
        ),
    ],
)
def test_a_file_has_the_payloads_in_its_format(folder: Path, form: FileFormat, name: str, data: bytes) -> None:
    deliver(written_to(folder, format=form.value), EPOCHS)
    assert (folder / name).read_bytes() == data
    (part,) = read_committed_parts(folder)
    assert (part.path, part.start, part.size, part.is_complete) == (folder / name, 0, len(data), False)


UNPACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", gzip.decompress),
    "xz": (".xz", lzma.decompress),
    "zstd": (".zst", lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()),
}


@pytest.mark.parametrize("compression", UNPACKED)
def test_what_is_committed_of_compressed_parts_can_be_decompressed(folder: Path, compression: str) -> None:
    options = FileOptions.model_validate({"mode": "write", "path": str(folder), "compression": compression})
    suffix, unpacked = UNPACKED[compression]
    first, second = EPOCHS
    deliver(options, [first])
    sink = FileSink(options)
    sink.open(first.transaction.id)
    second.deliver(sink)
    (part,) = read_committed_parts(folder)
    assert part.path.name == f"part-{0:020}.txt{suffix}"
    assert unpacked(part.path.read_bytes()[: part.size]) == b"one\n\nthree\nfour\n"
    torn = chain([[Row(b"never committed" * 1000)]])[0]
    torn.write(sink)
    sink.close()
    (part,) = read_committed_parts(folder)
    assert unpacked(part.path.read_bytes()[: part.size]) == b"one\n\nthree\nfour\n"


def test_a_new_part_starts_between_epochs_when_the_last_one_is_large_enough(folder: Path) -> None:
    rounds = chain([[Row(b"x" * 39)], [Row(b"y" * 59), Row(b"z" * 99)], [Row(b"1")], [Row(b"2")]])
    deliver(written_to(folder, rotate_bytes=100), rounds)
    first, second = read_committed_parts(folder)
    assert (first.start, first.size, first.is_complete) == (0, 200, True)
    assert (second.start, second.size, second.is_complete) == (200, 4, False)
    assert second.path.name == "part-00000000000000000200.txt"
    assert second.path.read_bytes() == b"1\n2\n"


def test_a_new_part_starts_when_the_clock_enters_another_interval(folder: Path) -> None:
    clock = Clock()
    clock.now = 36_000.0
    sink = FileSink(written_to(folder, rotate="1h"), clock)
    sink.open(b"")
    for number, now in enumerate((36_000, 39_599.9, 39_600, 39_700, 50_000), 1):
        clock.now = now
        Round(number, [Row(b"1234567")]).deliver(sink)
    sink.close()
    assert sizes(folder) == [16, 16, 8]


def test_the_interval_of_a_part_survives_a_restart(folder: Path) -> None:
    clock = Clock()
    for number, (written, now) in enumerate(((0, 36_000), (36_010, 36_100), (36_100, 39_700)), 1):
        for part in read_committed_parts(folder) if folder.exists() else ():
            os.utime(part.path, (written, written))
        clock.now = now
        sink = FileSink(written_to(folder, rotate="1h"), clock)
        sink.open(b"")
        Round(number, [Row(b"1234567")]).deliver(sink)
        sink.close()
    assert sizes(folder) == [16, 8]


def test_an_epoch_that_starts_a_part_starts_one_again_after_an_abort(folder: Path) -> None:
    first, second = EPOCHS
    clock = Clock()
    clock.now = 36_000.0
    sink = FileSink(written_to(folder, rotate="1h"), clock)
    sink.open(b"")
    first.deliver(sink)
    clock.now = 40_000.0
    assert second.prepare(sink).yes
    sink.abort()
    second.again().deliver(sink)
    sink.close()
    assert sizes(folder) == [11, 5]


def test_bytes_left_in_a_part_by_a_kill_do_not_count_as_written(folder: Path) -> None:
    first, second = EPOCHS
    deliver(written_to(folder), [first])
    (part,) = read_committed_parts(folder)
    with part.path.open("ab") as file:
        file.write(b"half an epo")
    os.utime(part.path, (36_000, 36_000))
    clock = Clock()
    clock.now = part.path.stat().st_ctime  # the same interval as that in which it is truncated
    sink = FileSink(written_to(folder, rotate="1h"), clock)
    sink.open(first.id)
    second.deliver(sink)
    sink.close()
    assert sizes(folder) == [11, 5]


def test_no_part_starts_inside_an_epoch(folder: Path) -> None:
    clock = Clock()
    sink = FileSink(written_to(folder, rotate_bytes=10, rotate="1s"), clock)
    sink.open(b"")
    one = Round(1, [Row(b"x" * 100)] * 9)
    for block in one.blocks():
        sink.write(block)
        clock.now += 100
    assert sink.prepare(one.transaction).yes
    sink.commit(one.transaction)
    sink.close()
    assert sizes(folder) == [909]


def test_an_aborted_epoch_removes_the_part_it_started(folder: Path) -> None:
    first, second = EPOCHS
    deliver(written_to(folder, rotate_bytes=1), [first])
    sink = FileSink(written_to(folder, rotate_bytes=1))
    sink.open(first.id)
    assert second.prepare(sink).yes
    assert len(list(folder.glob("part-*"))) == 2
    sink.abort()
    assert len(list(folder.glob("part-*"))) == 1
    sink.close()


def test_a_changed_format_starts_a_new_part(folder: Path) -> None:
    first, second = EPOCHS
    deliver(written_to(folder, format="lines"), [first])
    deliver(written_to(folder, format="raw"), [second], first.id)
    assert [part.path.name for part in read_committed_parts(folder)] == [
        "part-00000000000000000000.txt",
        "part-00000000000000000011.bin",
    ]


def test_parts_that_are_complete_may_be_removed(folder: Path) -> None:
    first, second, third = example(3)
    options = written_to(folder, rotate_bytes=1)
    deliver(options, [first, second])
    complete, last = read_committed_parts(folder)
    assert complete.is_complete
    complete.path.unlink()
    deliver(options, [third], second.id)
    assert [part.start for part in read_committed_parts(folder)] == [last.start, last.start + last.size]


class FullDisk:
    """Accepts this many bytes, then no more."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int, number: int = errno.ENOSPC) -> None:
        self.room = room
        write_at = DataFile.write_at

        def limited(file: DataFile, offset: int, data: Any) -> None:
            taken = min(len(data), self.room)
            write_at(file, offset, bytes(data)[:taken])
            self.room -= taken
            if taken < len(data):
                raise OSError(number, os.strerror(number))

        patch.setattr(DataFile, "write_at", limited)


def test_a_full_disk_is_a_vote_of_no_until_there_is_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = example(2)
    sink = FileSink(written_to(folder))
    sink.open(b"")
    first.deliver(sink)
    disk = FullDisk(monkeypatch, 100)
    vote = second.prepare(sink)
    assert not vote.yes
    assert vote.reason == f"no room for the epoch in {folder}: No space left on device"
    part = folder / "part-00000000000000000000.txt"
    assert part.stat().st_size == sizes(folder)[0]
    disk.room = 10**9
    second.again().deliver(sink)
    sink.close()
    assert part.read_bytes() == FileStore(str(folder)).expected([first, second])


def test_any_other_disk_error_loses_the_sink_and_the_next_open_recovers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = example(2)
    sink = FileSink(written_to(folder))
    sink.open(b"")
    first.deliver(sink)
    with monkeypatch.context() as patch:
        FullDisk(patch, 100, errno.EIO)
        with pytest.raises(SinkLost, match="Input/output error"):
            second.prepare(sink)
    sink.close()
    sink.open(first.id)
    second.again().deliver(sink)
    sink.close()
    assert FileStore(str(folder)).found() == FileStore(str(folder)).expected([first, second])


def test_data_that_cannot_be_synced_is_a_vote_of_no(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = example(1)

    def fail(file: DataFile) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    sink = FileSink(written_to(folder))
    sink.open(b"")
    with monkeypatch.context() as patch:
        patch.setattr(DataFile, "sync", fail)
        assert "Disk quota exceeded" in first.prepare(sink).reason
    first.again().deliver(sink)
    sink.close()


def test_a_part_and_its_name_are_durable_before_the_vote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill would not show that: the page cache survives it."""
    (first,) = example(1)
    sink = FileSink(written_to(folder))
    sink.open(b"")
    done: list[str] = []
    targets = ((DataFile, "write_at"), (DataFile, "sync"), (os, "fsync"), (TransactionLog, "append"))
    for owner, name in targets:
        monkeypatch.setattr(owner, name, _noted(done, name, getattr(owner, name)))
    first.deliver(sink)
    sink.close()
    assert done == ["fsync", "write_at", "write_at", "write_at", "sync", "append", "append"]


def _noted(done: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any) -> Any:
        done.append(name)
        return call(*args)

    return noting


def test_thousands_of_epochs_fit_into_a_log_that_is_rewritten(folder: Path) -> None:
    sink = FileSink(written_to(folder, format="raw"))
    sink.open(b"")
    for number in range(1, 2500):
        transaction = Transaction(b"a long name of a pipeline:%d:1" % number, number, 0, 0)
        assert sink.prepare(transaction).yes
        sink.commit(transaction)
    sink.close()
    assert sum(file.stat().st_size for file in (folder / "state").iterdir()) < 2**20


def test_a_second_sink_on_the_directory_is_refused(folder: Path) -> None:
    one, other = FileSink(written_to(folder)), FileSink(written_to(folder))
    one.open(b"")
    with pytest.raises(SinkLost, match=f"in use by process {os.getpid()}"):
        other.open(b"")
    other.close()
    one.close()
    other.open(b"")
    other.close()


@pytest.mark.process
def test_a_second_process_on_the_directory_is_refused(folder: Path) -> None:
    program = (
        "import sys; from penstock.connectors.file.options import *; from penstock.connectors.file.sink import *\n"
        "FileSink(FileOptions(mode='write', path=sys.argv[1])).open(b'')"
    )
    sink = FileSink(written_to(folder))
    sink.open(b"")
    other = subprocess.run([sys.executable, "-c", program, folder], check=False, capture_output=True, text=True)
    sink.close()
    assert f"in use by process {os.getpid()}" in other.stderr


def test_parts_without_their_log_are_not_touched(folder: Path) -> None:
    folder.mkdir(parents=True)
    part = folder / "part-00000000000000000000.txt"
    part.write_bytes(b"precious\n")
    sink = FileSink(written_to(folder))
    with pytest.raises(SinkLost, match="the transaction log is empty") as refused:
        sink.open(b"")
    sink.close()
    assert "Restore" in refused.value.hint
    assert part.read_bytes() == b"precious\n"


@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_committed_data_that_is_missing_is_reported(folder: Path, harm: str) -> None:
    first, _ = EPOCHS
    deliver(written_to(folder), [first])
    (part,) = read_committed_parts(folder)
    part.path.write_bytes(b"one\n") if harm == "cut" else part.path.unlink()
    sink = FileSink(written_to(folder))
    with pytest.raises(SinkLost, match="the transaction log records 11"):
        sink.open(first.id)
    sink.close()


def test_a_log_that_is_older_than_the_data_is_reported(folder: Path) -> None:
    first, second, third = example(3)
    options = written_to(folder, rotate_bytes=1)
    deliver(options, [first])
    old = (folder / "state" / "log").read_bytes()
    deliver(options, [second, third], first.id)
    (folder / "state" / "log").write_bytes(old)
    sink = FileSink(options)
    with pytest.raises(SinkLost, match="starts after byte"):
        sink.open(third.id)
    sink.close()


def test_other_files_in_the_directory_are_left_alone(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "README").write_text("mine")
    deliver(written_to(folder), EPOCHS)
    assert (folder / "README").read_text() == "mine"
    assert sizes(folder) == [16]


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    sink = FileSink(written_to(tmp_path / "out"))
    with pytest.raises(SinkLost, match="Not a directory"):
        sink.open(b"")
    sink.close()


def test_reading_the_committed_data_of_a_directory_without_a_sink_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"state directory .* not found"):
        read_committed_parts(tmp_path)
