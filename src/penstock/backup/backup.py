"""Takes a backup: copies one consistent state of a data directory into an archive."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Protocol
from uuid import uuid4

import penstock
from penstock.backup.archive import Archive, OnBytes
from penstock.backup.contents import (
    CHECKPOINTS,
    JOURNAL,
    PLAIN_FILES,
    Chapter,
    chapters_before,
    checkpoint_files,
    checkpoints_in,
    has_moved_on,
    missing_checkpoints,
)
from penstock.backup.manifest import FORMAT, SECRETS, Manifest, StoredFile, by_path, manifest_name
from penstock.client.coordinator.connection import WorkerClient
from penstock.coordinator.ledger import stored_state
from penstock.core.errors import Damaged, DiskFull, PenstockError, RequestError, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.backup import FixedPipeline, FixedPosition, KeepForBackup, Kept
from penstock.protocol.api.codec import Done
from penstock.spark.run.checkpoints import LocalCheckpoint, incarnation_of
from penstock.store.chapters import chapter_bases, chapter_name, file_offset, read_header
from penstock.store.files import Files, RealFile, RealFiles
from penstock.store.record import Entry, is_sound, scan
from penstock.store.recovery import sound_records
from penstock.store.spares import OUT_OF_SPACE
from penstock.worker.backups import fixed_pipelines

# One consistent state of a data directory that stays readable while it is copied: kept by the running worker, or by the
# directory's lock if no worker runs.

_FIX_SECONDS_MAX = 30.0
"""Time for what the worker has received to become durable."""


class BackupClient(WorkerClient):
    """`backup` is an id that the caller chooses."""

    def begin(self, backup: str) -> Kept:
        return self._post("/backup/begin", KeepForBackup(backup=backup), Kept)

    def renew(self, backup: str) -> Kept:
        return self._post("/backup/renew", KeepForBackup(backup=backup), Kept)

    def fix(self, backup: str) -> FixedPosition:
        return self._post("/backup/fix", KeepForBackup(backup=backup), FixedPosition, _FIX_SECONDS_MAX)

    def end(self, backup: str) -> None:
        self._post("/backup/end", KeepForBackup(backup=backup), Done)


_RENEWALS = 4
"""Per time that the worker keeps everything. Each is retried until the next one is due."""


class Fixed(NamedTuple):
    position: int
    chapters: Sequence[int]
    pipelines: Mapping[str, FixedPipeline]


class Snapshot(Protocol):
    is_live: bool

    def fix(self) -> Fixed:
        """From now on its chapters stay as they are up to the position."""
        ...

    def check(self) -> None:
        """Raise an error unless everything was kept until now."""
        ...


@dataclass(slots=True)
class StoppedWorker:
    """The directory is locked: no worker starts meanwhile."""

    files: Files
    is_live: bool = False

    def fix(self) -> Fixed:
        bases = chapter_bases(self.files)
        if not bases:
            raise RequestError("the data directory has no journal", "Name a worker's data directory: --data DIR")
        records = sound_records(self.files, bases)
        if records.damage:
            raise Damaged(str(records.damage[0]))
        return Fixed(records.entries[-1][1].end, bases, _by_name(fixed_pipelines(stored_state(self.files).pipelines)))

    def check(self) -> None:
        pass


class LiveWorker:
    """A thread renews what the worker keeps, as long as the backup takes."""

    is_live = True

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._id = uuid4().hex
        self._client = BackupClient(worker)
        self._ended = Event()
        self._failure: PenstockError | None = None
        seconds = self._client.begin(self._id).seconds
        self._thread = Thread(target=self._renew, args=(seconds / _RENEWALS,), name="backup", daemon=True)
        self._thread.start()

    def fix(self) -> Fixed:
        fixed = self._client.fix(self._id)
        return Fixed(fixed.position, fixed.chapters, _by_name(fixed.pipelines))

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._client.renew(self._id)

    def close(self) -> None:
        self._ended.set()
        with suppress(PenstockError):  # it is forgotten in any case, a little later
            self._client.end(self._id)
        self._client.close()
        self._thread.join()

    def _renew(self, seconds: float) -> None:
        with BackupClient(self._worker, retry_seconds=seconds) as client:
            while not self._ended.wait(seconds):
                try:
                    client.renew(self._id)
                except PenstockError as error:
                    if not self._ended.is_set():
                        self._failure = error
                    return


def _by_name(pipelines: Sequence[FixedPipeline]) -> dict[str, FixedPipeline]:
    return {one.name: one for one in pipelines}


@contextmanager
def snapshot_of(data: Path, worker: str | None) -> Iterator[Snapshot]:
    """`worker`: the HTTP address of the one that runs on the directory. Raises StoreInUse if another one does."""
    if worker is not None:
        live = LiveWorker(worker)
        try:
            yield live
        finally:
            live.close()
        return
    try:
        files = RealFiles(data / JOURNAL, create=False)
    except FileNotFoundError:
        raise RequestError(f"{data} has no journal", "Name a worker's data directory: --data DIR") from None
    try:
        files.lock()
        yield StoppedWorker(files)
    finally:
        files.close()


# The backup itself.

ATTEMPTS_MAX = 3
"""If Spark deletes state while it is copied. The journal is copied afterwards, so only checkpoints are copied twice."""

_TO_DO = "Name the folder of its checkpoints (--checkpoint DIR), or copy them yourself (--no-checkpoints)."


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    data: Path
    worker: str | None
    """The HTTP address of the worker that runs on the data directory; None if none does."""
    checkpoints: Path | None
    """The folder with a checkpoint for each pipeline; None: they are not part of the backup."""
    has_secrets: bool = True
    before: Callable[[], None] = lambda: None
    """Called when retention removes nothing any more, and before the position is fixed: the moment to copy sinks."""
    keep: int | None = None
    """How many backups are kept, this one included; None: all."""


class Taken(NamedTuple):
    name: str
    manifest: Manifest
    copied_bytes: int
    """The rest was in the archive already."""
    deleted: list[str]
    """Earlier backups that were deleted."""


class _MovedOn(Unavailable):
    """Spark has deleted, or a reset has replaced, what was being copied."""


def back_up(archive: Archive, options: BackupOptions, on_bytes: OnBytes = lambda _: None) -> Taken:
    """Add a backup to the archive. Until it returns, the archive has the earlier ones alone. Raises DiskFull."""
    try:
        with archive.writing():
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    return _attempt(archive, options, on_bytes)
                except _MovedOn:
                    if attempt == ATTEMPTS_MAX:
                        raise
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        hint = "Free space there and try again; earlier backups are as they were."
        raise DiskFull(f"the disk of the backup is full: {error}", hint) from None
    raise AssertionError("the last attempt returns or raises")


def _attempt(archive: Archive, options: BackupOptions, on_bytes: OnBytes) -> Taken:
    with snapshot_of(options.data, options.worker) as snapshot:
        options.before()
        taken_at, fixed = datetime.now(UTC), snapshot.fix()
        copy = _Copy(archive, options, on_bytes)
        copy.plain_files()
        copy.checkpoints(fixed)  # first: Spark deletes old state, while the journal is kept
        copy.journal(fixed)
        snapshot.check()
    manifest = _manifest(taken_at, snapshot, fixed, copy.files)
    name = manifest_name(taken_at)
    archive.add(name, manifest)
    return Taken(name, manifest, copy.copied_bytes, archive.keep_last(options.keep))


def _manifest(taken_at: datetime, snapshot: Snapshot, fixed: Fixed, files: list[StoredFile]) -> Manifest:
    return Manifest(
        format=FORMAT,
        version=penstock.__version__,
        taken_at=taken_at.isoformat(timespec="seconds"),
        position=fixed.position,
        is_live=snapshot.is_live,
        pipelines={name: one.epoch for name, one in fixed.pipelines.items()},
        files=files,
    )


class _Copy:
    """The files of one attempt. Those that the last backup has, unchanged, are not read again."""

    def __init__(self, archive: Archive, options: BackupOptions, on_bytes: OnBytes) -> None:
        names = archive.names()
        self._archive = archive
        self._options = options
        self._on_bytes = on_bytes
        self._before = by_path(archive.manifest(names[-1]).files) if names else {}
        self.files: list[StoredFile] = []
        self.copied_bytes = 0

    def plain_files(self) -> None:
        for name in PLAIN_FILES:
            file = self._options.data / name
            if file.exists() and (self._options.has_secrets or name not in SECRETS):
                self._add(name, file)

    def journal(self, fixed: Fixed) -> None:
        for chapter in chapters_before(fixed.chapters, fixed.position):
            file = self._options.data / JOURNAL / chapter_name(chapter.base)
            try:
                stored, is_new = self._add(chapter.path, file, chapter.length)
            except FileNotFoundError:
                raise Unavailable(
                    f"{file} was removed while it was copied: the worker needed its space", "Try again."
                ) from None
            if is_new:
                check_chapter(self._archive.path(stored), chapter)

    def checkpoints(self, fixed: Fixed) -> None:
        folder = self._options.checkpoints
        if folder is None:
            return
        present = checkpoints_in(folder)
        if missing := missing_checkpoints({name: one.epoch for name, one in fixed.pipelines.items()}, present):
            raise RequestError(f"pipeline {missing[0]!r} has no checkpoint in {folder}", _TO_DO)
        for name, pipeline in fixed.pipelines.items():
            if pipeline.epoch > NO_EPOCH:
                self._checkpoint(folder, name, pipeline.epoch)
                _check_checkpoint(folder / name, pipeline)

    def _checkpoint(self, folder: Path, name: str, epoch: int) -> None:
        for path in checkpoint_files(folder / name, epoch):
            try:
                self._add(f"{CHECKPOINTS}/{name}/{path}", folder / name / path)
            except FileNotFoundError:
                continue  # Spark has deleted it; whether it was needed is checked afterwards

    def _add(self, path: str, file: Path, length: int | None = None) -> tuple[StoredFile, bool]:
        """Also returns whether it had to be copied."""
        with file.open("rb", buffering=0) as opened:
            info = os.fstat(opened.fileno())
            size, identity = info.st_size if length is None else length, (info.st_ino, info.st_mtime_ns)
            known = self._before.get(path)
            if known is not None and (known.size, known.identity) == (size, identity) and self._archive.has(known):
                self._on_bytes(size)
                self.files.append(known)
                return known, False
            source = RealFile(os.dup(opened.fileno()))
            digest, found = self._archive.put(source, length, self._on_bytes)
        if length is not None and found != length:
            raise Damaged(f"{file} has {found} bytes, {length} expected")
        stored = StoredFile(path=path, size=found, sha256=digest, identity=identity)
        self.files.append(stored)
        self.copied_bytes += found
        return stored, True


def check_chapter(file: Path, chapter: Chapter) -> None:
    """Raises Damaged unless every record in the copy is sound, and it ends where it should."""
    readable = RealFile(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
    end, is_closed, name = chapter.base, False, chapter_name(chapter.base)
    for found in scan(readable, chapter.base, read_header(readable, chapter.base), name):
        if not is_sound(found):
            where = f"{name} is damaged at offset {file_offset(chapter.base, found.position)}"
            raise Damaged(f"{where}: {found.end - found.position} bytes fail their checksum")
        end = found.end
        is_closed = isinstance(found, Entry) and found.closes_chapter()
    if chapter.length is None and not is_closed:
        raise Damaged(f"{name} is damaged at offset {file_offset(chapter.base, end)}: it ends without an index")
    if chapter.length is not None and file_offset(chapter.base, end) != chapter.length:
        raise Damaged(f"{name} is damaged at offset {file_offset(chapter.base, end)}: a record is missing")


def _check_checkpoint(folder: Path, pipeline: FixedPipeline) -> None:
    """Raises _MovedOn if what was copied may lack something."""
    live = LocalCheckpoint(folder)
    if incarnation_of(live) != pipeline.incarnation:
        raise _MovedOn(f"pipeline {pipeline.name!r} was reset while its checkpoint was copied", "Try again.")
    if has_moved_on(live.batches(), pipeline.epoch):
        raise _MovedOn(
            f"pipeline {pipeline.name!r} deleted state of epoch {pipeline.epoch} before it was copied",
            "Try again; if it lasts, let Spark keep more epochs: --conf spark.sql.streaming.minBatchesToRetain=1000",
        )


def present_bytes(options: BackupOptions) -> Iterator[int]:
    """The sizes of the files that are there now: an estimate, for people who watch."""
    folders: Sequence[Path | None] = (options.data / JOURNAL, options.checkpoints)
    for folder in folders:
        for file in () if folder is None or not folder.is_dir() else folder.rglob("*"):
            try:
                if file.is_file() and not file.name.startswith("spare-"):
                    yield file.stat().st_size
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
