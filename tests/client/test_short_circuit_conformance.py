"""Whatever a journal has been through, its files give a reader the bytes that the store gives, and so do the objects of
its closed chapters in a bucket.
"""

import shutil
import tempfile
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from penstock.access.file import Open
from penstock.client.segments import bucket_reads, short_circuit
from penstock.client.segments.bucket_reads import BucketReads
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.types import Position
from penstock.protocol.segment import HEADER_SIZE, VERSIONED, LocateSegment, Reply
from penstock.protocol.segment.frame import unpack_header
from penstock.segment_server.caller import Caller
from penstock.segment_server.requests import SegmentRequests
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.segment_server.tables import Tables
from penstock.store.bucket_files import BucketFiles
from penstock.store.compaction import Compactor
from penstock.store.files import Files, RealFiles
from penstock.store.plan import Addition
from penstock.store.settings import BucketSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_bucket import FaultyBucket, Objects
from penstock.testing.memory_files import MemoryFiles
from tests.store.model import read_all
from tests.store.small import commit, compact_step, next_chapter, open_store

NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)
sizes = st.sampled_from((1, 7, 300, 2500, 9000))
heads = st.binary(max_size=40)


class StoreLink:
    """The worker's answers without a worker: every message in the bytes that it has on the wire."""

    def __init__(self, store: SegmentStore, located_bytes_max: int) -> None:
        caller = Caller(store, Open(), lambda _: None)
        limits = ServerSettings(located_bytes_max=located_bytes_max)
        self._locate = SegmentRequests(store, caller, limits, Counters(), Tables(store)).handlers[LocateSegment]

    def connected(self) -> "StoreLink":
        return self

    def drop(self) -> None:
        raise AssertionError("the connection is sound")

    def ask(self, encode: Callable[[int, str], bytes]) -> Reply:
        reply, position = self._locate(decoded(encode(1, "")))
        assert position == Position(0)
        found = decoded(VERSIONED.encode(reply))
        assert isinstance(found, Reply)
        return found


def decoded(message: bytes) -> Any:
    kind, length = unpack_header(message)
    assert len(message) == HEADER_SIZE + length
    return VERSIONED.decode(kind, memoryview(message)[HEADER_SIZE:])


class Journals(RuleBasedStateMachine):
    def new_files(self) -> Files:
        return RealFiles(self.directory / "journal")

    def reader(self) -> ShortCircuit:
        return ShortCircuit()

    def readable(self, name: str, start: int, end: int) -> int:
        """How many of these bytes a reader is to get from the files."""
        return end - start

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.store = open_store(self.new_files(), compact_below=0.9, append_bytes_max=20_000)
        self.compactor = Compactor(self.store)
        self.written = 0
        for name in NAMES:
            self.store.create(name)

    def content(self, size: int) -> bytes:
        """Of which no two are equal for long."""
        self.written += 1
        return (b"%d:" % self.written * size)[:size]

    @rule(name=names, size=sizes, head=heads)
    def append(self, name: str, size: int, head: bytes) -> None:
        self.store.append(name, [self.content(size)], head=head)

    @rule(size=sizes, head=heads)
    def append_to_all(self, size: int, head: bytes) -> None:
        self.store.append_all([Addition(name, [self.content(size)], head) for name in NAMES])

    @rule(name=names, size=sizes, count=st.integers(1, 3))
    def merge(self, name: str, size: int, count: int) -> None:
        self.store.create("staged")
        for _ in range(count):
            self.store.append("staged", [self.content(size)])
        self.store.merge([(name, "staged")])

    @rule(name=names, share=st.floats(0, 1))
    def truncate(self, name: str, share: float) -> None:
        self.store.truncate(name, int(self.store.length(name) * share))

    @rule()
    def commit(self) -> None:
        commit(self.store)

    @rule()
    def turn(self) -> None:
        next_chapter(self.store)

    @rule(steps=st.integers(1, 6))
    def compact(self, steps: int) -> None:
        for _ in range(steps):
            compact_step(self.compactor)

    @rule(name=names, skip=st.integers(0, 50), left=st.integers(0, 50), limit=st.sampled_from((100, 3000, 1 << 20)))
    @precondition(lambda self: self.written)
    def read(self, name: str, skip: int, left: int, limit: int) -> None:
        """Also what is not durable is asked for: it is not there yet."""
        info = self.store.info(name)
        start, end = info.start + skip, max(self.store.length(name) - left, info.start + skip)
        expected = read_all(self.store, name, info.start)[skip:][: self.readable(name, start, end)]
        link: Any = StoreLink(self.store, limit)
        found = bytearray()
        for offset, data in self.reader().read(link, name, start, end):
            assert offset == start + len(found)
            found += data
        assert found == expected

    def teardown(self) -> None:
        self.store.journal.close()
        shutil.rmtree(self.directory)


class BucketJournals(Journals):
    """The reader is on another machine, or the cache has lost everything, which is the same."""

    files: BucketFiles

    def new_files(self) -> Files:
        self.objects = Objects()
        settings = BucketSettings(cache_bytes=1, groups_max=5, linger_seconds=0, release_seconds=0)
        self.files = BucketFiles(FaultyBucket(self.objects), MemoryFiles(), settings=settings)
        return self.files

    def reader(self) -> ShortCircuit:
        return ShortCircuit(objects=BucketReads(opened=lambda _: FaultyBucket(self.objects)))

    def readable(self, name: str, start: int, end: int) -> int:
        """Those up to the first chapter that is not in the bucket."""
        if not start <= end <= self.store.length(name) or start == end:
            return 0
        journal = self.store.journal
        pieces = self.store.locate(name, start, 1 << 30).pieces
        found = takewhile(lambda piece: journal.remote_file(piece.chapter) is not None, pieces)
        return min(sum(piece.take for piece in found), end - start)

    @rule()
    def maintain(self) -> None:
        """Chapters become objects, and objects of dropped ones are deleted."""
        while self.files.maintain():
            pass


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_circuit, "RANGE_BYTES_MIN", 1)
    monkeypatch.setattr(short_circuit, "PIECE_BYTES", 4000)
    monkeypatch.setattr(short_circuit, "_BUFFERS_MAX", 8)
    monkeypatch.setattr(bucket_reads, "REQUEST_BYTES", 4000)
    monkeypatch.setattr(bucket_reads, "_GAP_BYTES", 500)


@pytest.mark.usefixtures("short_ranges")
@pytest.mark.parametrize("machine", [Journals, BucketJournals])
def test_the_files_of_any_journal_give_the_bytes_that_the_store_gives(machine: type[Journals]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
