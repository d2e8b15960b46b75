"""A lock on a file, for what one sink at a time may use."""

import fcntl
import os
from pathlib import Path

from penstock.core.errors import StoreInUse


class SinkLock:
    """Held until it is closed, or the process ends. The file stays: removing it would let two others lock two."""

    def __init__(self, path: Path) -> None:
        """StoreInUse if another has it."""
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreInUse(f"{path} is locked by another sink", "Stop the other worker.") from None
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
