"""Appends to a journal in an object store, each a group of its own, beside a bare loop of create-only PUTs of the same
size against the same store.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from uuid import uuid4

from bench.harness import MEGABYTE, workspace
from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_log import reading_threads
from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.seaweedfs import SeaweedFS

SEGMENT = "load"

SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "256 KiB": 256 << 10, "8 MiB": 8 << 20}
"""A lone small message; what many programs together send in some milliseconds, of which the larger one stays in its
object; and a pipe that is full.
"""

_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Appends:
    """What was acknowledged, one after the other."""

    bytes: int
    seconds: float
    latencies_ms: list[float]
    requests: Mapping[str, int] = field(default_factory=dict)
    """By kind, with those that move the log's bytes to parts afterwards."""
    written: int = 0
    """Bytes, with those that are moved."""

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / MEGABYTE

    @property
    def written_per_byte(self) -> float:
        return self.written / self.bytes

    def per_gb(self, kind: str) -> float:
        return self.requests.get(kind, 0) * 1000 * MEGABYTE / self.bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and a disk for caches."""

    store: SeaweedFS
    base: Path
    warmup_s: float
    measure_s: float

    @contextmanager
    def prefix(self) -> Iterator[Bucket]:
        """Of a bucket; what is written there is deleted."""
        bucket = open_bucket(self.store.url(uuid4().hex))
        try:
            yield bucket
        finally:
            keys = [one.key for one in bucket.list("")]
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                bucket.delete(keys[start : start + _DELETED_AT_ONCE])

    def timed(self, act: Callable[[], object], size: int) -> Appends:
        until = time.perf_counter() + self.warmup_s
        while time.perf_counter() < until:
            act()
        latencies: list[float] = []
        began = now = time.perf_counter()
        while now - began < self.measure_s:
            act()
            before, now = now, time.perf_counter()
            latencies.append((now - before) * 1000)
        return Appends(len(latencies) * size, now - began, latencies)


@dataclass(frozen=True, slots=True)
class BareLoop:
    name: str
    place: Place
    size: int

    def measure(self) -> Appends:
        data, numbers = os.urandom(self.size), count()
        with self.place.prefix() as bucket:
            return self.place.timed(lambda: bucket.create(f"{next(numbers):012d}", [data]), self.size)


@dataclass(frozen=True, slots=True)
class JournalLoop:
    name: str
    place: Place
    size: int

    def measure(self) -> Appends:
        data = os.urandom(self.size)
        with self.place.prefix() as bucket, workspace(self.place.base) as folder, reading_threads() as threads:
            counted = CountedBucket(bucket)
            with open_journal(counted, folder / "cache", threads) as (files, store):

                def append() -> None:
                    store.append(SEGMENT, [data])
                    commit(store)

                while files.maintain():  # what a start does
                    pass
                files.start()
                started, written = Counter(counted.counts().requests), counted.counts().bytes_written
                found = self.place.timed(append, self.size)
                while files.maintain():
                    pass
                segment = store.table.named(SEGMENT)
                assert segment is not None
            share = found.bytes / segment.length  # the rest was appended while it was warming up
            made = Counter(counted.counts().requests) - started
            written = counted.counts().bytes_written - written
            requests = {kind: round(number * share) for kind, number in made.items()}
            return replace(found, requests=requests, written=round(written * share))


@contextmanager
def open_journal(
    bucket: Bucket, cache: Path, threads: Executor, shard: int = 0
) -> Iterator[tuple[BucketFiles, SegmentStore]]:
    """With a segment to append to."""
    settings = StoreSettings()
    files = BucketFiles(bucket, RealFiles(cache), shard=shard, executor=threads)
    journal = FileJournal(files, settings)
    try:
        store = SegmentStore(journal, settings)
        if store.table.named(SEGMENT) is None:
            store.create(SEGMENT)
            commit(store)
        yield files, store
    finally:
        journal.close()


def commit(store: SegmentStore) -> None:
    assert isinstance(store.journal, FileJournal)
    store.journal.commit()


UNFOLDED_GROUP_BYTES = 256 << 10


def fill_log(bucket: Bucket, cache: Path, groups: int) -> None:
    """A journal whose log nobody has folded: a start reads all of it. With 499 groups, 125 MiB, there is as much as
    there can be.
    """
    block = os.urandom(UNFOLDED_GROUP_BYTES)
    with reading_threads() as threads, open_journal(bucket, cache, threads) as (_, store):
        for _ in range(groups):
            store.append(SEGMENT, [block])
            commit(store)


def fill(bucket: Bucket, cache: Path, size: int, shard: int = 0) -> None:
    """A journal with so many bytes, folded."""
    block = os.urandom(min(8 << 20, size))
    with reading_threads() as threads, open_journal(bucket, cache, threads, shard) as (files, store):
        files.start()
        for _ in range(-(-size // len(block))):
            store.append(SEGMENT, [block])
            commit(store)
        while files.maintain():
            pass
