"""Takes a backup: copies one consistent state of a data directory into an archive."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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
from penstock.backup.snapshot import Fixed, Snapshot, snapshot_of
from penstock.core.errors import Damaged, DiskFull, RequestError, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.backup import FixedPipeline
from penstock.spark.run.checkpoints import LocalCheckpoint, incarnation_of
from penstock.store.chapters import chapter_name, file_offset, read_header
from penstock.store.files import RealFile
from penstock.store.record import Entry, is_sound, scan
from penstock.store.spares import OUT_OF_SPACE

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
