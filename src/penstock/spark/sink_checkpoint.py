"""Spark's checkpoint made durable: Spark itself never syncs a local one."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core.errors import StoreFailed
from penstock.spark.checkpoints import local_path


def sync_checkpoint(location: str | None) -> None:
    """When it returns, all that Spark has written there survives a power cut.

    Where the location is not known, everything on this machine is synced. One with another scheme than `file:` is left
    to its own file system. Raises StoreFailed when the disk fails.
    """
    path = None if location is None else local_path(location)
    if path is None:
        if location is None:
            os.sync()
        return
    try:
        _sync_file_system(path)
    except FileNotFoundError:
        os.sync()  # without a scheme it may be on Spark's default file system, or here under another name
    except OSError as error:
        raise StoreFailed(
            f"the checkpoint in {path} cannot be made durable: {error.strerror}", "Look at the disk, then start again."
        ) from error


def _sync_file_system(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        syncfs = _syncfs()
        if syncfs is None:
            os.sync()
        elif syncfs(directory):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(directory)


@cache
def _syncfs() -> Any:
    """Linux has it: one file system is synced, and errors are told, which sync(2) does not."""
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
