"""All disk access of the store stands behind these two small protocols.

`real_files.py` is the disk, `memory_files.py` a dict, `faulty_files.py` a disk that loses what was not synced, tears
writes, flips bits, fails fsync and runs out of space. One conformance suite holds for all of them.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.core.types import Buffer


class File(Protocol):
    """One open file. Bytes are durable once `sync` has returned, not before."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""
        ...

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all the buffers, one after the other, at `offset`. Raises OSError (ENOSPC when the disk is full);
        after an error any part of the bytes may have been written."""
        ...

    def sync(self) -> None:
        """Make everything written to this file durable, its size included."""
        ...

    def allocate(self, size: int) -> None:
        """Make the file `size` bytes long, zeros from its old end on, and have the disk set aside the space.
        Raises OSError (ENOSPC) without changing the file when there is no room."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Files(Protocol):
    """The files of one directory, by name. Creations, renames and removals are durable once `sync` has returned."""

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
        """Atomically; a file that had the new name is replaced. Open files stay open."""
        ...

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Make the directory itself durable: which names exist, and which file each one means."""
        ...

    def free_bytes(self) -> int:
        """Room left on the disk for new data."""
        ...

    def lock(self) -> None:
        """Take the directory for this process until `close`. Raises StoreInUse when another has it."""
        ...

    def close(self) -> None: ...
