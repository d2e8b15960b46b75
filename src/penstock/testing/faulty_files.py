"""A disk for simulations that fails in all the ways that disks do, and in the same way for the same seed.

The driver of a simulation chooses the fault; what exactly survives is drawn from the seed:

- `crash` is a power cut: whatever was synced survives, and any part of the rest (see `CachedFile`);
- `restart` is a kill of the process: whatever was written survives, and is still unsynced;
- `crash_at` stops the process at, or in the middle of, its n-th disk operation;
- `before_each` is called with each operation, and may raise: SimulatedCrash to stop the process
  there, OSError to fail the operation before any of it is done.

For one thread only: with more, the same seed would not produce the same run twice.
"""

import errno
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TypeVar

from penstock.core.errors import StoreInUse
from penstock.core.types import Buffer
from penstock.testing.memory_files import CachedDirectory, CachedFile, os_error

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process ended here. Not an Exception: code that handles errors must not survive it."""


class Faults:
    """Counts the operations of one life of a process, and decides which of them fail."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.operations = 0
        self.before_each: Callable[[str], None] = lambda _: None
        self.sync_failure_probability = 0.0
        self._crash_at: int | None = None
        self._syncs_to_fail = 0
        self._directory_syncs_to_fail = 0
        self._ended = False

    def crash_at(self, operation: int) -> None:
        """Raise SimulatedCrash in that operation, counted from 1, and in all later ones."""
        assert operation > self.operations, f"{self.operations} operations are done already"
        self._crash_at = operation

    def fail_next_sync(self, count: int = 1) -> None:
        """The next syncs of files raise OSError (EIO), and what they should have synced is lost.

        It can be read until a crash; later syncs succeed without it, unless it is written again.
        """
        self._syncs_to_fail = count

    def fail_next_directory_sync(self, count: int = 1) -> None:
        """The next syncs of the directory raise OSError (ENOSPC): names stay as undurable as they are."""
        self._directory_syncs_to_fail = count

    def fail_sync_with_probability(self, probability: float) -> None:
        self.sync_failure_probability = probability

    def perform(self, operation: str, act: Callable[[], T], torn: Callable[[], object] | None = None) -> T:
        """Count, and act. A crash in the middle does what `torn` does, or by a coin flip all or nothing."""
        self.check_alive()
        self.operations += 1
        try:
            self.before_each(operation)
            if self.operations == self._crash_at:
                raise SimulatedCrash(f"in operation {self.operations}: {operation}")
        except SimulatedCrash:
            self.end()
            with suppress(OSError):
                if torn is not None:
                    torn()
                elif self.random.random() < 0.5:
                    act()
            raise
        return act()

    def check_alive(self) -> None:
        if self._ended:
            raise SimulatedCrash("this process has ended")

    def end(self) -> None:
        self._ended = True

    def directory_sync_fails(self) -> bool:
        fails = self._directory_syncs_to_fail > 0
        self._directory_syncs_to_fail -= fails
        return fails

    def sync_fails(self) -> bool:
        if self._syncs_to_fail:
            self._syncs_to_fail -= 1
            return True
        probability = self.sync_failure_probability
        return probability > 0 and self.random.random() < probability


class FaultyFile:
    """An open file of one life of a process; later lives open their own."""

    __slots__ = ("_cached", "_closed", "_faults", "_free_bytes", "_name")

    def __init__(self, name: str, cached: CachedFile, faults: Faults, free_bytes: Callable[[], int]) -> None:
        self._name = name
        self._cached = cached
        self._faults = faults
        self._free_bytes = free_bytes
        self._closed = False

    def read(self, offset: int, length: int) -> bytes:
        return self._perform("read", lambda: self._cached.read(offset, length))

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self._perform("write", lambda: self._write(offset, data), lambda: self._write(offset, self._cut(data)))

    def sync(self) -> None:
        self._perform("sync", self._sync)

    def allocate(self, size: int) -> None:
        self._perform("allocate", lambda: self._allocate(size))

    def truncate(self, size: int) -> None:
        self._perform("truncate", lambda: self._truncate(size))

    def size(self) -> int:
        self._check_open()
        return len(self._cached.content)

    def close(self) -> None:
        self._closed = True

    def _perform(self, operation: str, act: Callable[[], T], torn: Callable[[], object] | None = None) -> T:
        self._check_open()
        return self._faults.perform(f"{operation} {self._name}", act, torn)

    def _check_open(self) -> None:
        self._faults.check_alive()
        if self._closed:
            raise os_error(errno.EBADF)

    def _write(self, offset: int, data: bytes) -> None:
        missing = self._missing_room(offset + len(data)) if data else 0
        if missing:
            self._cached.write(offset, self._cut(data[: max(0, len(data) - missing)]))
            raise os_error(errno.ENOSPC)
        self._cached.write(offset, data)

    def _sync(self) -> None:
        if self._faults.sync_fails():
            self._cached.fail_sync()
            raise os_error(errno.EIO)
        self._cached.sync()

    def _allocate(self, size: int) -> None:
        if self._missing_room(size):
            raise os_error(errno.ENOSPC)
        if size > len(self._cached.content):
            self._cached.resize(size)

    def _truncate(self, size: int) -> None:
        if size < len(self._cached.content):
            self._cached.resize(size)

    def _missing_room(self, size: int) -> int:
        growth = size - len(self._cached.content)
        return max(0, growth - self._free_bytes()) if growth > 0 else 0

    def _cut(self, data: bytes) -> bytes:
        return data[: self._faults.random.randint(0, len(data))]


class FaultyFiles(Faults):
    """The disk as one life of a process has it. `crash` and `restart` return the disk of the next life.

    `before_each` receives operations as text: `write a`, `rename a b`, `list`; `sync a` is the sync of a file, `sync .`
    that of the directory. Sizes, free space and the lock are not operations. `space` limits the sum of the sizes of all
    files that have a name.
    """

    def __init__(
        self,
        seed: int | Random = 0,
        space: int | None = None,
        directory: CachedDirectory | None = None,
    ) -> None:
        super().__init__(seed if isinstance(seed, Random) else Random(seed))
        self._directory = directory or CachedDirectory({})
        self._space = space
        self._locked = False

    def crash(self) -> "FaultyFiles":
        """The disk as found after a power cut now, or at the crash that stopped this life.

        Each call returns another disk that the same cut may have left.
        """
        return self._next_life(self._directory.after_power_cut(self.random))

    def restart(self) -> "FaultyFiles":
        """The same disk for the next process: the page cache survives, locks and open files do not."""
        return self._next_life(self._directory)

    def flip_bits(self, name: str, offset: int, count: int = 1) -> None:
        """Flip one bit in each of `count` durable bytes of the file: visible immediately, and permanent."""
        self._find(name).damage(offset, count, self.random)

    def set_space(self, space: int | None) -> None:
        self._space = space

    def list(self) -> list[str]:
        return self.perform("list", lambda: sorted(self._directory.files))

    def create(self, name: str) -> FaultyFile:
        return self.perform(f"create {name}", lambda: self._create(name))

    def open(self, name: str) -> FaultyFile:
        return self.perform(f"open {name}", lambda: self._open(name))

    def rename(self, old: str, new: str) -> None:
        self.perform(
            f"rename {old} {new}",
            lambda: self._directory.change({old: None, new: self._find(old)}),
        )

    def remove(self, name: str) -> None:
        self.perform(f"remove {name}", lambda: self._remove(name))

    def sync(self) -> None:
        self.perform("sync .", self._sync_directory)

    def local(self, name: str) -> None:
        """No other process sees this disk."""

    def settle(self, name: str) -> None:
        self._find(name)

    def remote(self, name: str) -> None:
        """No other machine sees it."""

    def is_here(self, name: str, offset: int, length: int) -> bool:  # noqa: ARG002
        return True

    def mend(self, name: str) -> bool:  # noqa: ARG002
        """There is no other copy."""
        return False

    def is_intact(self, name: str, offset: int) -> bool:  # noqa: ARG002
        """Nothing is known beside the bytes themselves."""
        return True

    def free_bytes(self) -> int:
        self.check_alive()
        return self._free_bytes()

    def lock(self) -> None:
        self.check_alive()
        if self._locked:
            raise StoreInUse("this simulated disk is in use by this process")
        self._locked = True

    def close(self) -> None:
        self._locked = False

    def _next_life(self, directory: CachedDirectory) -> "FaultyFiles":
        self.end()
        following = FaultyFiles(self.random, self._space, directory)
        following.before_each = self.before_each
        following.sync_failure_probability = self.sync_failure_probability
        return following

    def _create(self, name: str) -> FaultyFile:
        if name in self._directory.files:
            raise os_error(errno.EEXIST, name)
        self._directory.change({name: CachedFile()})
        return self._open(name)

    def _open(self, name: str) -> FaultyFile:
        return FaultyFile(name, self._find(name), self, self._free_bytes)

    def _sync_directory(self) -> None:
        if self.directory_sync_fails():
            raise os_error(errno.ENOSPC)
        self._directory.sync()

    def _remove(self, name: str) -> None:
        self._find(name)
        self._directory.change({name: None})

    def _free_bytes(self) -> int:
        if self._space is None:
            return sys.maxsize
        files = self._directory.files.values()
        return max(0, self._space - sum(len(file.content) for file in files))

    def _find(self, name: str) -> CachedFile:
        try:
            return self._directory.files[name]
        except KeyError:
            raise os_error(errno.ENOENT, name) from None
