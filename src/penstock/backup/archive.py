"""The directory that backups are stored in. Its files are only ever replaced by files with the same bytes, so that a
backup that fails leaves the earlier ones as they were.

    DIR/backup-20260301T093000.250000Z.json     the manifest of a backup, written last
    DIR/objects/4f/4f1c…                        the bytes of a file, named by their SHA-256; backups share them
    DIR/partial/                                being written; emptied by the next backup
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from penstock.backup.manifest import (
    Manifest,
    StoredFile,
    decode_manifest,
    encode_manifest,
    is_manifest,
    unreferenced,
)
from penstock.core.durable_files import sync_directory, write_private
from penstock.core.errors import Damaged, DiskFull, RequestError, StoreInUse
from penstock.core.platforms import sync_file
from penstock.store.spares import OUT_OF_SPACE

PIECE_BYTES = 1 << 20
"""Copied at once."""

_LOCK = "lock"

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were just copied or checked."""


class Source(Protocol):
    """Bytes to store."""

    def read(self, offset: int, length: int) -> bytes: ...


class Archive:
    """Private: a backup contains all data, and usually the owner's token. One process at a time adds to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects = directory / "objects"
        self._partial = directory / "partial"

    @classmethod
    def to_read(cls, directory: Path) -> "Archive":
        """Raises RequestError if there is no backup."""
        archive = cls(directory)
        if not archive.names():
            raise RequestError(f"{directory} contains no backup", "Name the directory of penstock backup.")
        return archive

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Creates the directory. Raises StoreInUse while another process writes to it, RequestError for a directory
        that contains something else.
        """
        self._create()
        with os.fdopen(os.open(self._directory / _LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUse(
                    f"another backup is being written to {self._directory}", "Wait until it is done."
                ) from None
            self._empty_partial()
            try:
                yield
            finally:
                self._empty_partial()

    def _create(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise RequestError(f"{self._directory} is not a directory", "Name an empty directory.") from None
        others = {one.name for one in self._directory.iterdir()} - {"objects", "partial", _LOCK, "lost+found"}
        if strangers := sorted(name for name in others if not is_manifest(name) and not name.startswith(".backup-")):
            raise RequestError(
                f"{self._directory} contains {strangers[0]!r}, which is not part of a backup",
                "Name an empty directory.",
            )
        self._objects.mkdir(mode=0o700, exist_ok=True)

    def _empty_partial(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(mode=0o700, exist_ok=True)

    # Backups.

    def names(self) -> list[str]:
        """Of all backups, oldest first."""
        try:
            return sorted(one.name for one in self._directory.iterdir() if is_manifest(one.name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def manifest(self, name: str) -> Manifest:
        """Raises Damaged, RequestError."""
        try:
            return decode_manifest((self._directory / name).read_bytes(), name)
        except FileNotFoundError:
            raise RequestError(
                f"{self._directory} has no backup {name}", f"It has: {', '.join(self.names())}"
            ) from None

    def add(self, name: str, manifest: Manifest) -> None:
        """From now on the backup exists. Everything that it refers to is durable already."""
        write_private(self._directory / name, encode_manifest(manifest))

    def keep_last(self, count: int | None) -> list[str]:
        """Delete the other backups, and all bytes that none needs, those of backups that failed included. Returns the
        names of the backups that were deleted.
        """
        names = self.names()
        old = [] if count is None else names[:-count]
        for name in old:
            (self._directory / name).unlink()
        sync_directory(self._directory)
        kept = [self.manifest(name) for name in names[len(old) :]]
        for digest in unreferenced((one.name for one in self._objects.glob("*/*")), kept):
            self._object(digest).unlink()
        return old

    # The bytes of files.

    def has(self, one: StoredFile) -> bool:
        try:
            return self._object(one.sha256).stat().st_size == one.size
        except FileNotFoundError:
            return False

    def put(self, source: Source, length: int | None, on_bytes: OnBytes) -> tuple[str, int]:
        """Store the first `length` bytes, or all of them. Returns their digest and their number. Durable when it
        returns. Raises OSError, with nothing stored.
        """
        partial, digest, size = self._partial / uuid4().hex, hashlib.sha256(), 0
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as out:
            while length is None or size < length:
                piece = source.read(size, PIECE_BYTES if length is None else min(PIECE_BYTES, length - size))
                if not piece:
                    break
                digest.update(piece)
                _write_all(out.fileno(), piece)
                size += len(piece)
                on_bytes(len(piece))
            sync_file(out.fileno())
        self._name(partial, digest.hexdigest())
        return digest.hexdigest(), size

    def _name(self, partial: Path, digest: str) -> None:
        """Also in place of an object with this name: it has the same bytes, unless it was damaged."""
        target = self._object(digest)
        if not target.parent.exists():
            target.parent.mkdir(mode=0o700)
            sync_directory(self._objects)
        partial.replace(target)
        sync_directory(target.parent)

    def path(self, one: StoredFile) -> Path:
        """Where the bytes of the file are."""
        return self._object(one.sha256)

    def copy(self, one: StoredFile, to: Path | None, on_bytes: OnBytes) -> None:
        """Write the file's bytes to a new file, durably, or only check them if `to` is None. Raises Damaged."""
        digest, size = hashlib.sha256(), 0
        fd = None if to is None else os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for piece in self._pieces(one):
                digest.update(piece)
                size += len(piece)
                on_bytes(len(piece))
                if fd is not None:
                    _write_all(fd, piece)
            if fd is not None:
                sync_file(fd)
        finally:
            if fd is not None:
                os.close(fd)
        if (size, digest.hexdigest()) != (one.size, one.sha256):
            why = "its bytes have changed" if size == one.size else f"{one.size} bytes expected, {size} found"
            raise _damaged(one, self.path(one), why)

    def _pieces(self, one: StoredFile) -> Iterator[bytes]:
        try:
            with self.path(one).open("rb", buffering=0) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except FileNotFoundError:
            raise _damaged(one, self.path(one), "the file is missing") from None
        except OSError as error:
            raise _damaged(one, self.path(one), f"it cannot be read: {error.strerror}") from None

    def _object(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _damaged(one: StoredFile, path: Path, why: str) -> Damaged:
    return Damaged(
        f"the backup is damaged: {path}, which is {one.path}: {why}",
        "Restore a backup that does not have the file (--list, --at). If the original still exists, delete the damaged "
        "file and take another backup: it copies the file again, also for earlier backups if it has not changed.",
    )


# Restoring a backup.


def restore(archive: Archive, manifest: Manifest, data: Path, on_bytes: OnBytes = lambda _: None) -> None:
    """Every byte is checked. Nothing of the original's process is restored: a worker that starts on the directory has
    an id and ports of its own. Raises RequestError if the directory has something in it, Damaged, DiskFull.
    """
    data = data.absolute()
    check_empty(data)
    temporary = data.with_name(f".{data.name}.restoring")
    shutil.rmtree(temporary, ignore_errors=True)  # of an earlier restore that was killed
    try:
        _write(archive, manifest, temporary, on_bytes)
        temporary.replace(data)
        sync_directory(data.parent)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        needed = f"The backup needs {manifest.size:,} bytes there."
        raise DiskFull(f"{data} cannot be restored: {error.strerror}", needed) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_empty(data: Path) -> None:
    """Raises RequestError, also for what another directory cannot be renamed to."""
    if data.is_symlink():
        raise RequestError(
            f"{data} is a symbolic link", f"Name the directory that it leads to: --data {data.resolve()}"
        )
    if data.is_mount():
        raise RequestError(
            f"{data} is a mount point, which cannot be replaced",
            f"Restore to a directory on it, and move what it contains up: --data {data / 'restored'}",
        )
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise RequestError(f"{data} exists and is not an empty directory", "Name a new one: --data DIR")


def _write(archive: Archive, manifest: Manifest, directory: Path, on_bytes: OnBytes) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    for one in manifest.files:
        file = directory / one.path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive.copy(one, file, on_bytes)
    for folder, _, _ in os.walk(directory):
        sync_directory(Path(folder))
