"""Closed chapters come from the bucket, on whatever machine the reader is; on any doubt, they come from the worker."""

import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.client.segments import bucket_reads, short_circuit
from penstock.client.segments.bucket_reads import BucketReads
from penstock.client.segments.range_reader import read_range
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.address import this_machine
from penstock.core.errors import BucketForbidden, BucketThrottled
from penstock.protocol.segment import LocatedFile, LocatedObject, LocateSegment, OperationUnsupported, SegmentLocated
from penstock.segment_server.requests import SegmentRequests
from penstock.store.bucket_files import BucketFiles
from penstock.store.compaction import Compactor
from penstock.store.files import Files, RealFiles
from penstock.store.settings import BucketSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_bucket import FaultyBucket, Objects
from penstock.testing.memory_files import MemoryFiles
from penstock.testing.seaweedfs import SeaweedFS
from tests.client import reading_process
from tests.client.test_short_circuit import ALL, DATA, fill, joined, linked
from tests.client.test_short_circuit_conformance import StoreLink
from tests.spark.asking import get
from tests.store.small import commit, compact_step, next_chapter, open_store
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

SETTINGS = BucketSettings(linger_seconds=0, release_seconds=0)
ROWS = [bytes([number]) * 1000 for number in range(12)]
STORED = b"".join(ROWS)


class Shard:
    """A small store on a bucket without faults, with three closed chapters and an open one."""

    def __init__(self, cache: Files | None = None, settings: BucketSettings = SETTINGS) -> None:
        self.objects = Objects()
        self.bucket = FaultyBucket(self.objects)
        self.files = BucketFiles(self.bucket, cache or MemoryFiles(), settings=settings)
        self.store = open_store(self.files)
        self.store.create("s")
        self.store.create("other")
        for number, row in enumerate(ROWS):
            self.store.append("other", [b"-" * 300])
            self.store.append("s", [row], head=b"head")
            if number % 4 == 3:
                next_chapter(self.store)
        self.store.append("s", [b"open"])
        commit(self.store)
        self.maintain()

    def maintain(self) -> None:
        while self.files.maintain():
            pass

    @property
    def keys(self) -> list[str]:
        return sorted(key for key in self.objects.objects if "/parts/" in key)

    def locate(self, *, machine: str = "", objects: bool = True, start: int = 0) -> Any:
        return locate(self.store, machine, objects, start)


def locate(store: SegmentStore, machine: str, objects: bool, start: int = 0) -> Any:
    link = StoreLink(store, 1 << 20)
    reply, _ = link._locate(LocateSegment("s", start, 1 << 20, machine, "", 1, objects))
    return reply


def taken(reply: SegmentLocated) -> int:
    return sum(row.take for row in reply.rows)


# What the worker replies.


def test_a_reader_on_another_machine_learns_the_objects_of_closed_chapters_and_no_path() -> None:
    shard = Shard()
    reply = shard.locate(machine="another")
    assert isinstance(reply, SegmentLocated)
    assert reply.files == (LocatedFile("", 0, 0),) * 3
    assert [found.url for found in reply.objects] == [shard.bucket.url] * 3
    assert {found.key for found in reply.objects} < set(shard.keys)
    assert taken(reply) == len(STORED)


def test_the_open_chapter_is_in_no_object() -> None:
    reply = Shard().locate(start=len(STORED))
    assert (reply.files, reply.rows, reply.objects) == ((), (), ())


def test_a_reader_on_the_same_machine_learns_files_and_objects(tmp_path: Path) -> None:
    reply = Shard(RealFiles(tmp_path)).locate(machine=this_machine())
    assert len(reply.files) == len(reply.objects) == 4
    assert all(Path(file.path).stat().st_ino == file.inode for file in reply.files)
    assert [bool(found.key) for found in reply.objects] == [True, True, True, False]
    assert taken(reply) == len(STORED) + len(b"open")


def test_what_is_no_longer_cached_is_an_object_alone(tmp_path: Path) -> None:
    shard = Shard(RealFiles(tmp_path), BucketSettings(cache_bytes=1, linger_seconds=0))
    reply = shard.locate(machine=this_machine())
    assert [bool(file.path) for file in reply.files] == [False, False, False, True]


def test_a_reader_that_does_not_ask_for_objects_gets_none(tmp_path: Path) -> None:
    """Readers of an earlier version, and those whose bucket fails."""
    shard = Shard(RealFiles(tmp_path))
    assert shard.locate(machine=this_machine(), objects=False).objects == ()
    assert isinstance(shard.locate(machine="another", objects=False), OperationUnsupported)


def test_a_journal_on_a_disk_has_no_objects() -> None:
    store = open_store(MemoryFiles())
    store.create("s")
    assert isinstance(locate(store, "another", objects=True), OperationUnsupported)


# What the reader does with the reply.


class Recorded:
    """A bucket's reads, as they happen."""

    def __init__(self, bucket: Any, before: Callable[[str], None] = lambda _: None) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._before = before
        self._lock = threading.Lock()
        self.lengths: list[int] = []

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._lock:
            self.lengths.append(length)
            self._before(key)
            data: bytes = self._bucket.get_range(key, start, length)
        return data


@pytest.fixture
def _short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_circuit, "RANGE_BYTES_MIN", 1)
    monkeypatch.setattr(short_circuit, "this_machine", lambda: "another")


def reads(opened: Callable[[str], object], clock: Callable[[], float] = lambda: 0.0) -> ShortCircuit:
    return ShortCircuit(clock, objects=BucketReads(clock, opened))  # type: ignore[arg-type]


def read(shard: Shard, files: ShortCircuit, start: int = 0) -> bytes:
    link: Any = StoreLink(shard.store, 1 << 20)
    return b"".join(bytes(data) for _, data in files.read(link, "s", start, len(STORED)))


@pytest.mark.usefixtures("_short_ranges")
def test_rows_are_read_by_few_requests_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard()
    recorded = Recorded(shard.bucket)
    assert read(shard, reads(lambda _: recorded), start=500) == STORED[500:]
    assert len(recorded.lengths) == 3
    monkeypatch.setattr(bucket_reads, "REQUEST_BYTES", 3000)
    recorded.lengths.clear()
    assert read(shard, reads(lambda _: recorded)) == STORED
    assert max(recorded.lengths) <= 3000
    monkeypatch.setattr(bucket_reads, "_GAP_BYTES", 0)
    recorded.lengths.clear()
    assert read(shard, reads(lambda _: recorded)) == STORED
    assert len(recorded.lengths) == len(ROWS)


@pytest.mark.usefixtures("_short_ranges")
def test_no_more_requests_are_sent_ahead_than_the_limit_allows() -> None:
    shard = Shard()
    recorded = Recorded(shard.bucket)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_reads, "_GAP_BYTES", 0)
        link: Any = StoreLink(shard.store, 1 << 20)
        with closing(reads(lambda _: recorded).read(link, "s", 0, len(STORED))) as found:
            next(found)
            assert len(recorded.lengths) <= bucket_reads.REQUESTS_MAX


@pytest.mark.usefixtures("_short_ranges")
def test_an_object_that_is_deleted_between_reply_and_request_is_a_miss_and_the_bucket_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What compaction does. The rows are elsewhere by then, where the worker finds them."""
    caplog.set_level(logging.INFO, bucket_reads.__name__)
    shard = Shard()
    second = shard.locate().objects[1].key

    def drop_second(key: str) -> None:
        if key == second:
            shard.objects.delete([second])

    files = reads(lambda _: Recorded(shard.bucket, drop_second))
    assert read(shard, files) == STORED[:4000]
    assert read(shard, files) == STORED[:4000]
    assert read(shard, files, start=8000) == STORED[8000:]
    assert caplog.text.count("the worker is read instead of its bucket") == 1


@pytest.mark.usefixtures("_short_ranges")
def test_a_chapter_that_compaction_has_moved_is_found_in_its_new_place() -> None:
    shard = Shard()
    compactor = Compactor(shard.store)
    moved: list[str] = []

    def compact(key: str) -> None:
        """While the reader has the reply and no byte."""
        if moved:
            return
        moved.append(key)
        shard.store.truncate("other", shard.store.length("other"))
        shard.store.truncate("s", 3500)
        for _ in range(3):
            next_chapter(shard.store)
        while compact_step(compactor):
            commit(shard.store)
        next_chapter(shard.store)
        shard.maintain()

    assert read(shard, reads(lambda _: Recorded(shard.bucket, compact)), start=3500) == b""
    assert moved[0] not in shard.objects.objects
    assert shard.store.read("s", 3500, 500) == STORED[3500:4000]
    assert read(shard, reads(lambda _: shard.bucket), start=3500) == STORED[3500:]


@pytest.mark.usefixtures("_short_ranges")
@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"!", lambda data: data[: len(data) // 2]])
def test_an_object_with_other_bytes_is_a_miss(
    damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    class Damaging(Recorded):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            return damage(super().get_range(key, start, length))

    shard = Shard()
    files = reads(lambda _: Damaging(shard.bucket))
    assert read(shard, files) == read(shard, files) == b""
    assert caplog.text.count("fails its checksum") == 1


@pytest.mark.usefixtures("_short_ranges")
def test_a_throttled_request_is_sent_once_more() -> None:
    shard, throttled = Shard(), set[str]()

    def throttle_once(key: str) -> None:
        if key not in throttled:
            throttled.add(key)
            raise BucketThrottled("slow down")

    assert read(shard, reads(lambda _: Recorded(shard.bucket, throttle_once))) == STORED


@pytest.mark.usefixtures("_short_ranges")
@pytest.mark.parametrize("error", [BucketThrottled("slow down"), BucketForbidden("no"), ValueError("unexpected")])
def test_a_bucket_that_fails_is_left_alone_for_a_while_and_the_log_says_so_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> None:
        raise error

    shard, times = Shard(), [0.0]
    recorded = Recorded(shard.bucket, fail)
    files = reads(lambda _: recorded, lambda: times[-1])
    for now, is_asked in ((0.0, True), (59.0, False), (121.0, True)):  # the worker, too, is not asked in vain
        times.append(now)
        recorded.lengths.clear()
        assert read(shard, files) == b""
        assert bool(recorded.lengths) == is_asked
    assert caplog.text.count("the worker is read instead of its bucket") == 1


@pytest.mark.usefixtures("_short_ranges")
def test_without_the_extra_the_log_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    shard = Shard()
    shard.bucket.url = "s3://bucket/prefix"
    assert read(shard, ShortCircuit()) == b""
    assert "which is not installed. pip install" in caplog.text


@pytest.mark.usefixtures("_short_ranges")
@pytest.mark.parametrize("key", ["shards/0/head", "../secret", "shards/0/parts/../../etc", "/etc/passwd"])
def test_only_parts_of_a_journal_are_read(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    located = SegmentRequests._locate

    def name_another(self: SegmentRequests, request: LocateSegment) -> object:
        reply, position = located(self, request)
        assert isinstance(reply, SegmentLocated)
        objects = tuple(LocatedObject(found.url, key) for found in reply.objects)
        changed = SegmentLocated(reply.segment, reply.offset, reply.files, reply.rows, reply.request_id, objects)
        return changed, position

    shard = Shard()
    monkeypatch.setattr(SegmentRequests, "_locate", name_another)
    recorded = Recorded(shard.bucket)
    assert read(shard, reads(lambda _: recorded)) == b""
    assert not recorded.lengths


def test_a_chapter_that_is_removed_while_the_worker_reads_it_is_located_again() -> None:
    """Not damage: its object is gone because nothing needs it."""
    shard = Shard(settings=BucketSettings(cache_bytes=1, linger_seconds=0, release_seconds=0))
    located = shard.store.locate("s", 0, 1000)
    store, removed = shard.store, list[str]()

    def remove(request: str) -> None:
        if request.startswith("get ") and "/parts/" in request and not removed:
            removed.append(request)
            store.truncate("s", len(STORED))
            store.truncate("other", store.length("other"))
            for _ in range(3):
                next_chapter(store)
            compactor = Compactor(store)
            while compact_step(compactor):
                commit(store)
            commit(store)
            shard.maintain()

    shard.bucket.before_each = remove
    with pytest.raises(LookupError, match="removed"):
        store.fetch(located)
    assert removed


# A real worker, and readers in other processes.


@contextmanager
def worker_on(bucket: Bucket, folder: Path, settings: BucketSettings = SETTINGS) -> Iterator[RunningWorker]:
    """With all but the open chapter in the bucket."""
    files = BucketFiles(bucket, RealFiles(folder / "cache"), settings=settings)
    files.start()
    (folder / "data").mkdir()
    with running_worker(folder / "data", files=files) as worker:
        fill(worker)
        journal = worker.worker._journal
        until(lambda: all(journal.remote_file(chapter) is not None for chapter in journal.chapters[:-1]))
        yield worker


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket((tmp_path / "bucket").as_uri())


def closed_end(worker: RunningWorker) -> int:
    """The end of what is in closed chapters."""

    async def found() -> int:
        store = worker.worker._store
        pieces = store.locate("s", 0, ALL).pieces
        return sum(piece.take for piece in pieces if piece.chapter != store.journal.chapter)

    return worker.call(found())


def parts(bucket: Bucket) -> list[str]:
    return sorted(each.key for each in bucket.list("shards/0/parts/"))


class Reader:
    def __init__(self, worker: RunningWorker, end: int, environment: Mapping[str, str] = os.environ) -> None:
        program = [sys.executable, reading_process.__file__, worker.address, "s", "0", str(end)]
        done = subprocess.run(program, env=dict(environment), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.log = done.stderr
        assert done.stdout.strip() == hashlib.sha256(DATA[:end]).hexdigest()


def served(worker: RunningWorker) -> int:
    return int(get(worker, "/status")["segment_server"]["read_bytes"])


@pytest.mark.process
def test_another_machine_reads_history_from_the_bucket_and_the_open_chapter_from_the_worker(
    tmp_path: Path, bucket: Bucket
) -> None:
    with worker_on(bucket, tmp_path) as worker:
        end = closed_end(worker)
        assert 2 << 20 < end < ALL
        assert not Reader(worker, end).log
        assert served(worker) == 0
        status = get(worker, "/status")["segment_server"]
        assert status["located_bytes"] == status["located_remote_bytes"] == end
        Reader(worker, ALL)
        assert served(worker) == ALL - end


@pytest.mark.process
def test_objects_that_are_gone_are_read_from_the_worker(tmp_path: Path, bucket: Bucket) -> None:
    with worker_on(bucket, tmp_path) as worker:
        end = closed_end(worker)
        bucket.delete(parts(bucket))
        assert Reader(worker, end).log.count("is gone") == 1
        assert served(worker) == end


@pytest.mark.process
def test_a_flipped_byte_in_an_object_is_not_noticed_by_readers(tmp_path: Path, bucket: Bucket) -> None:
    with worker_on(bucket, tmp_path) as worker:
        end = closed_end(worker)
        flip(tmp_path / "bucket", DATA[1 << 20 :][:64])
        assert Reader(worker, end).log.count("fails its checksum") == 1
        assert 0 < served(worker) < end


def flip(folder: Path, content: bytes) -> None:
    for file in folder.glob("shards/0/parts/*"):
        data = bytearray(file.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError("no part has it")


@pytest.mark.parametrize("cache_bytes", [1 << 30, 1])
def test_on_the_worker_s_machine_the_cache_comes_first_and_then_the_bucket(
    tmp_path: Path, bucket: Bucket, cache_bytes: int
) -> None:
    settings = BucketSettings(cache_bytes=cache_bytes, linger_seconds=0)
    with worker_on(bucket, tmp_path, settings) as worker, linked(worker) as link:
        recorded = Recorded(bucket)
        files = ShortCircuit(objects=BucketReads(opened=lambda _: recorded))  # type: ignore[arg-type, return-value]
        assert joined(link, files) == DATA
        assert served(worker) == 0
        assert bool(recorded.lengths) == (cache_bytes == 1)


def test_after_a_miss_the_rest_of_a_range_comes_from_the_bucket_again(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.segments.range_reader.FALLBACK_BYTES", 100_000)
    monkeypatch.setattr(short_circuit, "RANGE_BYTES_MIN", 1)
    monkeypatch.setattr(short_circuit, "this_machine", lambda: "another")
    with worker_on(bucket, tmp_path) as worker, linked(worker) as link:
        end = closed_end(worker)
        bucket.delete(parts(bucket)[:1])
        found = bytearray()
        with closing(read_range(link, "s", 0, end, 20, ShortCircuit())) as pieces:
            for piece in pieces:
                found += piece.data
                del piece
        assert found == DATA[:end]
        assert 0 < served(worker) < end


@pytest.mark.parametrize(
    ("identity", "from_bucket"), [("reader", True), ("admin", True), ("anonymous", False), ("wrong", False)]
)
def test_a_reader_needs_no_more_than_credentials_to_read_and_without_them_the_worker(
    tmp_path: Path, seaweedfs: SeaweedFS, s3_url: str, identity: str, from_bucket: bool
) -> None:
    environment = dict(os.environ)
    match identity:
        case "reader" | "admin":
            environment |= seaweedfs.environment(identity)
        case "anonymous":
            environment |= {"AWS_SKIP_SIGNATURE": "true", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        case "wrong":
            environment |= {"AWS_SECRET_ACCESS_KEY": "wrong"}
    with worker_on(open_bucket(s3_url), tmp_path) as worker:
        end = closed_end(worker)
        reader = Reader(worker, end, environment)
        assert served(worker) == (0 if from_bucket else end)
        assert reader.log.count("the worker is read instead of its bucket") == (0 if from_bucket else 1)
