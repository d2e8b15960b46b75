"""Files that people name: read no further than what can be meant, and never waited for."""

import os
import stat
from pathlib import Path


class TooLarge(Exception):
    """The file goes on behind the limit."""


def read_bounded(path: Path, bytes_max: int) -> str:
    """Its text, as UTF-8. A pipe or a device is refused before it is read: the one may never end, the other never
    begin. Raises OSError, TooLarge, UnicodeDecodeError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  of a descriptor
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "Is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(None, "it is no plain file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLarge
    return data.decode()
