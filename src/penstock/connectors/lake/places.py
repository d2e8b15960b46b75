"""Where a table's files are: in a directory, or below a prefix in a bucket.

    _penstock/SINK/record         the sink's position and its vote: record.py
    _penstock/SINK/staged/NAME    files that are not part of the table yet
    …/NAME.parquet                files of the table

Readers of tables skip names that start with `_`. A file is written locally, and appears under its key as a whole.
"""

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol
from uuid import uuid4

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists
from penstock.bucket.stores import open_bucket
from penstock.connectors.file.parts import make_directory
from penstock.connectors.sink_api import SinkLost
from penstock.core.durable_files import sync_directory
from penstock.core.errors import BucketFull
from penstock.core.platforms import sync_file

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk: the sink votes no, and the epoch is tried again."""


class Place(Protocol):
    """Keys are paths with slashes. Everything is durable when a call returns. Raises OSError or BucketFailed."""

    @property
    def url(self) -> str: ...

    def records(self, folder: str) -> Bucket:
        """Small objects in this folder, with conditional writes."""

    def spool(self, folder: str) -> IO[bytes]:
        """A new local file, in this folder if that is local."""

    def put(self, spooled: IO[bytes], key: str) -> None:
        """The key is new."""

    def drop(self, spooled: IO[bytes]) -> None:
        """Close and remove a local file that was not put anywhere."""

    def publish(self, staged: str, key: str) -> None:
        """Move a staged file to its key. Idempotent. Raises SinkLost if it is in neither place."""

    def delete(self, keys: Sequence[str]) -> None:
        """Files that do not exist are skipped."""

    def clear(self, folder: str) -> None:
        """Delete everything in the folder."""

    def sync(self, folder: str) -> None:
        """Make durable what a library has written in the folder, which need not have synced its files."""


class DirectoryPlace:
    """Files appear by renaming, in the same file system."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        self._synced_ns: dict[str, int] = {}
        """Folder → when the newest file was written that is durable."""

    def records(self, folder: str) -> Bucket:
        path = self._root / folder
        make_directory(path)
        return open_bucket(path.as_uri())

    def spool(self, folder: str) -> IO[bytes]:
        path = self._root / folder
        make_directory(path)
        return (path / f"{uuid4().hex}.new").open("x+b")

    def put(self, spooled: IO[bytes], key: str) -> None:
        spooled.flush()
        sync_file(spooled.fileno())
        self._move(Path(spooled.name), self._root / key)

    def drop(self, spooled: IO[bytes]) -> None:
        spooled.close()
        Path(spooled.name).unlink(missing_ok=True)

    def publish(self, staged: str, key: str) -> None:
        path = self._root / staged
        if path.exists():
            self._move(path, self._root / key)
        elif not (self._root / key).exists():
            raise _gone(self.url, staged, key)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self._root / key).unlink(missing_ok=True)

    def clear(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            for path in (self._root / folder).iterdir():
                path.unlink(missing_ok=True)

    def sync(self, folder: str) -> None:
        since = newest = self._synced_ns.get(folder, 0)
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # other programs clean the log of a table
                    written = entry.stat().st_mtime_ns
                    if written >= since and entry.is_file():
                        _sync_file(entry.path)
                        newest = max(written, newest)
        self._synced_ns[folder] = newest
        sync_directory(self._root / folder)

    @staticmethod
    def _move(path: Path, to: Path) -> None:
        make_directory(to.parent)
        path.rename(to)
        sync_directory(to.parent)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


class BucketPlace:
    """Objects are created only, never replaced. There is no renaming: a staged object is read and written again.

    One whole file at a time is in memory, about `file_bytes`: multipart uploads are not create-only everywhere.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._bucket = open_bucket(url)

    def records(self, folder: str) -> Bucket:
        return open_bucket(f"{self.url}/{folder}")

    def spool(self, folder: str) -> IO[bytes]:  # noqa: ARG002
        return tempfile.TemporaryFile()

    def put(self, spooled: IO[bytes], key: str) -> None:
        spooled.seek(0)
        self._bucket.create(key, [spooled.read()])

    def drop(self, spooled: IO[bytes]) -> None:
        spooled.close()

    def publish(self, staged: str, key: str) -> None:
        try:
            data = self._bucket.get(staged).data
        except NoSuchObject:  # published before
            self._check_published(staged, key)
            return
        with suppress(ObjectExists):  # an earlier try
            self._bucket.create(key, [data])
        self._bucket.delete([staged])

    def _check_published(self, staged: str, key: str) -> None:
        try:
            self._bucket.get_range(key, 0, 1)
        except NoSuchObject:
            raise _gone(self.url, staged, key) from None

    def delete(self, keys: Sequence[str]) -> None:
        self._bucket.delete(keys)

    def clear(self, folder: str) -> None:
        self._bucket.delete([each.key for each in self._bucket.list(f"{folder}/")])

    def sync(self, folder: str) -> None:
        """Every object is durable."""


def _gone(url: str, staged: str, key: str) -> SinkLost:
    return SinkLost(
        f"{url}: a file of an epoch that was voted on is gone: neither {staged} nor {key} exists",
        "Restore it from a copy, or use another table for the sink.",
    )


def place_of(path: str, directory: Path | None) -> Place:
    """Raises RequestError, for example if obstore is not installed."""
    return BucketPlace(path) if directory is None else DirectoryPlace(directory)


@contextmanager
def full_is(report: "type[Exception]", url: str) -> Iterator[None]:
    """A full disk or bucket raises `report`."""
    try:
        yield
    except BucketFull as error:
        raise report(f"no room for the epoch: {error}") from error
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise report(f"no room for the epoch in {url}: {error.strerror}") from error
