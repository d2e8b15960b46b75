"""Values behind the end of one file, on disk before they count as delivered."""

import os
from collections.abc import Sequence
from pathlib import Path


def encode(values: Sequence[bytes], form: str) -> bytes:
    """`lines`: each with a newline. `raw`: one right behind the other. `frames`: each behind its length, a u32."""
    match form:
        case "lines":
            return b"".join(part for value in values for part in (value, b"\n"))
        case "frames":
            return b"".join(part for value in values for part in (len(value).to_bytes(4, "big"), value))
        case _:
            return b"".join(values)


def append(path: Path, data: bytes, *, lines: bool) -> None:
    """Return when it is on disk. A file that was moved away meanwhile is made anew. What a failed write has left is cut
    off again, and `lines` begin on a line of their own behind what a crash has left. Raises OSError.
    """
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        torn = lines and size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        try:
            _write_all(fd, b"\n" + data if torn else data)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if is_new:
        _sync_directory(path.parent)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
