"""A plain file as the place for a sink's bytes."""

import os
from pathlib import Path

from penstock.core.types import Buffer
from penstock.store.real_files import RealFile


class DataFile:
    """A file that is made where there is none. `sync` is an fsync; who may read a new one is the umask's affair.

    What it holds behind the committed size is not committed: see `read_committed`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = RealFile(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o666))
        _sync_directory(self.path.absolute().parent)

    def write_at(self, offset: int, data: Buffer) -> None:
        self._file.write(offset, (data,))

    def sync(self) -> None:
        self._file.sync()

    def truncate(self, offset: int) -> None:
        self._file.truncate(offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


def _sync_directory(directory: Path) -> None:
    """So that the name of a new file survives, as its bytes do."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
