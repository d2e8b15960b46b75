"""Verifies everything that a bucket has of a journal: the log and its chain, parts, and the records in them. Writes
nothing and takes over nothing, so it may run beside a worker: what that deletes meanwhile is not reported.
"""

from collections.abc import Callable, Iterator, Set
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import BucketUnavailable, Damaged, Unavailable, UnreadableFormat
from penstock.core.retry import RetryPolicy
from penstock.store.bucket_directory import Directory, Part, Place
from penstock.store.bucket_files import BucketFiles
from penstock.store.files import File, Files, RemoteFile
from penstock.store.log_object import (
    NO_HEAD,
    Checkpoint,
    Head,
    Kind,
    LogObject,
    Prefix,
    decode,
    decode_head,
    shard_prefix,
)
from penstock.store.settings import BucketSettings
from penstock.store.verify import Progress, VerifyReport, verify

T = TypeVar("T")

_REQUESTS = RetryPolicy(0.1, 5.0)
_UNAVAILABLE_SECONDS_MAX = 30.0
"""How long a request is repeated while the store cannot be reached."""

_TRIES = 3
"""A worker may replace what is being read: then it is read again."""

_CACHE_BYTES = 64 << 20
"""Objects are read once and in order: a cache hardly helps."""


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    object: str
    what: str

    def __str__(self) -> str:
        return f"{self.object}: {self.what}"


@dataclass(slots=True)
class BucketReport:
    log_objects: int = 0
    """Those that a start reads: from the newest checkpoint on."""
    parts: int = 0
    bytes_read: int = 0
    orphans: list[str] = field(default_factory=list)
    """Objects that nothing names: left by a crash, or being written right now. The next worker deletes them."""
    problems: list[ObjectProblem] = field(default_factory=list)
    journal: VerifyReport | None = None
    """Of the records in the files; None if damage keeps the files from being read."""

    @property
    def is_sound(self) -> bool:
        return not self.problems and self.journal is not None and self.journal.is_sound


def verify_bucket(
    bucket: Bucket,
    new_cache: Callable[[], Files],
    executor: Executor | None = None,
    progress: Progress = lambda _done, _total: None,
    shard: int = 0,
) -> BucketReport:
    """`new_cache` opens a directory whose content is thrown away. Raises UnreadableFormat for data of another version,
    and what the store raises.
    """
    for _ in range(_TRIES):
        run = _Verify(bucket, new_cache, executor, progress, shard)
        with suppress(_Moved):
            return run.run()
    raise Unavailable(f"{bucket.url} changes faster than it can be verified", "Stop its worker, and try again.")


class _Moved(Exception):
    """What was read has been replaced meanwhile."""


class _Undetermined(Exception):
    """Damage keeps the rest from being read."""


@dataclass(slots=True)
class _Log:
    """What was found in the log."""

    head: Head
    problems: dict[str, str] = field(default_factory=dict)
    found: dict[int, LogObject] = field(default_factory=dict)
    take_overs: set[int] = field(default_factory=set)
    parts: dict[str, Part] = field(default_factory=dict)
    """What the directory at the end names."""
    released: set[str] = field(default_factory=set)
    """Parts that a checkpoint names, and the directory at the end does not. A worker that starts deletes them."""
    names: set[str] = field(default_factory=set)
    """Of the files."""
    bytes_read: int = 0

    def needs(self, number: int) -> bool:
        return number >= self.head.first or number == self.head.checkpoint or number in self.take_overs


class _Verify:
    def __init__(
        self, bucket: Bucket, new_cache: Callable[[], Files], executor: Executor | None, progress: Progress, shard: int
    ) -> None:
        self._bucket = bucket
        self._new_cache = new_cache
        self._executor = executor
        self._progress = progress
        self._shard = shard
        self._keys = Prefix(shard_prefix(shard))
        self._report = BucketReport()
        self._total = 0
        self._checked: set[str] = set()

    def run(self) -> BucketReport:
        listed, log = self._read_log()
        self._report.log_objects, self._report.parts = len(log.found), len(log.parts)
        self._total = log.bytes_read + sum(listed.get(key, part.length) for key, part in log.parts.items())
        self._count(log.bytes_read)
        self._report.orphans = sorted(key for key in listed if self._is_orphan(key, log))
        if not log.problems:
            self._check_files(log, {key for key in log.parts if key not in listed and not self._exists(key)})
            if self._report.journal is None and not self._report.problems:
                raise _Moved  # the files could not be read, and nothing is wrong with them
        self._keep_lasting(log)
        return self._report

    # The log.

    def _read_log(self) -> tuple[dict[str, int], _Log]:
        """The shard's objects with their sizes, by a listing, and what the log says."""
        listed = {
            one.key: one.size for one in self._asked(lambda: [*self._bucket.list(f"{shard_prefix(self._shard)}/")])
        }
        log = _Log(NO_HEAD)
        log.head = self._read_head(log)
        base = self._read_checkpoint(log)
        log.take_overs.update(base.take_overs)
        self._walk(log, max((self._number(key) for key in listed), default=0))
        for number in log.take_overs:
            if number < log.head.first and self._get(log, number) is None:
                log.problems.setdefault(self._keys.log(number), "the object, a take-over, is missing")
        if not log.problems:
            self._apply(log, base)
        return listed, log

    def _number(self, key: str) -> int:
        """Of an object of the log; 0 for any other."""
        return self._keys.number(key) or 0

    def _read_head(self, log: _Log) -> Head:
        try:
            data = self._asked(lambda: self._bucket.get(self._keys.head)).data
        except NoSuchObject:
            return NO_HEAD
        try:
            return decode_head(self._keys.head, data)
        except UnreadableFormat:
            raise
        except Damaged as error:
            log.problems[self._keys.head] = str(error)
            return NO_HEAD

    def _read_checkpoint(self, log: _Log) -> Checkpoint:
        number = log.head.checkpoint
        if not number:
            return Checkpoint(0, 1, None, [])
        found = self._get(log, number)
        if found is not None and found.kind is Kind.CHECKPOINT:
            return Checkpoint(number, *found.body)
        what = "the object is missing" if found is None else "the object is not a checkpoint"
        log.problems.setdefault(self._keys.log(number), f"{what}, and {self._keys.head} names it")
        return Checkpoint(number, log.head.first, None, [])

    def _walk(self, log: _Log, last: int) -> None:
        """From the first number that counts to the end; a number that is absent before the last one is missing."""
        before: LogObject | None = None
        number = log.head.first
        while True:
            key = self._keys.log(number)
            found = self._get(log, number)
            if found is None and key not in log.problems:
                if number > last:
                    return
                log.problems[key] = "the object is missing, and later ones exist"
            if found is not None and before is not None and found.chain != before.checksum:
                log.problems[key] = "the object does not continue the one before it"
            if found is not None and found.kind is Kind.TAKE_OVER:
                log.take_overs.add(number)
            before, number = found, number + 1

    def _get(self, log: _Log, number: int) -> LogObject | None:
        """None if it is absent or damaged."""
        if number in log.found:
            return log.found[number]
        key = self._keys.log(number)
        try:
            data = self._asked(lambda: self._bucket.get(key)).data
        except NoSuchObject:
            return None
        log.bytes_read += len(data)
        try:
            found = log.found[number] = decode(key, data)
        except UnreadableFormat:
            raise
        except Damaged as error:
            log.problems[key] = str(error)
            return None
        if found.number != number:
            log.problems[key] = f"the object claims to be number {found.number}"
        return found

    def _apply(self, log: _Log, base: Checkpoint) -> None:
        directory = Directory.decode(base.directory)
        named = directory.part_keys()
        for number in sorted(log.found):
            if number > base.number and log.found[number].kind is Kind.CHECKPOINT:
                base = Checkpoint(number, *log.found[number].body)
                directory = Directory.decode(base.directory)
                named |= directory.part_keys()
        for number in sorted(log.found):
            if number >= base.first and log.found[number].kind is Kind.GROUP:
                found = log.found[number]
                directory.apply(found.body, Place(self._keys.log(number), found.skip, found.checksum), [])
        for entry in directory.entries.values():
            log.names.add(entry.name)
            log.parts.update((part.key, part) for part in entry.parts)
        log.released = named - log.parts.keys()

    def _is_orphan(self, key: str, log: _Log) -> bool:
        if log.problems or key in log.parts or key in log.released:
            return False
        number = self._keys.number(key)
        return key.startswith(self._keys.parts) if number is None else not log.needs(number)

    # Parts, and the records in them.

    def _check_files(self, log: _Log, missing: set[str]) -> None:
        for key in missing:
            self._checked.add(key)
            self._report.problems.append(ObjectProblem(key, "the object is missing"))
        with suppress(_Undetermined), self._opened(log, missing) as files:
            self._report.journal = verify(cast("Files", files))  # which lists, opens and reads
        for key, part in log.parts.items():
            if key not in self._checked:
                self._check_part(key, part)

    def _exists(self, key: str) -> bool:
        try:
            self._asked(lambda: self._bucket.get_range(key, 0, 1))
        except NoSuchObject:
            return False
        return True

    @contextmanager
    def _opened(self, log: _Log, missing: Set[str]) -> Iterator["_FetchedFiles"]:
        """Raises _Undetermined if a file that is still written is damaged. Its objects are checked as all others."""
        settings = BucketSettings(cache_bytes=_CACHE_BYTES)
        try:
            files = BucketFiles(
                self._bucket,
                self._new_cache(),
                shard=self._shard,
                settings=settings,
                executor=self._executor,
                read_only=True,
            )
        except UnreadableFormat:
            raise
        except Damaged:
            raise _Undetermined from None
        try:
            yield _FetchedFiles(files, missing, lambda key: self._fetch(key, log))
        finally:
            files.close()

    def _fetch(self, key: str, log: _Log) -> bytes:
        """Raises _Moved if it has been replaced since the log was read."""
        part = log.parts.get(key)
        data = None if part is None else self._check_part(key, part)
        if data is None:
            raise _Moved
        return data

    def _check_part(self, key: str, part: Part) -> bytes | None:
        """Its bytes, as they are; None if it is missing."""
        self._checked.add(key)
        try:
            data = self._asked(lambda: self._bucket.get(key)).data
        except NoSuchObject:
            self._report.problems.append(ObjectProblem(key, "the object is missing"))
            return None
        self._count(len(data))
        if not self._keys.is_intact(key, data, part.checksum):
            self._report.problems.append(ObjectProblem(key, f"its {len(data)} bytes fail their checksum"))
        return data

    def _keep_lasting(self, log: _Log) -> None:
        """What is wrong, and still needed when everything has been read, is damage."""
        report = self._report
        if not log.problems and not report.problems and (report.journal is None or report.journal.is_sound):
            return
        _, again = self._read_log()
        if bool(log.problems) != bool(again.problems):
            raise _Moved
        lasting = [one for one in report.problems if again.problems or one.object in again.parts]
        lasting += [ObjectProblem(key, what) for key, what in again.problems.items()]
        report.problems = sorted(lasting, key=lambda problem: problem.object)
        if report.journal is not None:
            report.journal.problems = [one for one in report.journal.problems if one.file in again.names]

    def _asked(self, request: Callable[[], T]) -> T:
        for attempt in _REQUESTS.retrying(_UNAVAILABLE_SECONDS_MAX, BucketUnavailable):
            with attempt:
                answer = request()
        return answer

    def _count(self, read: int) -> None:
        self._report.bytes_read += read
        self._progress(self._report.bytes_read, max(self._total, self._report.bytes_read))


class _FetchedFiles:
    """The files for `verify`: those in parts are fetched whole and once, and the last one is kept in memory."""

    def __init__(self, files: BucketFiles, missing: Set[str], fetch: Callable[[str], bytes]) -> None:
        self._files = files
        self._missing = missing
        self._fetch = fetch
        self._kept: tuple[str, bytes] = ("", b"")

    def list(self) -> list[str]:
        """Without those whose bytes are missing."""
        return [name for name in self._files.list() if not self._is_missing(name)]

    def _is_missing(self, name: str) -> bool:
        remote = self._files.remote(name)
        return remote is not None and any(part.key in self._missing for part in remote.parts)

    def open(self, name: str) -> File:
        file, remote = self._files.open(name), self._files.remote(name)
        return file if remote is None else cast("File", _FetchedFile(file, lambda: self._bytes(name, remote)))

    def _bytes(self, name: str, remote: RemoteFile) -> bytes:
        if self._kept[0] != name:
            self._kept = ("", b"")  # not two of them at a time
            whole = [self._fetch(part.key)[part.start - part.shift :][: part.end - part.start] for part in remote.parts]
            self._kept = (name, b"".join(whole))
        return self._kept[1]


class _FetchedFile:
    def __init__(self, file: File, fetch: Callable[[], bytes]) -> None:
        self._file = file
        self._fetch = fetch

    def read(self, offset: int, length: int) -> bytes:
        return self._fetch()[offset : offset + length]

    def size(self) -> int:
        return self._file.size()
