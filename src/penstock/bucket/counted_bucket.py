"""How much a bucket is used, and whether it works: for status and metrics."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from penstock.bucket.objects import Bucket, ListedObject, StoredObject
from penstock.core.errors import BucketFailed, BucketForbidden, BucketFull, BucketThrottled
from penstock.core.types import Buffer

RATE_SECONDS = 10
"""The rate is an average over this time."""

KEYS_PER_REQUEST = 1000
"""Of a list or a deletion on S3. Google and Azure need more requests for a deletion; no store charges for one."""


_MONTH_SECONDS = 30 * 24 * 3600


def per_month(per_second: float) -> int:
    """Requests, at this rate."""
    return round(per_second * _MONTH_SECONDS)


@dataclass(frozen=True, slots=True)
class BucketProblem:
    """Why requests fail: since the last one that did not."""

    kind: str
    """throttled, unreachable, forbidden or full"""
    message: str
    seconds: float
    """For how long."""


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Since the start of the process, except for the rate."""

    requests: Mapping[str, int]
    """By kind: get, put, delete, list."""
    failures: Mapping[str, int]
    """By kind of problem."""
    bytes_read: int
    bytes_written: int
    requests_per_second: float
    problem: BucketProblem | None


class CountedBucket:
    """The same bucket, with its requests counted."""

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock = clock
        self._lock = Lock()
        self._requests: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._bytes_read = self._bytes_written = 0
        self._recent = Rate(clock())
        self._problem: tuple[str, str, float] | None = None

    @property
    def url(self) -> str:
        return self._bucket.url

    def get(self, key: str) -> StoredObject:
        with self._counted("get"):
            found = self._bucket.get(key)
        self._add_bytes(read=len(found.data))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._counted("get"):
            data = self._bucket.get_range(key, start, length)
        self._add_bytes(read=len(data))
        return data

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        with self._counted("put"):
            version = self._bucket.create(key, buffers)
        self._add_bytes(written=sum(map(len, buffers)))
        return version

    def replace(self, key: str, data: bytes, version: str) -> str:
        with self._counted("put"):
            version = self._bucket.replace(key, data, version)
        self._add_bytes(written=len(data))
        return version

    def delete(self, keys: Sequence[str]) -> None:
        with self._counted("delete", -(-len(keys) // KEYS_PER_REQUEST)):
            self._bucket.delete(keys)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        objects = self._bucket.list(prefix)
        page = self._next_page(objects)
        while len(page) == KEYS_PER_REQUEST:
            yield from page
            page = self._next_page(objects)
        yield from page

    def counts(self) -> BucketCounts:
        now = self._clock()
        with self._lock:
            problem = self._problem and BucketProblem(self._problem[0], self._problem[1], now - self._problem[2])
            return BucketCounts(
                requests=dict(self._requests),
                failures=dict(self._failures),
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                requests_per_second=self._recent.per_second(now),
                problem=problem,
            )

    def _next_page(self, objects: Iterator[ListedObject]) -> "tuple[ListedObject, ...]":
        with self._counted("list"):
            return tuple(islice(objects, KEYS_PER_REQUEST))

    @contextmanager
    def _counted(self, kind: str, requests: int = 1) -> Iterator[None]:
        """An answer that is not a failure of the store, such as NoSuchObject, ends a problem."""
        failed: BucketFailed | None = None
        try:
            yield
        except BucketFailed as error:
            failed = error
            raise
        finally:
            self._note(kind, requests, failed)

    def _note(self, kind: str, requests: int, failed: BucketFailed | None) -> None:
        now = self._clock()
        with self._lock:
            self._requests[kind] += requests
            self._recent.add(now, requests)
            if failed is None:
                self._problem = None
                return
            problem = _kind_of(failed)
            self._failures[problem] += 1
            since = self._problem[2] if self._problem is not None and self._problem[0] == problem else now
            self._problem = (problem, str(failed), since)

    def _add_bytes(self, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self._bytes_read += read
            self._bytes_written += written


def _kind_of(error: BucketFailed) -> str:
    match error:
        case BucketThrottled():
            return "throttled"
        case BucketForbidden():
            return "forbidden"
        case BucketFull():
            return "full"
    return "unreachable"


class Rate:
    """Counts of the last seconds, one for each."""

    __slots__ = ("_counts", "_seconds", "_start")

    def __init__(self, now: float) -> None:
        self._start = now
        self._counts = [0] * (RATE_SECONDS + 1)
        self._seconds = [0] * (RATE_SECONDS + 1)

    def add(self, now: float, count: int) -> None:
        second = int(now)
        place = second % len(self._counts)
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place] = second, 0
        self._counts[place] += count

    def per_second(self, now: float) -> float:
        """Over the last whole seconds, or since the start if that is less."""
        last = int(now)
        first = max(last - RATE_SECONDS, int(self._start))
        counted = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in counted if first <= second < last) / max(last - first, 1)
