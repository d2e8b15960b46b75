"""All disk access of the store stands behind these two small protocols.

`real_files.py` is the disk, `memory_files.py` a dict, `faulty_files.py` a disk that loses what was
not synced, tears writes, flips bits, fails fsync and runs out of space. One conformance suite holds
for all of them.
"""

from collections.abc import Sequence
from typing import Protocol

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
        """End access through this object: whatever else is asked of it raises OSError (EBADF).

        Syncs nothing. Closing again does nothing. A file that nobody holds any more is closed by itself.
        """
        ...


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

    def free_bytes(self) -> int:
        """Room left on the disk for new data."""
        ...

    def lock(self) -> None:
        """Take the directory for this object until `close`. Raises StoreInUse when it is taken."""
        ...

    def close(self) -> None:
        """Give up the lock. Open files stay open."""
        ...
