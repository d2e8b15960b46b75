"""Closed chapters of a journal in a bucket, read straight from there, with the credentials of this process.

A few requests are in flight, each of limited size. Every checksum is verified. Nothing is retried for long, because the
worker has the same bytes: whatever fails is a `Missed`, which is logged once for each kind of failure.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import BucketUnavailable, RequestError
from penstock.core.retry import RetryPolicy
from penstock.protocol.segment import LocatedObject, LocatedRow

log = logging.getLogger(__name__)

REQUEST_BYTES = 4 << 20
"""Read by one request, unless one row alone has more: beyond it, the time to the first byte hardly matters."""

REQUESTS_MAX = 4
"""In flight: they and their bytes are all the memory that a reader needs."""

AGAIN_SECONDS = 60.0
"""After the bucket has failed or refused, it is not asked for this long."""

_SILENCE_SECONDS = 10.0
"""After this long without a byte, the worker is the faster one."""

_RETRY = RetryPolicy(0.1, 0.5)
"""A request that is throttled or lost is sent once more. If that fails, too, it is more than an accident."""

_GAP_BYTES = 256 << 10
"""Rows of a segment lie this close together, or another request is cheaper than the bytes between them."""

_KEY = re.compile(r"shards/\d+/(parts/[\w-]+|log/\d+)", re.ASCII)


class Missed(Exception):
    """Why the bytes come from the worker."""


class _Differs(Exception):
    """The object does not have the bytes that the worker has located in it."""


class _Span(NamedTuple):
    """Rows that one request reads."""

    object: LocatedObject
    rows: list[LocatedRow]

    @property
    def start(self) -> int:
        """In the file, as all positions."""
        return self.rows[0].position

    @property
    def length(self) -> int:
        return _end(self.rows[-1]) - self.start


class BucketReads:
    """Rows from objects of buckets. Not thread-safe, and not to be used in a process that is forked later."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, opened: Callable[[str], Bucket] | None = None
    ) -> None:
        """`opened` replaces the opening of a bucket by its URL."""
        self._clock = clock
        self._opened = opened or _open
        self._buckets: dict[str, Bucket] = {}
        self._memory = bytearray()
        self._not_before = 0.0
        self._reported: set[type[Exception]] = set()

    @property
    def is_on(self) -> bool:
        return self._clock() >= self._not_before

    def read(self, rows: Iterable[LocatedRow], objects: Sequence[LocatedObject]) -> Generator[memoryview, None, None]:
        """The bytes that the segment has of these rows, in order. Each view is valid until the next one. Raises Missed.

        The objects are those of the worker's reply; each row names one by its number.
        """
        pool = ThreadPoolExecutor(REQUESTS_MAX, "penstock-bucket-reads")
        try:
            for span, data in self._fetched(pool, _spans(rows, objects)):
                yield self._verified(span, data)
        except Exception as error:  # whatever a store or its library raises: the worker has the bytes
            raise self._missed(error) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, pool: ThreadPoolExecutor, spans: Iterator[_Span]) -> Iterator[tuple[_Span, bytes]]:
        waiting: deque[tuple[_Span, Future[bytes]]] = deque()
        for span in spans:
            waiting.append((span, pool.submit(_get, self._bucket(span.object), span)))
            if len(waiting) == REQUESTS_MAX:
                first, future = waiting.popleft()
                yield first, future.result()
        for span, future in waiting:
            yield span, future.result()

    def _bucket(self, located: LocatedObject) -> Bucket:
        """Only for a part of a journal, whatever a worker replies."""
        if not _KEY.fullmatch(located.key):
            raise _Differs("the worker has not named an object of a journal")
        if located.url not in self._buckets:
            self._buckets[located.url] = self._opened(located.url)
        return self._buckets[located.url]

    def _verified(self, span: _Span, data: bytes) -> memoryview:
        size = sum(row.take for row in span.rows)
        if len(self._memory) < size:
            self._memory = bytearray(max(size, REQUEST_BYTES))
        found, fetched = memoryview(self._memory)[:size], memoryview(data)
        at = 0
        for row in span.rows:
            stored = fetched[row.position - span.start : _end(row) - span.start]
            if len(stored) != row.head_length + row.length or crc32c(stored) != row.checksum:
                raise _Differs(f"{span.object.url}/{span.object.key} at offset {row.position} fails its checksum")
            found[at : at + row.take] = stored[row.head_length + row.skip :][: row.take]
            at += row.take
        return found

    def _missed(self, error: Exception) -> Missed:
        """A chapter that compaction has deleted, or an object that differs, says nothing about the others."""
        if not isinstance(error, NoSuchObject | _Differs):
            self._not_before = self._clock() + AGAIN_SECONDS
        text = _text(error)
        if type(error) not in self._reported:
            self._reported.add(type(error))
            level = logging.INFO if isinstance(error, NoSuchObject) else logging.WARNING
            log.log(level, "the worker is read instead of its bucket: %s", text)
        return Missed(text)


def _open(url: str) -> Bucket:
    from penstock.bucket.stores import open_bucket  # here, since most readers never need it

    return open_bucket(url, timeout=_SILENCE_SECONDS)


def _text(error: Exception) -> str:
    if isinstance(error, NoSuchObject):
        return f"the object {error} is gone"
    return f"{error}. {error.hint}" if isinstance(error, RequestError) else str(error)


def _get(bucket: Bucket, span: _Span) -> bytes:
    get = partial(bucket.get_range, span.object.key, span.start - span.object.shift, span.length)
    try:
        return get()
    except BucketUnavailable:
        time.sleep(_RETRY.pause(1))
        return get()


def _end(row: LocatedRow) -> int:
    return row.position + row.head_length + row.length


def _spans(rows: Iterable[LocatedRow], objects: Sequence[LocatedObject]) -> Iterator[_Span]:
    span: list[LocatedRow] = []
    for row in rows:
        if span and not _is_near(span, row):
            yield _Span(objects[span[0].file], span)
            span = []
        span.append(row)
    if span:
        yield _Span(objects[span[0].file], span)


def _is_near(span: list[LocatedRow], row: LocatedRow) -> bool:
    gap = row.position - _end(span[-1])
    return row.file == span[0].file and 0 <= gap <= _GAP_BYTES and _end(row) - span[0].position <= REQUEST_BYTES
