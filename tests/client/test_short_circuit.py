"""A range from the journal's files has the bytes that the socket has; on any doubt it comes from the socket."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from penstock.access.file import AccessFile, StoredGrant
from penstock.client.segments import SegmentClient, short_circuit
from penstock.client.segments.bucket_reads import BucketReads
from penstock.client.segments.connections import BlockingConnection
from penstock.client.segments.range_reader import read_range
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core import address
from penstock.core.address import Address
from penstock.core.errors import Damaged, Forbidden, ProtocolError, SegmentTruncated
from penstock.protocol.segment import AuthTokenCheckFailed, LocatedFile, LocateSegment, SegmentLocated
from penstock.segment_server.requests import SegmentRequests
from penstock.spark.sink.staging import Link
from tests.spark.asking import get
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tokens import TOKEN
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

MIB = 1 << 20
BLOCK_BYTES = 100_000
DATA = Random(7).randbytes(3 * MIB)
ALL = len(DATA)


def fill(worker: RunningWorker | WorkerProcess, segment: str = "s") -> None:
    """The data, among that of another segment."""
    with SegmentClient(worker.address) as client:
        names = (segment, "other")
        mine, others = (client.appender(name, create=True, block_bytes=BLOCK_BYTES) for name in names)
        with mine, others:
            for start in range(0, ALL, BLOCK_BYTES):
                mine.append_block(DATA[start : start + BLOCK_BYTES], 1)
                others.append_block(b"-" * 1000, 1)
                mine.flush()
                others.flush()


@contextmanager
def linked(worker: RunningWorker | WorkerProcess) -> Iterator[Link]:
    link = Link(lambda: Address.parse(worker.address))
    try:
        yield link
    finally:
        link.drop()


@pytest.fixture
def filled(worker: RunningWorker) -> Iterator[Link]:
    fill(worker)
    with linked(worker) as link:
        yield link


def joined(link: Link, files: ShortCircuit | None, segment: str = "s", start: int = 0, end: int = ALL) -> bytes:
    found = bytearray()
    with closing(read_range(link, segment, start, end, 20, files)) as pieces:
        for piece in pieces:
            assert piece.offset == start + len(found)
            found += piece.data
            del piece
    return bytes(found)


def server_status(worker: RunningWorker) -> dict[str, int]:
    status: dict[str, int] = get(worker, "/status")["segment_server"]
    return status


def by_socket(worker: RunningWorker) -> int:
    """Bytes that the worker has sent."""
    return server_status(worker)["read_bytes"]


@pytest.mark.parametrize(("start", "end"), [(0, ALL), (1, ALL - 1), (123_456, ALL - 99_999)])
def test_the_bytes_of_a_range_come_from_the_files(worker: RunningWorker, filled: Link, start: int, end: int) -> None:
    assert joined(filled, ShortCircuit(), start=start, end=end) == DATA[start:end]
    assert by_socket(worker) == 0
    assert server_status(worker)["located_bytes"] == end - start


def test_a_short_range_comes_from_the_socket(worker: RunningWorker, filled: Link) -> None:
    end = short_circuit.RANGE_BYTES_MIN - 1
    assert joined(filled, ShortCircuit(), end=end) == DATA[:end]
    assert by_socket(worker) == end
    assert server_status(worker)["locates"] == 0


def test_merged_bytes_are_read_where_they_were_staged(worker: RunningWorker, filled: Link) -> None:
    with SegmentClient(worker.address) as client:
        client.create("target")
        client.merge("target", "s")
    assert joined(filled, ShortCircuit(), "target") == DATA
    assert by_socket(worker) == 0


def test_files_are_closed_when_a_range_is_left_halfway(filled: Link) -> None:
    before = open_files()
    reading = read_range(filled, "s", 0, ALL, 20, ShortCircuit())
    next(reading)
    assert len(open_files()) > len(before)
    reading.close()
    assert open_files() == before


def open_files() -> list[str]:
    """Of this process, which is the worker's too."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the directory itself
            found.append(str(fd.readlink()))
    return sorted(path for path in found if path.endswith(".journal"))


# What makes it doubt.


@pytest.mark.parametrize("text", ["false", "0", "OFF"])
def test_it_can_be_switched_off_where_readers_run(worker: RunningWorker, filled: Link, text: str) -> None:
    assert joined(filled, ShortCircuit(environment={short_circuit.VARIABLE: text})) == DATA
    assert server_status(worker)["locates"] == 0
    assert by_socket(worker) == ALL


def test_a_worker_may_refuse_and_is_not_asked_again_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = [0.0]
    caplog.set_level(logging.DEBUG, short_circuit.__name__)
    with running_worker(tmp_path / "data", short_circuit=False) as worker, linked(worker) as link:
        fill(worker)
        files = ShortCircuit(lambda: times[-1])
        for now, refused in ((0.0, 1), (59.0, 1), (61.0, 2)):
            times.append(now)
            assert joined(link, files) == DATA
            assert server_status(worker)["locates_refused"] == refused
        assert by_socket(worker) == 3 * ALL
    assert f"segment 's' from 0 to {ALL} over the socket: " in caplog.text
    assert "reading files is off" in caplog.text


def test_an_older_worker_that_closes_the_connection_is_read_over_the_next_one(
    worker: RunningWorker, filled: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: SegmentRequests, request: LocateSegment) -> None:
        raise ProtocolError(f"{type(request).__name__}: the versioned dialect has no such message")

    monkeypatch.setattr(SegmentRequests, "_locate", unknown)
    files = ShortCircuit()
    assert joined(filled, files) == joined(filled, files) == DATA
    assert by_socket(worker) == 2 * ALL
    assert server_status(worker)["protocol_errors"] == 1


def test_a_reader_on_another_machine_gets_no_path(
    worker: RunningWorker, filled: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_circuit, "this_machine", lambda: "another")
    assert joined(filled, ShortCircuit()) == DATA
    assert server_status(worker)["locates_refused"] == 1
    assert server_status(worker)["locates"] == 0


def test_a_machine_without_an_id_asks_only_while_it_may_read_a_bucket(
    worker: RunningWorker, filled: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_circuit, "this_machine", str)
    assert joined(filled, ShortCircuit()) == DATA
    assert server_status(worker)["locates_refused"] == 1
    assert joined(filled, ShortCircuit(objects=BucketReads(lambda: float("-inf")))) == DATA
    assert server_status(worker)["locates_refused"] == 1


def test_the_id_of_a_machine_is_that_of_its_kernel() -> None:
    assert address.this_machine() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def another_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Root becomes one for a moment; others are refused what they open, as they would be."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    with monkeypatch.context() as patch:
        opened = os.open

        def refuse(path: str, *more: int) -> int:
            if str(path).endswith(".journal"):
                raise PermissionError(path)
            return opened(path, *more)

        patch.setattr(os, "open", refuse)
        yield


def test_a_reader_that_may_not_open_the_files_uses_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, short_circuit.__name__)
    with WorkerProcess(tmp_path / "data") as worker, linked(worker) as link:
        fill(worker)
        link.connected()  # its token is the owner's
        with another_user(monkeypatch):
            assert joined(link, ShortCircuit()) == DATA
    assert "over the socket" in caplog.text
    assert "ermission" in caplog.text


@pytest.mark.parametrize(
    "file",
    [
        LocatedFile("/dev/zero", 0, 0),
        LocatedFile("/nowhere/00000000000000000000.journal", 0, 0),
        LocatedFile("OTHER", 0, 0),
    ],
)
def test_a_file_that_is_not_the_workers_is_not_read(
    tmp_path: Path, worker: RunningWorker, filled: Link, monkeypatch: pytest.MonkeyPatch, file: LocatedFile
) -> None:
    """A container sees other files under the same path; a worker that is not one may reply anything."""
    other = tmp_path / "other.journal"
    other.write_bytes(bytes(9 * MIB))
    answer_differently(monkeypatch, file._replace(path=str(other)) if file.path == "OTHER" else file)
    assert joined(filled, ShortCircuit()) == DATA
    assert by_socket(worker) == ALL


def answer_differently(monkeypatch: pytest.MonkeyPatch, file: LocatedFile) -> None:
    located = SegmentRequests._locate

    def locate(self: SegmentRequests, request: LocateSegment) -> object:
        reply, position = located(self, request)
        assert isinstance(reply, SegmentLocated)
        files = tuple(file for _ in reply.files)
        return SegmentLocated(reply.segment, reply.offset, files, reply.rows, reply.request_id), position

    monkeypatch.setattr(SegmentRequests, "_locate", locate)


# Damage and removal.


def test_a_flipped_bit_is_an_error_that_names_file_and_offset(
    tmp_path: Path, worker: RunningWorker, filled: Link
) -> None:
    place = 2 * MIB
    flipped = flip(tmp_path / "data" / "journal", DATA[place : place + 64])
    with pytest.raises(Damaged, match=rf"{flipped.name} at offset \d+ fails its checksum"):
        joined(filled, ShortCircuit())
    assert get(worker, "/status")["store"]["damaged"] == 1
    assert joined(filled, ShortCircuit(), end=place - BLOCK_BYTES) == DATA[: place - BLOCK_BYTES]


def flip(journal: Path, content: bytes) -> Path:
    """One bit where the journal has this content; returns in which file."""
    for file in journal.glob("*.journal"):
        if (at := file.read_bytes().find(content)) >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([content[0] ^ 1]))
            return file
    raise AssertionError("it is not in one piece")


def test_without_access_to_the_segment_there_is_no_path(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "token").write_text(TOKEN)
    access = AccessFile(data)
    tenant = access.add(StoredGrant("tenant", "read", ["demo"]))
    with running_worker(data, access=access) as worker:
        fill(worker, "mine")
        fill(worker, "demo")
        link = Link(lambda: Address.parse(worker.address))
        link._connection = connection = BlockingConnection(Address.parse(worker.address), None, 30, tenant)
        for segment in ("mine", "coordinator/ledger"):
            reply = connection.ask(short_circuit._request(segment, 0, ALL))
            assert isinstance(reply, AuthTokenCheckFailed)
            assert "journal" not in str(reply)
            with pytest.raises(Forbidden):
                joined(link, ShortCircuit(), segment)
        assert joined(link, ShortCircuit(), "demo") == DATA
        assert server_status(worker)["located_bytes"] == ALL
        link.drop()


class Interposed:
    """A link; `after` is called between the reply where bytes are and the reader's next step."""

    def __init__(self, link: Link, after: Callable[[], None]) -> None:
        self._link = link
        self._after = after

    def connected(self) -> "Interposed":
        self._connection = self._link.connected()
        return self

    def ask(self, encode: Callable[[int, str], bytes]) -> object:
        reply = self._connection.ask(encode)
        self._after()
        return reply

    def drop(self) -> None:
        self._link.drop()


def remove(worker: RunningWorker, upto: int) -> None:
    """Truncate, and wait until compaction has removed files."""
    before = get(worker, "/status")["store"]["chapters_dropped"]
    with SegmentClient(worker.address) as client:
        client.truncate("s", upto)
    until(lambda: get(worker, "/status")["store"]["chapters_dropped"] > before)
    until(lambda: not worker.worker._journal.has_dropped)


def test_what_is_removed_before_it_is_opened_is_truncated_as_over_the_socket(
    worker: RunningWorker, filled: Link
) -> None:
    upto = ALL - 10_000
    files = ShortCircuit()
    link = Interposed(filled, lambda: remove(worker, upto))
    assert list(files.read(link, "s", 0, ALL)) == []  # type: ignore[arg-type]
    with pytest.raises(SegmentTruncated) as caught:
        joined(filled, files)
    assert caught.value.start == upto


def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(
    worker: RunningWorker, filled: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_circuit, "PIECE_BYTES", BLOCK_BYTES)
    found = bytearray()
    with closing(read_range(filled, "s", 0, ALL, 20, ShortCircuit())) as pieces:
        found += next(pieces).data
        remove(worker, ALL - 10_000)
        for piece in pieces:
            found += piece.data
            del piece
    assert found == DATA
    assert by_socket(worker) == 0


UNIT = 50_000


class Attack:
    """A segment that grows and is truncated, and readers of it. Every byte of it can be computed from its offset."""

    def __init__(self, worker: RunningWorker) -> None:
        self.worker = worker
        self.first = self.end = 0
        """Units of the segment: those that are truncated next, and all."""
        self.read = self.truncated = 0
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._readers = [threading.Thread(target=self._read_all, args=(seed,)) for seed in range(2)]

    @property
    def is_enough(self) -> bool:
        store = get(self.worker, "/status")["store"]
        has_removed = store["chapters_dropped"] > 5 and store["compaction_moved_bytes"] > 0
        return has_removed and self.read > 5 and self.truncated > 5

    def run(self) -> None:
        with SegmentClient(self.worker.address) as client:
            written, slow = (client.appender(name, create=True, block_bytes=UNIT) for name in ("s", "slow"))
            with written, slow:
                for number in count():
                    written.append_block(Random(number).randbytes(UNIT), 1)
                    written.flush()
                    self.end = number + 1
                    if number == 1:
                        for reader in self._readers:
                            reader.start()
                    if number % 10 == 9:
                        slow.append_block(b"moved by compaction", 1)
                        slow.flush()
                        client.truncate("s", self.first * UNIT)
                        self.first = max(number - 40, 0)
                    if self.failures or (number % 50 == 49 and self.is_enough):
                        break
        self._stopping.set()
        for reader in self._readers:
            reader.join()

    def _read_all(self, seed: int) -> None:
        random, files = Random(seed), ShortCircuit()
        try:
            with linked(self.worker) as link:
                while not self._stopping.is_set():
                    start = random.randrange(max(self.first - 15, 0), self.end)
                    self._read(link, files, start, min(start + random.randrange(1, 60), self.end))
        except BaseException as error:
            self.failures.append(error)

    def _read(self, link: Link, files: ShortCircuit, start: int, end: int) -> None:
        try:
            found = joined(link, files, "s", start * UNIT, end * UNIT)
        except SegmentTruncated:
            self.truncated += 1
            return
        assert found == b"".join(Random(number).randbytes(UNIT) for number in range(start, end))
        self.read += 1


def test_readers_get_the_right_bytes_or_truncation_while_files_are_written_and_removed(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_circuit, "RANGE_BYTES_MIN", 1)
    attack = Attack(worker)
    attack.run()
    assert not attack.failures, attack.failures
    assert server_status(worker)["located_bytes"]
