"""All disk access of the store goes through these two small protocols.

`RealFiles` is the disk, `BucketFiles` an object store. `penstock.testing` has two more for tests: `MemoryFiles`, a
dict, and `FaultyFiles`, a disk that loses what was not synced, tears writes, flips bits, fails fsync and runs out of
space. All pass one conformance suite.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from errno import EIO
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.core.durable_files import sync_directory
from penstock.core.errors import StoreInUse
from penstock.core.platforms import reserve, sync_data, sync_file
from penstock.core.types import Buffer


class File(Protocol):
    """One open file. Bytes are durable once `sync` has returned, not before.

    Several may be open on the same file; each sees at once what the others do.
    """

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""
        ...

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all the buffers, one after the other, at `offset`; memoryviews must be of bytes.

        A gap between the old end of the file and `offset` becomes zeros. Raises OSError (ENOSPC
        when the disk is full); after an error any part of the bytes may have been written.
        """
        ...

    def sync(self) -> None:
        """Make everything written to this file before the call durable, its size included.

        Which open file it was written through does not matter. After an OSError the bytes that were
        not durable may never be, whatever a later sync returns, unless they are written again.
        """
        ...

    def allocate(self, size: int) -> None:
        """Make the file `size` bytes long, zeros from its old end on, and set the space aside.

        A file that is longer stays as it is. Raises OSError (ENOSPC) without changing the file when
        there is no room.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. A file that is shorter stays as it is."""
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """End access through this object: any other call raises OSError (EBADF).

        Syncs nothing. Closing again does nothing. A file without references is closed by itself.
        """
        ...


class LocalFile(NamedTuple):
    """Where other processes of this machine find a file, and the numbers by which they recognize it."""

    path: str
    device: int
    inode: int


class RemotePart(NamedTuple):
    """Bytes of a file in an object of a bucket: byte n of the file is byte n − `shift` of the object."""

    start: int
    end: int
    url: str
    key: str
    shift: int


class RemoteFile(NamedTuple):
    """Where any machine finds all the bytes of a file that does not change any more."""

    parts: tuple[RemotePart, ...]
    """In order."""

    def part(self, start: int, end: int) -> RemotePart | None:
        """The one that has all these bytes."""
        return next((part for part in self.parts if part.start <= start and end <= part.end), None)


class Files(Protocol):
    """The files of one directory, by name. A name has no slash in it, and is not `lock`.

    Creations, renames and removals are durable once `sync` has returned.
    """

    def list(self) -> list[str]:
        """The names, sorted."""
        ...

    def create(self, name: str) -> File:
        """A new, empty file. FileExistsError if the name is taken."""
        ...

    def open(self, name: str) -> File:
        """An existing file, for reading and writing. FileNotFoundError if there is none."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically; a file that had the new name is replaced. Open files stay open.

        FileNotFoundError if there is none of the old name.
        """
        ...

    def remove(self, name: str) -> None:
        """FileNotFoundError if there is none. Open files stay open."""
        ...

    def sync(self) -> None:
        """Make the directory itself durable: which names exist, and which file each one means.

        It makes no file's bytes durable.
        """
        ...

    def local(self, name: str) -> LocalFile | None:
        """The file as other processes see it; None if they cannot, or if there is none."""
        ...

    def settle(self, name: str) -> None:
        """Nothing will be written to the file any more: a hint. FileNotFoundError if there is none."""
        ...

    def remote(self, name: str) -> RemoteFile | None:
        """The settled file as other machines see it; None if they cannot, or if there is none."""
        ...

    def is_here(self, name: str, offset: int, length: int) -> bool:
        """Whether these bytes can be read without waiting for a network. They may be gone when they are read."""
        ...

    def mend(self, name: str) -> bool:
        """What was read from the file fails its checksum. If its bytes are somewhere else, too, read them from there
        from now on. Returns whether it is worth reading again.
        """
        ...

    def is_intact(self, name: str, offset: int) -> bool:
        """False if the file has other bytes from `offset` on than were written, as far as that is known."""
        ...

    def free_bytes(self) -> int:
        """Room left on the disk for new data."""
        ...

    def lock(self) -> None:
        """Lock the directory for this object until `close`. Raises StoreInUse if it is locked."""
        ...

    def close(self) -> None:
        """Release the lock. Open files stay open."""
        ...


# The disk itself: one system call for each method wherever that is possible.

IOV_MAX = 1024
"""Buffers that Linux takes in one call."""

LOCK = "lock"

_CLOSED = 0x7FFF_FFFF
"""No file ever has this number: using it fails with EBADF. (-1 means "no number" to some calls.)"""


class RealFile:
    """An open file descriptor. Threads may read, write and sync at the same time."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length:
            return data
        return self._read_on(data, offset, length)

    def _read_on(self, data: bytes, offset: int, length: int) -> bytes:
        """The kernel may return fewer bytes at any time; only an empty read means the end of the file."""
        parts = [data]
        while data and length > len(data):
            offset += len(data)
            length -= len(data)
            data = os.pread(self._fd, length, offset)
            parts.append(data)
        return b"".join(parts)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        written = 0
        if len(buffers) <= IOV_MAX:
            written = os.pwritev(self._fd, buffers, offset)
            if written == sum(map(len, buffers)):
                return
        self._write_on(written, offset, buffers)

    def _write_on(self, written: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers from the byte `written` on, after a partial write."""
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        first = 0
        while True:
            offset += written
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if first == len(views):
                return
            views[first] = views[first][written:]
            written = os.pwritev(self._fd, views[first : first + IOV_MAX], offset)
            if not written:
                raise OSError(EIO, "the disk accepted no bytes, without an error")

    def sync(self) -> None:
        sync_data(self._fd)

    def allocate(self, size: int) -> None:
        old = self.size()
        if size <= old:
            return
        try:
            reserve(self._fd, old, size)
        except OSError:
            # When ext4 runs out of room, the file keeps what was allocated so far, and that size.
            os.ftruncate(self._fd, old)
            raise

    def truncate(self, size: int) -> None:
        if size < self.size():
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        # The number may soon refer to another file, so this object must forget it.
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class RealFiles:
    """The plain files of one directory; anything else in it is left alone.

    `create` creates the directory, durably, if it is missing. Only the owner may read it and its files.
    """

    def __init__(self, directory: Path, create: bool = True) -> None:
        if create:
            _make_directory(directory)
        self._directory = directory
        self._absolute = directory.absolute()  # other processes have other working directories
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock_fd = _CLOSED

    def list(self) -> list[str]:
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        return sorted(name for name in names if name != LOCK)

    def create(self, name: str) -> RealFile:
        return RealFile(self._open(name, os.O_CREAT | os.O_EXCL))

    def open(self, name: str) -> RealFile:
        return RealFile(self._open(name))

    def _open(self, name: str, flags: int = 0) -> int:
        return os.open(name, os.O_RDWR | os.O_CLOEXEC | flags, mode=0o600, dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        sync_file(self._fd)

    def local(self, name: str) -> LocalFile | None:
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            str(self._absolute).encode()
        except (FileNotFoundError, UnicodeEncodeError):  # a path that is not a text cannot be sent
            return None
        return LocalFile(str(self._absolute / name), found.st_dev, found.st_ino)

    def settle(self, name: str) -> None:
        os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def remote(self, name: str) -> None:
        """A disk is seen by one machine."""

    def is_here(self, name: str, offset: int, length: int) -> bool:  # noqa: ARG002
        return True

    def mend(self, name: str) -> bool:  # noqa: ARG002
        """There is no other copy."""
        return False

    def is_intact(self, name: str, offset: int) -> bool:  # noqa: ARG002
        """Nothing is known beside the bytes themselves."""
        return True

    def free_bytes(self) -> int:
        disk = os.statvfs(self._fd)
        return disk.f_bavail * disk.f_frsize

    def lock(self) -> None:
        fd = self._open(LOCK, os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(fd)
            os.close(fd)
            raise StoreInUse(f"{self._directory} is in use by {holder}") from None
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd
        # The lock is valid without the process id in the file, and must work on a full disk.
        with suppress(OSError):
            _write_holder(fd)

    def close(self) -> None:
        # The lock file stays: if it were removed, two processes could lock two different files.
        for fd in (self._lock_fd, self._fd):
            if fd != _CLOSED:
                os.close(fd)
        self._lock_fd = self._fd = _CLOSED


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    parent = directory.parent
    _make_directory(parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(parent)


def _write_holder(fd: int) -> None:
    pid = b"%d\n" % os.getpid()
    os.pwrite(fd, pid, 0)
    os.ftruncate(fd, len(pid))


def _read_holder(fd: int) -> str:
    pid = os.pread(fd, 32, 0).strip()
    return f"process {int(pid)}" if pid.isdigit() else "another process"
