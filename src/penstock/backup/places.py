"""Where a worker's data are: in a directory or in a bucket. Both are opened as files, to be copied and verified."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.access.file import FILE as ACCESS_FILE
from penstock.backup.contents import JOURNAL, PLAIN_FILES
from penstock.bucket.objects import Bucket, ListedObject, NoSuchObject, ObjectExists, StoredObject
from penstock.bucket.probe import probe
from penstock.bucket.stores import open_bucket
from penstock.cluster.lease import monotonic_seconds
from penstock.cluster.lease_state import LEASE_TIMING, LeaseTiming, OwnerWatch
from penstock.cluster.places import Thing
from penstock.cluster.records import (
    READERS,
    PlaceRecord,
    ShardRecord,
    WorkerRecord,
    encode,
    read_record,
    shard_key,
    worker_key,
)
from penstock.cluster.records import SHARDS as SHARD_RECORDS
from penstock.core.errors import (
    BucketForbidden,
    BucketFull,
    BucketUnavailable,
    RequestError,
    StoreInUse,
    TakenOver,
    Unavailable,
)
from penstock.core.retry import RetryPolicy
from penstock.core.types import Buffer
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_log import reading_threads
from penstock.store.chapters import INCOMPLETE, chapter_bases
from penstock.store.files import Files, RealFiles
from penstock.store.log_object import SHARDS
from penstock.store.settings import BucketSettings
from penstock.worker import bucket_shard
from penstock.worker.cluster_access import ACCESS

T = TypeVar("T")

UNAVAILABLE_SECONDS_MAX = 60.0
"""A command gives up when the store has answered nothing for this long. It can be run again."""

_REQUESTS = RetryPolicy(0.1, 5.0)

_CACHE_BYTES = 256 << 20
"""On the local disk, while a bucket is read or written."""

_NEW_PLACE = "Name a directory that does not exist, or a prefix of the bucket that is empty."


class OpenPlace(NamedTuple):
    """The files at a place. In a bucket, one directory has them all."""

    journal: Files
    plain: Files
    """With those besides the journal: see `plain_files`."""

    def check_unused(self) -> None:
        """Raises StoreInUse if a worker has started on the bucket since it was opened. A directory is locked."""
        if isinstance(self.journal, BucketFiles):
            try:
                self.journal.check_owner()
            except TakenOver:
                raise StoreInUse("a worker has started on the bucket that is copied", _STOP) from None

    def finish(self) -> None:
        """Bring what was written into the form that it has for good."""
        while isinstance(self.journal, BucketFiles) and self.journal.maintain():
            pass


def place(text: str) -> "Directory | BucketPlace":
    """Raises RequestError for an invalid URL."""
    return BucketPlace(text) if "://" in text else Directory(Path(text))


class Directory:
    """A worker's data directory."""

    plain_files = PLAIN_FILES

    def __init__(self, data: Path) -> None:
        self.name = str(data)
        self.data = data

    @property
    def location(self) -> str:
        """Places below it have locations that begin with it."""
        return self.data.resolve().as_uri()

    @contextmanager
    def reading(self) -> Iterator[OpenPlace]:
        """Locked: no worker starts there. Raises StoreInUse, RequestError if there is no journal."""
        self.check_journal()
        with self.comparing() as found:
            found.journal.lock()
            if not chapter_bases(found.journal):
                raise self._no_journal()
            yield found

    def check_journal(self) -> None:
        """Raises RequestError if there is none."""
        if not (self.data / JOURNAL).is_dir():
            raise self._no_journal()

    def _no_journal(self) -> RequestError:
        return RequestError(f"{self.data} has no journal", "Name a worker's data directory, or a bucket's URL.")

    @contextmanager
    def writing(self) -> Iterator[OpenPlace]:
        """Raises RequestError unless the directory is empty, or has an incomplete copy; StoreInUse."""
        if self.data.exists() and not self.data.is_dir():
            raise RequestError(f"{self.data} is not a directory", _NEW_PLACE)
        is_new = not self.data.exists() or not any(self.data.iterdir())
        if not is_new and not (self.data / JOURNAL / INCOMPLETE).exists():
            raise RequestError(f"{self.data} is not empty, and nothing in it is overwritten", _NEW_PLACE)
        with self.comparing() as found:
            found.journal.lock()
            yield found

    @contextmanager
    def comparing(self) -> Iterator[OpenPlace]:
        """What was written, to be read back."""
        plain = RealFiles(self.data)
        journal = RealFiles(self.data / JOURNAL)
        try:
            yield OpenPlace(journal, plain)
        finally:
            journal.close()
            plain.close()


class BucketPlace:
    """A bucket below a prefix."""

    plain_files = (*bucket_shard.PLAIN_FILES, ACCESS_FILE)

    def __init__(self, url: str, timing: LeaseTiming = LEASE_TIMING, shard: int = 0) -> None:
        self.bucket: Bucket = ImpatientBucket(open_bucket(url))
        self.name = self.bucket.url
        self.shard = shard
        self._timing = timing

    @property
    def location(self) -> str:
        """Places below it have locations that begin with it."""
        url = urlsplit(self.name)
        return Path(unquote(url.path)).resolve().as_uri() if url.scheme == "file" else self.name

    def shards(self) -> list[int]:
        """Those that have been served. Raises what the store raises."""
        keys = _asked(lambda: [one.key for one in self.bucket.list(SHARD_RECORDS)])
        numbers = (key.removeprefix(SHARD_RECORDS) for key in keys)
        return sorted(int(number) for number in numbers if number.isdigit())

    def of_shard(self, shard: int) -> "BucketPlace":
        return BucketPlace(self.name, self._timing, shard)

    def access_list(self) -> bytes | None:
        """Of the cluster; None if it has none."""
        try:
            return _asked(lambda: self.bucket.get(ACCESS)).data
        except NoSuchObject:
            return None

    def put_access_list(self, content: bytes) -> None:
        """Of a new cluster."""
        with suppress(ObjectExists):
            _asked(lambda: self.bucket.create(ACCESS, [content]))

    def put_places(self, things: Iterable[Thing]) -> None:
        """Of a new cluster: they are in this shard. Otherwise, they would get places in other shards when they are next
        used. May be repeated.
        """
        data = encode(PlaceRecord(shard=self.shard))

        def put(thing: Thing) -> None:
            with suppress(ObjectExists):
                _asked(lambda: self.bucket.create(thing.key, [data]))

        with ThreadPoolExecutor(READERS, thread_name_prefix="places") as threads:
            for _ in threads.map(put, things):
                pass

    @contextmanager
    def reading(self) -> Iterator[OpenPlace]:
        """Writes nothing: credentials that allow reading will do. Raises StoreInUse while a worker lives there,
        RequestError if there is no journal.
        """
        self.check_unused()
        with self.comparing() as found:
            if not chapter_bases(found.journal):
                raise self.no_journal()
            yield found

    def no_journal(self) -> RequestError:
        return RequestError(f"{self.name} has no journal", "Check the name of the bucket, and the prefix.")

    @contextmanager
    def comparing(self) -> Iterator[OpenPlace]:
        """What was written, to be read back."""
        with self._opened(read_only=True) as files:
            yield OpenPlace(files, files)

    @contextmanager
    def writing(self) -> Iterator[OpenPlace]:
        """Raises RequestError unless there is nothing below the prefix, or an incomplete copy; StoreInUse; what `probe`
        raises.
        """
        strangers = self._strangers()
        if strangers:
            raise RequestError(f"{self.name} is not empty: it has {strangers[0]}", _NEW_PLACE)
        _asked(lambda: probe(self.bucket))
        self.check_unused()
        with self._opened(read_only=True) as files:
            if files.list() and INCOMPLETE not in files.list():
                raise RequestError(f"{self.name} has a journal, and nothing in it is overwritten", _NEW_PLACE)
        with self._opened(read_only=False) as files:
            files.start()
            yield OpenPlace(files, files)

    def _strangers(self) -> list[str]:
        """Objects that are not part of a store. Of very many objects only some are looked at."""
        keys = _asked(lambda: [one.key for one in islice(self.bucket.list(""), 10_000)])
        return [key for key in keys if not key.startswith((SHARDS, "cluster/"))]

    @contextmanager
    def _opened(self, *, read_only: bool) -> Iterator[BucketFiles]:
        with ExitStack() as stack:
            threads = stack.enter_context(reading_threads())
            cache = stack.enter_context(new_cache())
            files = BucketFiles(
                self.bucket,
                cache(),
                shard=self.shard,
                owner=f"penstock store copy on {socket.gethostname()}",
                settings=BucketSettings(cache_bytes=_CACHE_BYTES),
                executor=threads,
                read_only=read_only,
            )
            stack.callback(files.close)
            yield files

    def check_unused(self) -> None:
        """Raises StoreInUse. If a worker has left its lease behind, this takes six seconds."""
        found = _asked(lambda: live_owner(self.bucket, self._timing, shard=self.shard))
        if found is not None:
            raise StoreInUse(f"{self.name} is in use by worker {found.worker}", _STOP)


_STOP = "Stop the worker, then run the command again."


def live_owner(
    bucket: Bucket,
    timing: LeaseTiming,
    clock: Callable[[], float] = monotonic_seconds,
    sleep: Callable[[float], object] = time.sleep,
    shard: int = 0,
) -> WorkerRecord | None:
    """The worker that owns the shard, if it renews its lease within the time after which it may be taken for dead."""
    place = read_record(bucket, shard_key(shard), ShardRecord)
    if place is None:
        return None
    watch, first = OwnerWatch(timing), None
    while True:
        asked = clock()
        found = read_record(bucket, worker_key(place[0].owner), WorkerRecord)
        if found is None or found[0].has_ended:
            return None
        if first is not None and found[0].revision != first:
            return found[0]
        first = found[0].revision
        waiting = watch.look(found[0], asked, clock())
        if waiting is None:
            return None
        sleep(watch.pause(waiting))


Place: TypeAlias = Directory | BucketPlace


@contextmanager
def new_cache() -> Iterator[Callable[[], Files]]:
    """Opens one of its own at each call, in the folder for temporary files (TMPDIR)."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        yield lambda: RealFiles(Path(tempfile.mkdtemp(dir=folder)))


def _asked(request: Callable[[], T]) -> T:
    for attempt in _REQUESTS.retrying(UNAVAILABLE_SECONDS_MAX, BucketUnavailable):
        with attempt:
            answer = request()
    return answer


class ImpatientBucket:
    """The same bucket for a command that a person waits for: what waiting does not mend, or has not mended for a
    minute, is raised as Unavailable, which nothing below retries.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock = clock
        self._failing_since: float | None = None

    @property
    def url(self) -> str:
        return self._bucket.url

    def get(self, key: str) -> StoredObject:
        with self._translated():
            return self._bucket.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._translated():
            return self._bucket.get_range(key, start, length)

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        with self._translated():
            return self._bucket.create(key, buffers)

    def replace(self, key: str, data: bytes, version: str) -> str:
        with self._translated():
            return self._bucket.replace(key, data, version)

    def delete(self, keys: Sequence[str]) -> None:
        with self._translated():
            self._bucket.delete(keys)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        with self._translated():
            yield from self._bucket.list(prefix)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except BucketUnavailable as error:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since > UNAVAILABLE_SECONDS_MAX:
                raise Unavailable(str(error), "Check the network and the object store, and run it again.") from error
            raise
        except BucketFull as error:
            hint = "Raise the quota of the bucket or free space in it, and run it again."
            raise Unavailable(str(error), hint) from error
        except BucketForbidden as error:
            raise Unavailable(str(error), error.hint) from error
        self._failing_since = None
