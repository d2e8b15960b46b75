"""Durable names of files."""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """After a file in it was created or renamed: its name is then as durable as its bytes."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
