"""Where files are: in a directory, or below a prefix in a bucket. Every call may block."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from penstock.bucket.objects import ListedObject, NoSuchObject
from penstock.bucket.stores import open_bucket
from penstock.connectors.api import Lost
from penstock.connectors.directory.files import Found, Listing, is_wanted
from penstock.connectors.directory.options import DirectoryOptions
from penstock.connectors.file.contents import ReadAt
from penstock.connectors.file.parts import make_directory
from penstock.core.durable_files import sync_directory
from penstock.core.errors import PenstockError


class Place(Protocol):
    """Raises OSError, or Lost."""

    def list(self) -> Listing: ...

    def opened(self, file: Found) -> AbstractContextManager[ReadAt]:
        """To read it. `read_at` raises OSError."""

    def dispose(self, file: Found) -> bool:
        """Delete or move it, with its marker, as `done` says; False if it has changed since it was found."""


def place_of(options: DirectoryOptions, allows: Callable[[Path], bool]) -> Place:
    """Raises RequestError, for example if obstore is not installed."""
    folder = options.folder
    return BucketPlace(options) if folder is None else FolderPlace(options, folder, allows)


def _markers(options: DirectoryOptions, keys: Iterator[str]) -> frozenset[str]:
    if options.finished != "marker":
        return frozenset()
    return frozenset(key.removesuffix(options.marker) for key in keys if key.endswith(options.marker))


class FolderPlace:
    def __init__(self, options: DirectoryOptions, folder: Path, allows: Callable[[Path], bool]) -> None:
        self._options = options
        self._folder = folder
        self._allows = allows

    def list(self) -> Listing:
        if not self._folder.is_dir():
            raise Lost(
                f"{self._folder} is not a directory", "It is checked again automatically: create it, or correct path."
            )
        entries = dict(self._entries())
        files = [
            found
            for key, entry in entries.items()
            if is_wanted(key, self._options) and (found := self._found(key, entry))
        ]
        return Listing(files, _markers(self._options, iter(entries)))

    def _entries(self) -> Iterator[tuple[str, Path]]:
        """Keys of everything but folders. What cannot be listed is an error: it would look as if files were removed."""

        def failed(error: OSError) -> None:
            raise error

        for folder, folders, names in os.walk(self._folder, onerror=failed):
            if not self._options.recursive:
                folders.clear()
            for name in names:
                path = Path(folder, name)
                yield path.relative_to(self._folder).as_posix(), path

    def _found(self, key: str, path: Path) -> Found | None:
        """None if it is not a regular file, not allowed, or gone since."""
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and self._allows(path):
                return _found(key, status)
        return None

    @contextmanager
    def opened(self, file: Found) -> Iterator[ReadAt]:
        fd = os.open(self._folder / file.key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe by now
        try:
            self._check_opened(fd, file)
            yield lambda at, size: os.pread(fd, size, at)
        finally:
            os.close(fd)

    def _check_opened(self, fd: int, file: Found) -> None:
        """Since it was found, somebody may have put another file, or a link to one, in its place."""
        status = os.fstat(fd)
        is_same = stat.S_ISREG(status.st_mode) and _found(file.key, status) == file
        opened = Path(f"/proc/self/fd/{fd}")  # Linux; elsewhere the path is resolved again
        if not is_same or not self._allows(opened.resolve() if opened.exists() else self._folder / file.key):
            raise FileNotFoundError(f"{file.key} has changed since it was found")

    def dispose(self, file: Found) -> bool:
        path = self._folder / file.key
        if self._found(file.key, path) != file:
            return False
        marker = path.with_name(path.name + self._options.marker) if self._options.finished == "marker" else None
        for each in (path, marker):  # the marker last: a file without one is not read
            if each is not None:
                self._put_away(each, file)
        return True

    def _put_away(self, path: Path, file: Found) -> None:
        if self._options.move_to is None:
            path.unlink(missing_ok=True)
        else:
            to = self._options.move_to / path.relative_to(self._folder)
            make_directory(to.parent)
            if to.exists():
                to = to.with_name(f"{to.name}.{file.stream[-16:]}")
            with suppress(FileNotFoundError):
                path.rename(to)
            sync_directory(to.parent)
        sync_directory(path.parent)


def _found(key: str, status: os.stat_result) -> Found:
    return Found(key, status.st_size, status.st_mtime_ns // 1000, f"{status.st_size} {status.st_mtime_ns}")


def _listed(one: ListedObject) -> Found:
    return Found(one.key, one.size, one.modified_us, one.version or f"{one.size} {one.modified_us}")


class BucketPlace:
    def __init__(self, options: DirectoryOptions) -> None:
        self._options = options
        self._bucket = open_bucket(options.path)

    def list(self) -> Listing:
        with _lost():
            objects = [each for each in self._bucket.list("") if self._options.recursive or "/" not in each.key]
        found = [_listed(each) for each in objects if is_wanted(each.key, self._options)]
        return Listing(found, _markers(self._options, (each.key for each in objects)))

    @contextmanager
    def opened(self, file: Found) -> Iterator[ReadAt]:
        def read_at(at: int, size: int) -> bytes:
            """Never beyond the size that it had: an object that was replaced by a longer one has changed."""
            try:
                with _lost():
                    return self._bucket.get_range(file.key, at, min(size, file.size - at))
            except NoSuchObject as error:
                raise FileNotFoundError(f"{file.key} is gone") from error

        yield read_at

    def dispose(self, file: Found) -> bool:
        keys = [file.key, *([file.key + self._options.marker] if self._options.finished == "marker" else [])]
        with _lost():
            now = next((each for each in self._bucket.list(file.key) if each.key == file.key), None)
            if now is None or _listed(now) != file:
                return False
            self._bucket.delete(keys)
        return True


@contextmanager
def _lost() -> Iterator[None]:
    """The store cannot be reached now."""
    try:
        yield
    except Lost:
        raise
    except PenstockError as error:
        raise Lost(str(error), error.hint) from error
