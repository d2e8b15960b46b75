"""The journal's files in a bucket (docs/internals/bucket.md): written to a local cache and, at each sync, to the log.

Data flows one way: `write` and the like change the local files and queue operations; `sync` writes what is queued as
one object; `maintain`, in the background, moves bytes from the log to parts, and deletes what is no longer needed.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, RLock
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from crc32c import crc32c

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import (
    BucketFailed,
    BucketForbidden,
    BucketFull,
    BucketUnavailable,
    Damaged,
    PenstockError,
    StoreFailed,
    StoreInUse,
    TakenOver,
    Unavailable,
)
from penstock.core.retry import RetryPolicy
from penstock.core.types import Buffer
from penstock.store.bucket_directory import (
    ALLOCATE,
    CREATE,
    PLACE,
    PLACED_BYTES_MIN,
    REMOVE,
    RENAME,
    SETTLE,
    TRUNCATE,
    WRITE,
    Directory,
    Entry,
    Fold,
    Operation,
    Part,
    PartsByFile,
    Range,
    data_of,
    groups,
)
from penstock.store.bucket_log import OBJECT_BYTES_MAX, Kind, LogObject, ShardLog
from penstock.store.files import Files, LocalFile, RemoteFile, RemotePart
from penstock.store.local_copy import LocalCopy
from penstock.store.part_cache import PartCache

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    cache_bytes: int = 1 << 30
    """Of the local cache, without the open chapter."""

    object_bytes_max: int = OBJECT_BYTES_MAX

    groups_max: int = 500
    """Groups in the log before it is folded: a take-over reads them all, 16 at a time: a second at 30 ms each."""

    unfolded_bytes_max: int = 128 << 20
    """Bytes that only the log has, before a sync folds them itself: a take-over reads them all."""

    linger_seconds: float = 1.0
    """How long a removed file waits for others, to share one object of the log."""

    release_seconds: float = 30.0
    """Between two folds that serve no purpose but to delete objects."""

    placed_bytes_min: int = PLACED_BYTES_MIN
    """A write of this size stays in its object of the log."""


SHARDS = "shards/"
"""The prefix of all shards' objects."""
_REQUESTS = RetryPolicy(0.05, 5.0)
_OPENING_SECONDS_MAX = 30.0
"""How long a start waits for a store that cannot be reached."""
_READ_TRIES = 4
_JOIN_SECONDS_MAX = 10.0
"""The background thread may be in a request that hangs; it ends with the process."""
_FAILURES_LOGGED = 3
"""One failure or two are nothing unusual."""
_MAINTAIN_SECONDS = 1.0
"""Between two looks for work."""
_BESIDE_BYTES_MIN = 64 << 10
"""A write of this size goes to the local file while it goes to the bucket: less would not be worth a thread."""
_BESIDE_ROOM_BYTES = 256 << 20
"""If the disk of the cache has less room than this, each write is tried before the bucket has it."""
_OWNER_SECONDS = 2.0
"""Between two looks whether another worker has taken over, while nothing is written."""


def shard_prefix(shard: int) -> str:
    """Of the shard's objects."""
    return f"{SHARDS}{shard}"


@dataclass(slots=True, eq=False)
class _Node:
    """A file as this process sees it, with what is not durable yet. It outlives its name while it is open."""

    id: int
    size: int
    settled: bool = False
    local: LocalCopy | None = None
    """All its bytes. None if they are in parts alone, and read through the cache."""
    written_end: int = 0
    """Nothing was written at or behind it."""

    @property
    def local_name(self) -> str:
        return f"open-{self.id}.journal"


class BucketFile:
    """An open file of BucketFiles."""

    __slots__ = ("_files", "_node")

    def __init__(self, files: "BucketFiles", node: _Node) -> None:
        self._files = files
        self._node: _Node | None = node

    @property
    def _open(self) -> _Node:
        if self._node is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._node

    def read(self, offset: int, length: int) -> bytes:
        return self._files.read(self._open, offset, length)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._files.write(self._open, offset, b"".join(buffers))

    def sync(self) -> None:
        _ = self._open
        self._files.sync()

    def allocate(self, size: int) -> None:
        """Sets nothing aside: a bucket has no fixed size."""
        self._files.allocate(self._open, size)

    def truncate(self, size: int) -> None:
        self._files.truncate(self._open, size)

    def size(self) -> int:
        return self._open.size

    def close(self) -> None:
        self._node = None


class StoredCounts(NamedTuple):
    """For people."""

    objects: int
    bytes: int
    log_objects: int
    """Groups since the last checkpoint."""
    cached_bytes: int


class BucketFiles:
    """Implements `Files`. Opening it takes over the shard: from then on, the former owner's writes fail.

    `sync` waits for as long as the bucket cannot be reached, throttles, refuses or is full; `problem` says why. It
    raises TakenOver when another worker has taken over, and then so do all later calls.
    """

    def __init__(
        self,
        bucket: Bucket,
        cache: Files,
        *,
        shard: int = 0,
        owner: str = "a worker",
        settings: BucketSettings = BucketSettings(),  # noqa: B008  frozen
        executor: Executor | None = None,
        sleep: Callable[[float], object] | None = None,
        read_only: bool = False,
    ) -> None:
        """`cache` is a directory of its own, whose content is thrown away. `owner` names this worker to the next one.
        `sleep` replaces the waiting after a failed request. `read_only`: take over nothing, write nothing.
        """
        self._bucket = bucket
        self._cache_files = cache
        self._executor = executor
        self._settings = settings
        self._state = RLock()
        self._flushing = Lock()
        self._maintaining = Lock()
        self._closing = Event()
        self._sleep = sleep or self._closing.wait
        self._work = Event()
        self._thread: threading.Thread | None = None
        self._opening_until: float | None = time.monotonic() + _OPENING_SECONDS_MAX
        self._failure: PenstockError | None = None
        self._problem = ""
        self._locked = self._read_only = read_only
        self.on_failure: Callable[[PenstockError], object] = lambda _: None
        """Called once, from any thread, when nothing can be written any more."""
        cache.lock()
        try:
            self._clear_cache()
            self._cache = PartCache(cache, bucket, settings.cache_bytes)
            self._log = ShardLog(bucket, shard_prefix(shard), uuid4().bytes, self, executor)
            self._open(owner)
        except BaseException:
            cache.close()
            raise
        self._opening_until = None

    def _clear_cache(self) -> None:
        for name in self._cache_files.list():
            self._cache_files.remove(name)

    # Opening.

    def _open(self, owner: str) -> None:
        logged: list[LogObject] = []

        def begin(directory: Any) -> None:
            self._directory, self._released, self._logged_bytes = Directory.decode(directory), list[str](), 0
            logged.clear()

        def apply(group: LogObject) -> None:
            self._directory.apply(group.body, self._log.place(group), self._released)
            logged.append(group)

        if self._read_only:
            self._log.read(begin, apply)
        else:
            self._log.take_over(owner, begin, apply)
        # From here on nobody deletes what the directory names.
        self._applied = self._log.next - 1
        self._groups = len(logged)
        self._logged_bytes = sum(len(group.data) for group in logged)
        self._pending: list[tuple[Operation, bytes]] = []
        self._pending_since = 0.0
        self._part_number = 0
        self._folded_at = float("-inf")
        self._next_id = self._directory.next_id
        self._used_at_start: set[str] | None = self._directory.part_keys()
        entries = self._directory.entries
        self._nodes = {entry.name: _node(entry) for entry in entries.values()}
        self._fill_local(logged)

    def _fill_local(self, logged: Sequence[LogObject]) -> None:
        """Files that may still change, or whose bytes the log has, get a local copy."""
        nodes = {node.id: node for node in self._nodes.values()}
        here = {self._log.keys.log(group.number) for group in logged}
        for entry in self._directory.entries.values():
            if not entry.is_stored:
                self._copy_parts(nodes[entry.id], [part for part in entry.parts if part.key not in here])
        for group in logged:
            for operation, data in data_of(group.body, group.data):
                node = nodes.get(operation[1])
                if node is not None and node.local is not None:
                    _redo(node.local, operation, data)

    def _copy_parts(self, node: _Node, parts: Sequence[Part]) -> None:
        local = self._new_local(node)
        get = self._executor.map if self._executor is not None else map
        for part, data in zip(parts, get(self._get_part, parts), strict=True):
            local.write(part.start, data[part.skip : part.skip + part.length])
        node.local = local

    def _new_local(self, node: _Node) -> LocalCopy:
        return LocalCopy(self._cache_files.create(node.local_name), lambda: self._cache.shrink(1 << 62))

    def _get_part(self, part: Part) -> bytes:
        try:
            return self._log.get_part(part.key, part.checksum)
        except NoSuchObject:
            raise self._missing(part.key) from None

    # Files.

    def list(self) -> list[str]:
        with self._state:
            return sorted(self._nodes)

    def create(self, name: str) -> BucketFile:
        with self._state:
            if name in self._nodes:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            node = self._nodes[name] = _Node(self._next_id, 0)
            self._next_id += 1
            node.local = self._new_local(node)
            self._queue([CREATE, node.id, name])
        return BucketFile(self, node)

    def open(self, name: str) -> BucketFile:
        with self._state:
            return BucketFile(self, self._find(name))

    def rename(self, old: str, new: str) -> None:
        with self._state:
            node = self._find(old)
            if old == new:
                return
            del self._nodes[old]
            self._drop_local(self._nodes.get(new))
            self._nodes[new] = node
            self._queue([RENAME, node.id, new])

    def remove(self, name: str) -> None:
        with self._state:
            node = self._find(name)
            del self._nodes[name]
            self._drop_local(node)
            self._queue([REMOVE, node.id])

    def _drop_local(self, node: _Node | None) -> None:
        """Its name is gone; whoever has it open keeps the local file open."""
        if node is not None and node.local is None:
            self._cache.forget_adopted(node.local_name)
        elif node is not None:
            with suppress(OSError):  # somebody has cleaned up the cache: the bucket has the file
                self._cache_files.remove(node.local_name)

    def settle(self, name: str) -> None:
        with self._state:
            node = self._find(name)
            if not node.settled:
                node.settled = True
                self._queue([SETTLE, node.id])

    def _find(self, name: str) -> _Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def local(self, name: str) -> LocalFile | None:
        with self._state:
            node = self._nodes.get(name)
            if node is None:
                return None
            if node.local is not None:
                return self._cache_files.local(node.local_name)
        return self._cache.local(node.local_name)

    def remote(self, name: str) -> RemoteFile | None:
        with self._state:
            node = self._nodes.get(name)
            entry = None if node is None else self._directory.entries.get(node.id)
            if entry is None or not entry.parts or not entry.is_stored:
                return None
            url = self._bucket.url
            parts = (RemotePart(part.start, part.end, url, part.key, part.start - part.skip) for part in entry.parts)
            return RemoteFile(tuple(sorted(parts)))

    def free_bytes(self) -> int:
        """On the disk of the cache, which the open chapter needs."""
        return self._cache_files.free_bytes() + self._cache.used_bytes

    def lock(self) -> None:
        """Opening has taken over the shard already."""
        if self._locked and not self._read_only:
            raise StoreInUse(f"{self._bucket.url} is in use by this process")
        self._locked = True

    def stop_waiting(self) -> None:
        """A call that waits for the bucket fails instead."""
        self._closing.set()
        self._work.set()

    def close(self) -> None:
        """Ends the background thread, and a sync that waits for the bucket."""
        self.stop_waiting()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS_MAX)
        self._locked = False
        self._cache_files.close()

    # Open files.

    def read(self, node: _Node, offset: int, length: int) -> bytes:
        local = node.local
        length = min(length, node.size - offset)
        if length <= 0:
            return b""
        if local is None:
            adopted = self._cache.read_adopted(node.local_name, offset, length)
            return self._read_parts(node, offset, length) if adopted is None else adopted
        return local.read(offset, length).ljust(length, b"\0")

    def _read_parts(self, node: _Node, offset: int, length: int) -> bytes:
        with self._state:
            entry = self._directory.entries.get(node.id)
            parts = [] if entry is None else [*entry.parts]
        if entry is None:
            raise LookupError("the file was removed")
        data = bytearray(length)
        for part in parts:
            start, end = max(part.start, offset), min(part.end, offset + length)
            if start < end:
                data[start - offset : end - offset] = self._read_part(node, part, start, end)
        return bytes(data)

    def _read_part(self, node: _Node, part: Part, start: int, end: int) -> bytes:
        at = part.skip + start - part.start
        try:
            return self._read_bucket(part.key, lambda: self._cache.read(part.key, at, end - start))
        except NoSuchObject:
            if not self._is_named(node, part.key):
                raise LookupError("the file was removed") from None
            raise self._missing(part.key) from None

    def _is_named(self, node: _Node, key: str) -> bool:
        """Whether the object should exist: a file may be removed while it is read."""
        with self._state:
            entry = self._directory.entries.get(node.id)
            return entry is not None and key in entry.part_keys()

    def _read_bucket(self, key: str, read: Callable[[], bytes]) -> bytes:
        """Tries a few times, or once if the store is known to be away; a reader may ask again later."""
        for failures in range(1, _READ_TRIES + 1):
            try:
                return read()
            except BucketFailed as error:
                is_last = failures == _READ_TRIES or bool(self._problem) or self._closing.is_set()
                if is_last or not isinstance(error, BucketUnavailable):
                    raise Unavailable(f"object {key} cannot be read now: {error}", error.hint) from error
                self._sleep(_REQUESTS.pause(failures))
        raise AssertionError("unreachable")

    def _missing(self, key: str) -> Damaged:
        """Raises TakenOver if another worker may have deleted it."""
        if not self._read_only:
            self.check_owner()
        return Damaged(f"object {key} is missing in {self._bucket.url}", "Restore it from a copy of the bucket.")

    def write(self, node: _Node, offset: int, data: bytes) -> None:
        if not data:
            return
        local = self._writable(node)
        if self._may_write_beside(len(data)):
            local.put_off(offset, data)
        else:
            local.write(offset, data)
        with self._state:
            is_placed = len(data) >= self._settings.placed_bytes_min and offset >= node.written_end
            node.size = max(node.size, offset + len(data))
            node.written_end = max(node.written_end, offset + len(data))
            self._queue([PLACE if is_placed else WRITE, node.id, offset, len(data)], data)

    def _may_write_beside(self, length: int) -> bool:
        """Otherwise the caller learns of a full disk before the bucket has the bytes."""
        is_large = self._executor is not None and length >= _BESIDE_BYTES_MIN
        return is_large and self._cache_files.free_bytes() >= _BESIDE_ROOM_BYTES

    def _writable(self, node: _Node) -> LocalCopy:
        """Its local copy, which a stored file does not have."""
        with self._state:
            if node.local is None:
                self._cache.forget_adopted(node.local_name)
                self._copy_parts(node, self._directory.entries[node.id].parts)
            assert node.local is not None
            return node.local

    def allocate(self, node: _Node, size: int) -> None:
        with self._state:
            if size > node.size:
                node.size = size
                self._queue([ALLOCATE, node.id, size])

    def truncate(self, node: _Node, size: int) -> None:
        local = self._writable(node)
        local.complete()
        with self._state:
            if size < node.size:
                local.truncate(size)
                node.size = size
                node.written_end = min(node.written_end, size)
                self._queue([TRUNCATE, node.id, size])

    # The log.

    def _queue(self, operation: Operation, data: bytes = b"") -> None:
        if self._read_only:
            raise OSError(errno.EROFS, "the bucket is opened for reading only")
        if not self._pending:
            self._pending_since = time.monotonic()
        self._pending.append((operation, data))

    def sync(self) -> None:
        """Everything that was done before the call is durable when it returns."""
        with self._flushing:
            self._flush()
        if self._logged_bytes > self._settings.unfolded_bytes_max:
            self.maintain()

    def _flush(self) -> None:
        self.check()
        with self._state:
            pending, self._pending = self._pending, []
            copies = [node.local for node in self._nodes.values() if node.local and not node.local.is_complete]
        beside = self._append(lambda: [self._executor.submit(copy.complete) for copy in copies if self._executor])
        try:
            self._write_groups(pending)
        finally:
            self._append(lambda: _finish(beside))

    def _write_groups(self, pending: Sequence[tuple[Operation, bytes]]) -> None:
        for operations, data in groups(pending, self._settings.object_bytes_max):
            place = self._append(partial(self._log.append, Kind.GROUP, operations, data))
            with self._state:
                self._directory.apply(operations, place, self._released)
                self._applied = self._log.next - 1
                self._groups += 1
                self._logged_bytes += sum(map(len, data))
                due = self._groups >= self._settings.groups_max or any(
                    operation[0] == SETTLE for operation in operations
                )
            if due:
                self._work.set()

    def _append(self, append: Callable[[], T]) -> T:
        """If it raises, nobody knows what the log has, or another owns it: nothing more may be written."""
        try:
            return append()
        except PenstockError as error:
            self._fail(error)
            raise
        except BaseException as error:  # what was queued is gone: without it, later groups would leave a hole
            self._fail(StoreFailed(f"the log in the bucket could not be written: {error!r}"))
            raise

    def _fail(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
            self.on_failure(error)

    def check(self) -> None:
        """Raise if nothing can be written any more."""
        if self._failure is not None:
            kind = TakenOver if isinstance(self._failure, TakenOver) else StoreFailed
            raise kind(str(self._failure), self._failure.hint)

    def wait(self, failures: int, error: BucketFailed) -> None:
        """The log's patience: while opening, errors that waiting does not mend are raised, and later none."""
        if self._opening_until is not None and (
            isinstance(error, BucketForbidden | BucketFull) or time.monotonic() > self._opening_until
        ):
            raise error
        if failures == _FAILURES_LOGGED:
            log.warning("the object store has failed %d times in a row; retrying: %s", failures, error)
        self._problem = f"{error}. {error.hint}"
        self._sleep(_REQUESTS.pause(failures))
        if self._closing.is_set():
            raise StoreFailed(f"the worker stops while the object store does not answer: {error}", error.hint)

    def answered(self) -> None:
        self._problem = ""

    # Work in the background.

    def start(self) -> None:
        """Run `maintain` in a thread, until `close`."""
        self._thread = threading.Thread(target=self._run, name="penstock-bucket", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._closing.is_set():
            try:
                if not self.maintain():
                    self._work.wait(_MAINTAIN_SECONDS)
                    self._work.clear()
                if time.monotonic() - looked >= _OWNER_SECONDS:
                    self.check_owner()
                    looked = time.monotonic()
            except Exception as error:
                if self._failure is not None or self._closing.is_set():
                    return
                log.error("the log in the bucket could not be maintained, and is tried again: %s", error)
                self._closing.wait(_MAINTAIN_SECONDS)

    def check_owner(self) -> None:
        """One request. Raises TakenOver."""
        try:
            self._log.check_owner()
        except TakenOver as error:
            self._fail(error)
            raise

    def maintain(self) -> bool:
        """One step of the work that keeps the log short and the bucket clean; False if there is none now."""
        with self._maintaining:
            self.check()
            if self._used_at_start is not None:
                self._log.delete(self._log.orphans(self._used_at_start))
                self._used_at_start = None
                return True
            self._flush_old()
            fold = self._begin_fold()
            if fold is None:
                return False
            try:
                self._finish_fold(fold, self._write_parts(fold))
            except BaseException:
                self._released += fold.released  # for the next one
                raise
            return True

    def _flush_old(self) -> None:
        """What was done without a sync: chapters that were removed."""
        with self._state:
            age = time.monotonic() - self._pending_since
            is_due = bool(self._pending) and age >= self._settings.linger_seconds
        if is_due:
            with self._flushing:
                self._flush()

    def _begin_fold(self) -> Fold | None:
        with self._state:
            is_due = self._groups >= self._settings.groups_max or self._release_is_due()
            if not is_due and not self._directory.has_unstored():
                return None
            fold = self._directory.begin_fold(self._applied + 1, self._released, self._settings.placed_bytes_min)
            self._released, self._folded_at = [], time.monotonic()
            self._folding = self._groups, self._logged_bytes
            return fold

    def _release_is_due(self) -> bool:
        return bool(self._released) and time.monotonic() - self._folded_at >= self._settings.release_seconds

    def _write_parts(self, fold: Fold) -> PartsByFile:
        with self._state:
            nodes = {node.id: node for node in self._nodes.values()}
        return {work.file: [self._write_part(nodes.get(work.file), one) for one in work.ranges] for work in fold.work}

    def _write_part(self, node: _Node | None, wanted: Range) -> Part:
        """Bytes that were cut off or removed meanwhile are written as zeros: the log after the checkpoint says so."""
        length, data = wanted.end - wanted.start, b""
        if node is not None and node.local is not None:
            data = node.local.read(wanted.start, length)
        data = data.ljust(length, b"\0")
        self._part_number += 1
        return Part(self._log.create_part(self._part_number, data), 0, wanted.start, length, crc32c(data))

    def _is_outdated(self, fold: Fold) -> bool:
        """Whether a file of the fold was removed, replaced or cut off. Its parts may have zeros instead of what was
        durable: the log must say why before the checkpoint counts.
        """
        files = {work.file for work in fold.work}
        with self._state:
            is_cut = any(operation[0] == TRUNCATE and operation[1] in files for operation, _ in self._pending)
            return is_cut or not files <= {node.id for node in self._nodes.values()}

    def _finish_fold(self, fold: Fold, parts: PartsByFile) -> None:
        with self._flushing:
            self.check()
            if self._is_outdated(fold):
                self._flush()
            number = self._append(partial(self._log.append_checkpoint, fold.first, fold.checkpoint(parts)))
            with self._state:
                self._applied = number
        with self._state:
            self._directory.finish_fold(fold, parts, self._released)
            self._hand_over_to_cache()
            self._groups -= self._folding[0]
            self._logged_bytes -= self._folding[1]
        if self._log.move_head(number, fold.first):
            with self._state:
                used = self._directory.part_keys()
            self._log.delete_before(number, fold.first, used)
            self._log.delete(fold.released)
        for key in fold.released:
            self._cache.forget(key)

    def _hand_over_to_cache(self) -> None:
        """The local copy of a file whose bytes are in parts for good may be evicted."""
        for node in self._nodes.values():
            entry = self._directory.entries.get(node.id)
            if node.local is not None and node.local.is_complete and entry is not None and entry.is_stored:
                self._cache.adopt(node.local_name, entry.size)
                node.local = None

    # For people.

    @property
    def problem(self) -> str:
        return self._problem

    def counts(self) -> StoredCounts:
        with self._state:
            parts = [part for entry in self._directory.entries.values() for part in entry.parts]
            objects = len({part.key for part in parts}) + self._log.objects
            size = sum(part.length for part in parts) + self._logged_bytes
            return StoredCounts(objects, size, self._groups, self._cache.used_bytes)


def _redo(local: LocalCopy, operation: Operation, data: memoryview) -> None:
    match operation:
        case [2 | 8, _, offset, _]:
            local.write(offset, data)
        case [3, _, size]:
            local.truncate(size)


def _node(entry: Entry) -> _Node:
    ends = [part.end for part in entry.parts] + [end for _, end in entry.logged]
    return _Node(entry.id, entry.size, entry.settled, written_end=max(ends, default=0))


def _finish(writes: Sequence[Future[None]]) -> None:
    """Wait for all of them. Raises what one has raised."""
    for write in wait(writes).done:
        write.result()
