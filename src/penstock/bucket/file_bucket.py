"""A bucket in a directory, for one machine or a shared file system: an object is a file.

It needs hard links (create-only), `flock` (compare-and-set) and atomic renames of the file system. A key cannot be
both an object and the folder of others.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from penstock.bucket.objects import ListedObject, NoSuchObject, ObjectExists, StoredObject, VersionChanged
from penstock.core.durable_files import sync_directory
from penstock.core.errors import BucketForbidden, BucketFull, BucketUnreachable
from penstock.core.platforms import sync_file
from penstock.core.types import Buffer

HIDDEN = ".penstock"
"""The folder of files that are being written. It is not part of the bucket."""

LEFT_BEHIND_SECONDS = 3600.0
"""A file that is older belongs to a process that died while writing it."""

LOCK_POLL_SECONDS = 0.005

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FileBucket:
    """A version is a digest of the content, as S3's is: an object that was replaced and replaced back is unchanged."""

    def __init__(self, root: Path, timeout: float) -> None:
        """`timeout` bounds the wait for another process that replaces the same object."""
        self.url = root.as_uri()
        self._root = root
        self._timeout = timeout
        self._identity: tuple[int, int] | None = None
        self._remove_left_behind()

    def get(self, key: str) -> StoredObject:
        with self._translated(key):
            data = self._path(key).read_bytes()
            return StoredObject(data, _version(data))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._translated(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(max(length, 0))

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        path = self._path(key)
        with self._translated(key, BucketUnreachable), self._written(buffers) as written:
            self._make_folder(path.parent)
            try:
                os.link(written, path)
            except FileExistsError:
                raise ObjectExists(key) from None
            sync_directory(path.parent)
        return _version(*buffers)

    def replace(self, key: str, data: bytes, version: str) -> str:
        path = self._path(key)
        with self._translated(key, VersionChanged), self._locked(path):
            if _version(path.read_bytes()) != version:
                raise VersionChanged(key)
            with self._written([data]) as written:
                written.replace(path)
            sync_directory(path.parent)
        return _version(data)

    def delete(self, keys: Sequence[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            with suppress(NoSuchObject), self._translated(key), self._locked(path):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            with self._translated(""):
                sync_directory(folder)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        self._check_root()
        top = self._root / prefix.rpartition("/")[0]
        for folder, folders, names in os.walk(top):
            if Path(folder) == self._root:
                folders[:] = [name for name in folders if name != HIDDEN]
            for path in (Path(folder, name) for name in names):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        yield ListedObject(key, path.stat().st_size)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == HIDDEN:
            raise ValueError(f"{key!r} is not a valid key")
        return self._root.joinpath(*parts)

    @contextmanager
    def _written(self, buffers: Sequence[Buffer]) -> Iterator[Path]:
        """A durable file with this content, which is removed afterwards unless it has been renamed."""
        hidden = self._root / HIDDEN
        self._make_folder(hidden)
        path = hidden / uuid4().hex
        try:
            with path.open("xb") as file:
                file.writelines(buffers)
                file.flush()
                sync_file(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Folders are never removed: an object could be created in one at the same time."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_directory(folder.parent)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """While it is locked, no other process replaces or deletes the object."""
        deadline = time.monotonic() + self._timeout
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if self._lock(fd, deadline) and os.fstat(fd).st_ino == path.stat().st_ino:
                    yield
                    return
            finally:
                os.close(fd)

    def _lock(self, fd: int, deadline: float) -> bool:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BucketUnreachable(f"{self.url}: another process is replacing the object") from None
                time.sleep(LOCK_POLL_SECONDS)
            else:
                return True

    def _remove_left_behind(self) -> None:
        with suppress(OSError):
            for path in (self._root / HIDDEN).iterdir():
                if time.time() - path.stat().st_mtime > LEFT_BEHIND_SECONDS:
                    path.unlink(missing_ok=True)

    def _check_root(self) -> None:
        """A file system that was unmounted leaves an empty directory: what is written there would be lost, and what is
        missing there is not gone.
        """
        try:
            found = self._root.stat()
        except OSError as error:
            if self._identity is not None:
                raise BucketUnreachable(f"{self.url}: {error.strerror}") from error
            return
        if self._identity not in (None, (found.st_dev, found.st_ino)):
            raise BucketUnreachable(f"{self.url} is another directory than before: is its file system mounted?")
        self._identity = found.st_dev, found.st_ino

    @contextmanager
    def _translated(self, key: str, absent: type[Exception] = NoSuchObject) -> Iterator[None]:
        """`absent`: what it means that a file or folder is not there."""
        self._check_root()
        try:
            yield
        except _ABSENT as error:
            raise absent(f"{self.url}: {error.strerror}" if absent is BucketUnreachable else key) from error
        except OSError as error:
            message = f"{self.url}: {error.strerror}"
            if error.errno in _FULL:
                raise BucketFull(message, "Free space on the disk; Penstock tries again automatically.") from error
            if error.errno in _FORBIDDEN:
                raise BucketForbidden(message, "The worker must be able to write in this directory.") from error
            raise BucketUnreachable(message) from error
        if self._identity is None:
            self._check_root()  # the first write has created it


def _version(*buffers: Buffer) -> str:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()
