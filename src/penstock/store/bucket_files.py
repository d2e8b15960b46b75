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
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, RLock

from penstock.bucket.objects import Bucket
from penstock.core.errors import PenstockError, StoreFailed, StoreInUse, Unavailable
from penstock.core.types import Buffer
from penstock.store.bucket_directory import (
    ALLOCATE,
    CREATE,
    PLACE,
    REMOVE,
    RENAME,
    SETTLE,
    TRUNCATE,
    WRITE,
    Entry,
    Fold,
    Operation,
    Part,
    PartsByFile,
    Range,
    data_of,
    redo,
)
from penstock.store.bucket_log import Patience
from penstock.store.files import Files, LocalFile, RemoteFile, RemotePart
from penstock.store.local_copy import LocalCopy
from penstock.store.log_object import LogObject
from penstock.store.part_cache import PartCache, clear, open_name
from penstock.store.settings import BucketSettings
from penstock.store.shard_directory import FileRemoved, ShardDirectory, StoredCounts

log = logging.getLogger(__name__)

_JOIN_SECONDS_MAX = 10.0
"""The background thread may be in a request that hangs; it ends with the process."""
_MAINTAIN_SECONDS = 1.0
"""Between two looks for work."""
_BESIDE_ROOM_BYTES = 256 << 20
"""If the disk of the cache has less room than this, each write is tried before the bucket has it."""
_READ_HERE_SECONDS = 60.0
"""For so long after a reader has opened a local file, large writes are copied to local files."""
OWNER_SECONDS = 4.0
"""Between two looks whether another worker has taken over. The lease usually notices it earlier."""


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
        return open_name(self.id)


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
        """`cache` is a directory for local copies; those that are there are thrown away. `owner` names this worker to
        the next one. `sleep` replaces the waiting after a failed request. `read_only`: take over nothing, write
        nothing.
        """
        self._bucket = bucket
        self._cache_files = cache
        self._executor = executor
        self._settings = settings
        self._patience = Patience(sleep)
        self._state = RLock()
        """Of everything below. Whoever has it may get that of the shard's directory, not the other way round."""
        self._flushing = Lock()
        self._maintaining = Lock()
        self._work = Event()
        self._thread: threading.Thread | None = None
        self._pending: list[tuple[Operation, bytes]] = []
        self._appending: list[tuple[Operation, bytes]] = []
        """What was queued, on its way to the log."""
        self._pending_since = 0.0
        self._read_here_at = float("-inf")
        self._locked = self._read_only = read_only
        cache.lock()
        try:
            clear(cache)
            self._cache = PartCache(cache, bucket, settings.cache_bytes)
            self._shard = ShardDirectory(bucket, self._cache, shard, settings, self._patience, executor)
            self._open(owner)
        except BaseException:
            cache.close()
            raise
        self._patience.opened()

    @property
    def on_failure(self) -> Callable[[PenstockError], object]:
        """Called once, from any thread, when nothing can be written any more."""
        return self._shard.on_failure

    @on_failure.setter
    def on_failure(self, call: Callable[[PenstockError], object]) -> None:
        self._shard.on_failure = call

    # Opening.

    def _open(self, owner: str) -> None:
        logged = self._shard.open(None if self._read_only else owner)
        directory = self._shard.content
        self._next_id = directory.next_id
        self._nodes = {entry.name: _node(entry) for entry in directory.entries.values()}
        self._fill_local(logged)

    def _fill_local(self, logged: Sequence[LogObject]) -> None:
        """Files that may still change, or whose bytes the log has, get a local copy."""
        nodes = {node.id: node for node in self._nodes.values()}
        here = {self._shard.log.keys.log(group.number) for group in logged}
        for entry in self._shard.content.entries.values():
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
        for part, data in zip(parts, get(self._shard.get_part, parts), strict=True):
            local.write(part.start, data[part.skip : part.skip + part.length])
        node.local = local

    def _new_local(self, node: _Node) -> LocalCopy:
        file = self._cache_files.create(node.local_name)
        return LocalCopy(file, lambda: self._cache.shrink(1 << 62), partial(self._shard.read, node.id))

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
            self._read_here_at = time.monotonic()
            if node.local is not None:
                return self._cache_files.local(node.local_name) if node.local.is_complete else None
        return self._cache.local(node.local_name)

    def remote(self, name: str) -> RemoteFile | None:
        with self._state, self._shard.lock:
            node = self._nodes.get(name)
            entry = None if node is None else self._shard.content.entries.get(node.id)
            if entry is None or not entry.parts or not entry.is_stored:
                return None
            url = self._bucket.url
            parts = (RemotePart(part.start, part.end, url, part.key, part.start - part.skip) for part in entry.parts)
            return RemoteFile(tuple(sorted(parts)))

    def is_here(self, name: str, offset: int, length: int) -> bool:
        with self._state:
            node = self._nodes.get(name)
        if node is None:
            return True  # to read it fails at once
        local = node.local
        if local is None and self._cache.local(node.local_name) is not None:
            return True
        if local is not None and local.is_here(offset, length):
            return True
        return self._shard.is_cached(node.id, offset, length)

    def mend(self, name: str) -> bool:
        """The cache's disk is not trusted: what it has lost is read from the bucket, and what may be evicted is
        forgotten. Raises Unavailable.
        """
        with self._state:
            node = self._nodes.get(name)
        if node is None:
            return False
        if self._patience.problem:
            raise Unavailable(f"{name} cannot be read again now: {self._patience.problem}")
        self._shard.forget_cached(node.id)
        local = node.local
        if local is None:
            self._cache.forget_adopted(node.local_name)
            return True
        with suppress(FileRemoved):
            if local.mend(self._content(node)):
                log.warning("the disk of the cache has lost bytes of %s; they were read from the bucket", name)
        return True

    def is_intact(self, name: str, offset: int) -> bool:
        with self._state:
            node = self._nodes.get(name)
        return node is None or node.local is None or node.local.is_intact(offset)

    def _content(self, node: _Node) -> bytearray:
        """All bytes of a file, without its local copy. Raises FileRemoved."""
        with self._state:
            queued = [*self._appending, *self._pending]
        content = self._shard.content_of(node.id)
        for operation, data in queued:
            if operation[1] == node.id:
                redo(content, operation, data)
        return content

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
        self._patience.stop()
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
            return self._shard.read(node.id, offset, length) if adopted is None else adopted
        return local.read(offset, length).ljust(length, b"\0")

    def write(self, node: _Node, offset: int, data: bytes) -> None:
        if not data:
            return
        local = self._writable(node)
        is_new = offset >= node.written_end
        is_placed = is_new and len(data) >= self._settings.placed_bytes_min
        if is_placed and time.monotonic() - self._read_here_at > _READ_HERE_SECONDS:
            local.hold(offset, data)
        elif is_new and self._may_write_beside(len(data)):
            local.put_off(offset, data)
        else:
            self._write_local(local, offset, data)
        with self._state:
            node.size = max(node.size, offset + len(data))
            node.written_end = max(node.written_end, offset + len(data))
            self._queue([PLACE if is_placed else WRITE, node.id, offset, len(data)], data)

    def _write_local(self, local: LocalCopy, offset: int, data: bytes) -> None:
        """Waits for the bucket if it has to read from it."""
        failures = 0
        while True:
            try:
                return local.write(offset, data)
            except Unavailable as error:
                failures += 1
                self._patience.pause(failures)
                if self._patience.stopped.is_set():
                    raise StoreFailed(f"the worker stops while the object store does not answer: {error}") from error

    def _may_write_beside(self, length: int) -> bool:
        """Otherwise the caller learns of a full disk before the bucket has the bytes."""
        is_large = self._executor is not None and length >= self._settings.beside_bytes_min
        return is_large and self._cache_files.free_bytes() >= _BESIDE_ROOM_BYTES

    def _writable(self, node: _Node) -> LocalCopy:
        """Its local copy, which a stored file does not have."""
        with self._state:
            if node.local is None:
                self._cache.forget_adopted(node.local_name)
                with self._shard.lock:
                    parts = [*self._shard.content.entries[node.id].parts]
                self._copy_parts(node, parts)
            assert node.local is not None
            return node.local

    def allocate(self, node: _Node, size: int) -> None:
        with self._state:
            if size > node.size:
                node.size = size
                self._queue([ALLOCATE, node.id, size])

    def truncate(self, node: _Node, size: int) -> None:
        local = self._writable(node)
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
        if self._shard.has_much_to_fold:
            with suppress(Unavailable):  # the next sync tries it again
                self.maintain()

    def _flush(self) -> None:
        self.check()
        with self._state:
            self._appending, self._pending = self._pending, []
            copies = [(node.local, node.written_end) for node in self._nodes.values() if node.local]
        put_off = [copy.complete for copy, _ in copies if copy.has_put_off]
        guarded = self._shard.guarded
        beside = guarded(lambda: [self._executor.submit(complete) for complete in put_off if self._executor])
        try:
            if self._shard.append(self._appending):
                self._work.set()
        finally:
            guarded(lambda: _finish(beside))
        self._appending = []
        for copy, durable in copies:
            copy.give_up(durable, self._settings.held_bytes_max)

    def check(self) -> None:
        """Raise if nothing can be written any more."""
        self._shard.check()

    def check_owner(self) -> None:
        """One request. Raises TakenOver."""
        self._shard.check_owner()

    # Work in the background.

    def start(self) -> None:
        """Run `maintain` in a thread, until `close`."""
        self._thread = threading.Thread(target=self._run, name="penstock-bucket", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._patience.stopped.is_set():
            try:
                if not self.maintain():
                    self._work.wait(_MAINTAIN_SECONDS)
                    self._work.clear()
                if time.monotonic() - looked >= OWNER_SECONDS:
                    self.check_owner()
                    looked = time.monotonic()
            except Exception as error:
                if self._shard.has_failed or self._patience.stopped.is_set():
                    return
                log.error("the log in the bucket could not be maintained, and is tried again: %s", error)
                self._patience.stopped.wait(_MAINTAIN_SECONDS)

    def maintain(self) -> bool:
        """One step of the work that keeps the log short and the bucket clean; False if there is none now."""
        with self._maintaining:
            self.check()
            if self._shard.delete_orphans():
                return True
            self._flush_old()
            fold = self._shard.begin_fold()
            if fold is None:
                return False
            self._finish_fold(fold, self._write_parts(fold))
            return True

    def _flush_old(self) -> None:
        """What was done without a sync: chapters that were removed."""
        with self._state:
            age = time.monotonic() - self._pending_since
            is_due = bool(self._pending) and age >= self._settings.linger_seconds
        if is_due:
            with self._flushing:
                self._flush()

    def _write_parts(self, fold: Fold) -> PartsByFile:
        with self._state:
            nodes = {node.id: node for node in self._nodes.values()}
        parts: PartsByFile = {work.file: [] for work in fold.work}
        try:
            for work in fold.work:
                for wanted in work.ranges:
                    data = self._bytes_to_fold(nodes.get(work.file), wanted)
                    parts[work.file].append(self._shard.create_part(wanted, data))
        except BaseException:
            self._shard.give_up_fold(fold, parts)
            raise
        return parts

    def _bytes_to_fold(self, node: _Node | None, wanted: Range) -> bytes:
        """Bytes that were cut off or removed meanwhile are zeros: the log after the checkpoint says so."""
        length, data = wanted.end - wanted.start, b""
        if node is not None and node.local is not None:
            with suppress(FileRemoved):  # a moment ago, and only the bucket had these bytes
                verified = node.local.read_verified(wanted.start, wanted.end)
                data = self._lost_bytes(node, wanted) if verified is None else verified
        return data.ljust(length, b"\0")

    def _lost_bytes(self, node: _Node, wanted: Range) -> bytes:
        """The log still has what the local copy should have. Nothing else may get a fresh checksum."""
        log.warning("the disk of the cache has lost bytes of %s; they are read from the bucket", node.local_name)
        self._shard.forget_cached(node.id)
        content = self._content(node)
        if node.local is not None:
            node.local.mend(content)
        return bytes(content[wanted.start : wanted.end])

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
            checkpoint = self._shard.append_checkpoint(fold, parts)
        with self._state, self._shard.lock:
            self._shard.finish_fold(fold, parts)
            self._hand_over_to_cache()
        try:
            self._shard.delete_released(fold, checkpoint)
        except BaseException:
            self._shard.give_up_fold(fold, {})
            raise

    def _hand_over_to_cache(self) -> None:
        """The local copy of a file whose bytes are in parts for good may be evicted; one that lacks some is removed."""
        for node in self._nodes.values():
            entry, local = self._shard.content.entries.get(node.id), node.local
            if local is None or local.has_put_off or entry is None or not entry.is_stored:
                continue
            if local.is_complete:
                self._cache.adopt(node.local_name, entry.size)
            else:
                self._drop_local(node)
            node.local = None

    # For display.

    @property
    def problem(self) -> str:
        return self._patience.problem

    def counts(self) -> StoredCounts:
        return self._shard.counts()


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
    for error in [write.exception() for write in writes]:
        if error is not None:
            raise error
