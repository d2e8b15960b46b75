"""The directory of a shard as its log has it: what is durable, how it is read, and what may be deleted
(docs/internals/bucket.md).

`BucketFiles` has the files as this process sees them, and decides when to append and to fold.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from threading import RLock
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from crc32c import crc32c

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import (
    BucketFailed,
    BucketUnavailable,
    Damaged,
    PenstockError,
    StoreFailed,
    TakenOver,
    Unavailable,
)
from penstock.store.bucket_directory import (
    SETTLE,
    Directory,
    Fold,
    Operation,
    Part,
    PartsByFile,
    Range,
    data_of,
    groups,
    overwrite,
    redo,
)
from penstock.store.bucket_log import Patience, ShardLog
from penstock.store.log_object import Kind, LogObject, shard_prefix
from penstock.store.part_cache import PartCache
from penstock.store.settings import BucketSettings

T = TypeVar("T")

log = logging.getLogger(__name__)

ORPHANS_SECONDS = 24 * 3600.0
"""Between two looks for orphans: two listings, and one more for each 1,000 objects."""
_DELETION_PAUSE_MAX = 3600.0
_READ_TRIES = 4


class FileRemoved(LookupError):
    """The file has no bytes any more, here or in the bucket."""


class StoredCounts(NamedTuple):
    """For display."""

    objects: int
    bytes: int
    log_objects: int
    """Groups since the last checkpoint."""
    cached_bytes: int


class ShardDirectory:
    """Any thread may read; one at a time appends, and one at a time folds.

    Calls that write wait for as long as `patience` has it. Once one has failed, it is unknown what the log has, or
    another worker owns it: nothing more is written, and `check` raises.
    """

    def __init__(
        self,
        bucket: Bucket,
        cache: PartCache,
        shard: int,
        settings: BucketSettings,
        patience: Patience,
        executor: Executor | None = None,
    ) -> None:
        self.log = ShardLog(bucket, shard_prefix(shard), uuid4().bytes, patience, executor)
        self.content = Directory()
        self.lock = RLock()
        """Of `content`."""
        self.on_failure: Callable[[PenstockError], object] = lambda _: None
        """Called once, from any thread, when nothing can be written any more."""
        self._bucket = bucket
        self._cache = cache
        self._settings = settings
        self._patience = patience
        self._failure: PenstockError | None = None
        self._is_owner = False
        self._released: list[str] = []
        """Keys that no file needs any more. They are deleted when a checkpoint says so."""
        self._used_at_start: set[str] = set()
        self._orphans_due_at = 0.0
        self._deletion_pause = 0.0
        """After deletions that have failed."""
        self._applied = 0
        """The last number of the log that is in `content`."""
        self._groups = self._logged_bytes = 0
        """What only the log has."""
        self._folding = (0, 0)
        """How much of it is being folded."""
        self._folded_before = 1
        """The first number of the log that no checkpoint has."""
        self._folded_at = float("-inf")
        self._part_number = 0

    def open(self, owner: str | None) -> list[LogObject]:
        """Take over the shard; without an owner's name, only read. Returns the groups since the last checkpoint."""
        logged: list[LogObject] = []

        def begin(directory: Any) -> None:
            self.content, self._released = Directory.decode(directory), []
            logged.clear()

        def apply(group: LogObject) -> None:
            self.content.apply(group.body, self.log.place(group), self._released)
            logged.append(group)

        if owner is None:
            self.log.read(begin, apply)
        else:
            self.log.take_over(owner, begin, apply)
            self._is_owner = True  # from here on nothing else deletes what the directory names
        self._applied = self.log.next - 1
        self._folded_before = self.log.base.first
        self._groups = len(logged)
        self._logged_bytes = sum(len(group.data) for group in logged)
        self._used_at_start = self.content.part_keys()
        return logged

    # Writing.

    def append(self, pending: Sequence[tuple[Operation, bytes]]) -> bool:
        """Returns, when they are durable, whether there is something to fold."""
        is_due = False
        for operations, data in groups(pending, self._settings.object_bytes_max):
            place = self.guarded(partial(self.log.append, Kind.GROUP, operations, data))
            with self.lock:
                self.content.apply(operations, place, self._released)
                self._applied = self.log.next - 1
                self._groups += 1
                self._logged_bytes += sum(map(len, data))
            is_due = is_due or any(operation[0] == SETTLE for operation in operations)
        return is_due or self._has_many_groups()

    def guarded(self, write: Callable[[], T]) -> T:
        """If it raises, nothing more is written."""
        try:
            return write()
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

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raise if nothing can be written any more."""
        if self._failure is not None:
            kind = TakenOver if isinstance(self._failure, TakenOver) else StoreFailed
            raise kind(str(self._failure), self._failure.hint)

    def check_owner(self) -> None:
        """One request. Raises TakenOver."""
        try:
            self.log.check_owner()
        except TakenOver as error:
            self._fail(error)
            raise

    @property
    def has_much_to_fold(self) -> bool:
        """So much that a take-over would take long."""
        return self._logged_bytes > self._settings.unfolded_bytes_max

    # Folding: bytes move from the log to parts, and what is no longer needed is deleted.

    def delete_orphans(self) -> bool:
        """After a take-over, and once a day: what a dead worker has sent may arrive late. False if it is not due."""
        if time.monotonic() < self._orphans_due_at:
            return False
        try:
            self.log.delete(self.log.orphans(self._used_at_start))
        except BucketFailed as error:
            self._orphans_due_at = time.monotonic() + self._postpone_deletions(error)
            return False
        self._orphans_due_at = time.monotonic() + ORPHANS_SECONDS
        return True

    def _postpone_deletions(self, error: BucketFailed) -> float:
        """Objects cost their storage alone: nothing waits for their deletion. Returns the pause."""
        self._deletion_pause = min(max(self._settings.release_seconds, self._deletion_pause * 2), _DELETION_PAUSE_MAX)
        log.warning("objects that are not needed could not be deleted, and are kept for now: %s", error)
        return self._deletion_pause

    def begin_fold(self) -> Fold | None:
        """None if there is nothing to fold or to delete."""
        with self.lock:
            is_due = self._has_many_groups() or self._release_is_due()
            if not is_due and not self.content.has_unstored():
                return None
            fold = self.content.begin_fold(self._applied + 1, self._released, self._settings.placed_bytes_min)
            self._released, self._folded_at = [], time.monotonic()
            self._folding = self._groups, self._logged_bytes
            return fold

    def _has_many_groups(self) -> bool:
        return self._groups >= self._settings.groups_max

    def _release_is_due(self) -> bool:
        return bool(self._released) and time.monotonic() - self._folded_at >= max(
            self._settings.release_seconds, self._deletion_pause
        )

    def create_part(self, wanted: Range, data: bytes) -> Part:
        self._part_number += 1
        key = self.log.create_part(self._part_number, data)
        return Part(key, 0, wanted.start, len(data), crc32c(data))

    def give_up_fold(self, fold: Fold, parts: PartsByFile) -> None:
        """The next one deletes what this one has released, and the parts that were created for nothing."""
        with self.lock:
            self._released += fold.released + [part.key for created in parts.values() for part in created]

    def append_checkpoint(self, fold: Fold, parts: PartsByFile) -> int:
        """Returns its number. From here on the parts count."""
        number = self.guarded(partial(self.log.append_checkpoint, fold.first, fold.checkpoint(parts)))
        with self.lock:
            self._applied = number
        return number

    def finish_fold(self, fold: Fold, parts: PartsByFile) -> None:
        """After its checkpoint."""
        with self.lock:
            self.content.finish_fold(fold, parts, self._released)
            self._folded_before = fold.first
            self._groups -= self._folding[0]
            self._logged_bytes -= self._folding[1]

    def delete_released(self, fold: Fold, checkpoint: int) -> None:
        """What the checkpoint of the fold has released, unless a successor has moved the head: then it deletes it. What
        cannot be deleted is left to the next fold.
        """
        if self.log.move_head(checkpoint, fold.first):
            with self.lock:
                used = self.content.part_keys()
            try:
                self.log.delete_before(checkpoint, fold.first, used)
                self.log.delete(fold.released)
                self._deletion_pause = 0.0
            except BucketFailed as error:
                self._postpone_deletions(error)
                self.give_up_fold(fold, {})
        for key in fold.released:
            self._cache.forget(key)

    # Reading.

    def read(self, file: int, offset: int, length: int) -> bytes:
        """What parts have of a file; the rest is zeros. Raises FileRemoved."""
        with self.lock:
            entry = self.content.entries.get(file)
            parts = [] if entry is None else [*entry.parts]
        if entry is None:
            raise FileRemoved("the file was removed")
        data = bytearray(length)
        for part in parts:
            start, end = max(part.start, offset), min(part.end, offset + length)
            if start < end:
                data[start - offset : end - offset] = self._read_part(file, part, start, end)
        return bytes(data)

    def is_cached(self, file: int, offset: int, length: int) -> bool:
        """Whether `read` needs no request."""
        with self.lock:
            entry = self.content.entries.get(file)
            parts = [] if entry is None else [*entry.parts]
        for part in parts:
            start, end = max(part.start, offset), min(part.end, offset + length)
            if start < end and not self._cache.has(part.key, part.skip + start - part.start, end - start):
                return False
        return True

    def _read_part(self, file: int, part: Part, start: int, end: int) -> bytes:
        at = part.skip + start - part.start
        try:
            return self._read_cached(part.key, lambda: self._cache.read(part.key, at, end - start))
        except NoSuchObject:
            if not self._is_named(file, part.key):
                raise FileRemoved("the file was removed") from None
            raise self._missing(part.key) from None

    def _is_named(self, file: int, key: str) -> bool:
        """Whether the object should exist: a file may be removed while it is read."""
        with self.lock:
            entry = self.content.entries.get(file)
            return entry is not None and key in entry.part_keys()

    def _read_cached(self, key: str, read: Callable[[], bytes]) -> bytes:
        """Tries a few times, or once if the store is known to be away; a reader may ask again later."""
        for failures in range(1, _READ_TRIES + 1):
            try:
                return read()
            except BucketFailed as error:
                is_away = bool(self._patience.problem) or self._patience.stopped.is_set()
                if failures == _READ_TRIES or is_away or not isinstance(error, BucketUnavailable):
                    raise Unavailable(f"object {key} cannot be read now: {error}", error.hint) from error
                self._patience.pause(failures)
        raise AssertionError("unreachable")

    def forget_cached(self, file: int) -> None:
        """What the cache has of it may be wrong."""
        with self.lock:
            entry = self.content.entries.get(file)
            keys = set() if entry is None else entry.part_keys()
        for key in keys:
            self._cache.forget(key)

    def content_of(self, file: int) -> bytearray:
        """All durable bytes of a file, verified: from its parts, and from the log since the last checkpoint. Takes a
        request for each object. Raises FileRemoved and Damaged.
        """
        while True:
            with self.lock:
                entry = self.content.entries.get(file)
                if entry is None:
                    raise FileRemoved("the file was removed")
                parts, first, last = [*entry.parts], self._folded_before, self._applied
            try:
                return self._content(file, parts, range(first, last + 1))
            except NoSuchObject as error:
                with self.lock:
                    if first == self._folded_before and file in self.content.entries:
                        raise self._missing(str(error)) from None

    def _content(self, file: int, parts: Sequence[Part], numbers: Sequence[int]) -> bytearray:
        content = bytearray()
        for part in parts:
            overwrite(content, part.start, self.log.get_part(part.key, part.checksum)[part.skip :][: part.length])
        for number in numbers:
            group = self.log.get(number)
            for operation, data in data_of(group.body, group.data) if group.kind is Kind.GROUP else ():
                if operation[1] == file:
                    redo(content, operation, data)
        return content

    def get_part(self, part: Part) -> bytes:
        """The whole object, verified."""
        try:
            return self.log.get_part(part.key, part.checksum)
        except NoSuchObject:
            raise self._missing(part.key) from None

    def _missing(self, key: str) -> Damaged:
        """Raises TakenOver if another worker may have deleted it."""
        if self._is_owner:
            self.check_owner()
        return Damaged(f"object {key} is missing in {self._bucket.url}", "Restore it from a copy of the bucket.")

    # For display.

    def counts(self) -> StoredCounts:
        with self.lock:
            parts = [part for entry in self.content.entries.values() for part in entry.parts]
            objects = len({part.key for part in parts}) + self.log.objects
            size = sum(part.length for part in parts) + self._logged_bytes
            return StoredCounts(objects, size, self._groups, self._cache.used_bytes)
