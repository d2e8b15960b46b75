"""Which files of a local checkpoint belong to an epoch, and how they become durable: Spark itself never syncs them."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.core.errors import StoreFailed
from penstock.core.platforms import libc
from penstock.spark.run.checkpoints import COMMITS, OFFSETS, local_path

_LOGS = (OFFSETS, COMMITS)
_STATE = "state"
_VERSION = re.compile(r"(\d+)([._].*)?")
_SNAPSHOTS = (".zip", ".snapshot")
"""Of Spark's two state stores, RocksDB and HDFS-backed. All other versions are changes since the version before."""

_LOGGED_EPOCHS = 3
"""Entries of Spark's logs that a query may read when it starts: its last epoch and the one before. One more is there
for people who look."""


def belongs(path: PurePosixPath, epoch: int) -> bool:
    """Whether a file of a checkpoint is part of it as it was after this epoch. Partial files and
    Hadoop's own checksums, which are not replaced together with their files, are never copied.
    """
    return _is_whole(path.name) and _is_of(path.parts[0], _version(path.name), epoch)


def _is_whole(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".tmp")


def _version(name: str) -> int | None:
    """None if it has none."""
    version = _VERSION.fullmatch(name)
    return None if version is None else int(version[1])


def _is_of(top: str, version: int | None, epoch: int) -> bool:
    """`top`: the folder in the checkpoint that contains the file."""
    if version is None:
        return True
    if top in _LOGS:
        return version <= epoch
    return top != _STATE or version <= epoch + 1  # an epoch writes the version after its number


def files_needed(folder: Path, epoch: int, *, is_committed: bool) -> Iterator[str]:
    """What a query needs that continues after this epoch, or runs it again if it is not committed. Relative to the
    folder, with slashes.

    A folder is listed before those in it: a snapshot of RocksDB is found only if the tables that it refers to are
    complete, because Spark writes it after them. What Spark deletes meanwhile is older than everything needed.
    """
    loaded = epoch + 1 if is_committed else epoch
    root = str(folder)
    for place, _, names in os.walk(root):  # hundreds of names in each epoch: plain texts, and no paths
        where = place[len(root) + 1 :].replace(os.sep, "/")
        top = where.partition("/")[0]
        versions = {name: _version(name) for name in names if _is_whole(name)}
        found = {name: version for name, version in versions.items() if _is_of(top, version, epoch)}
        first = _first_needed(top, found, epoch, loaded)
        for name, version in found.items():
            if version is None or version >= first:
                yield f"{where}/{name}" if where else name


def _first_needed(top: str, versions: Mapping[str, int | None], epoch: int, loaded: int) -> int:
    """The first version that is needed in a folder: of a state store, the snapshot from which Spark loads a version."""
    if top in _LOGS:
        return epoch - _LOGGED_EPOCHS + 1
    if top != _STATE:
        return 0
    snapshots = (version for name, version in versions.items() if version is not None and name.endswith(_SNAPSHOTS))
    return max((version for version in snapshots if version <= loaded), default=0)


def sync_checkpoint(location: str | None) -> None:
    """When it returns, everything that Spark has written there survives a power cut.

    If the location is unknown, everything on this machine is synced. A location with a scheme other than `file:` is
    left to its own file system. Raises StoreFailed when the disk fails.
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
    """On Linux only: it syncs one file system and reports errors, unlike sync(2)."""
    return libc("syncfs")
