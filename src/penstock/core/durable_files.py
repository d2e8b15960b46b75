"""Files that survive a crash: their bytes, and their names."""

import os
from pathlib import Path

from penstock.core.platforms import sync_file


def sync_directory(directory: Path) -> None:
    """Make the names in the directory durable. Call it after a file in it was created or renamed."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def write_private(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read: durably, and either completely or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        sync_file(out.fileno())
    temporary.replace(file)
    sync_directory(file.absolute().parent)
