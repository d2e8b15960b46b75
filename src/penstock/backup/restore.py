"""Restores a backup into a new data directory, which appears whole or not at all."""

import os
import shutil
from pathlib import Path

from penstock.backup.archive import Archive, OnBytes
from penstock.backup.manifest import Manifest
from penstock.core.durable_files import sync_directory
from penstock.core.errors import DiskFull, RequestError
from penstock.store.spares import OUT_OF_SPACE


def restore(archive: Archive, manifest: Manifest, data: Path, on_bytes: OnBytes = lambda _: None) -> None:
    """Every byte is checked. Nothing of the original's process is restored: a worker that starts on the directory has
    an id and ports of its own. Raises RequestError if the directory has something in it, Damaged, DiskFull.
    """
    data = data.absolute()
    check_empty(data)
    temporary = data.with_name(f".{data.name}.restoring")
    shutil.rmtree(temporary, ignore_errors=True)  # of an earlier restore that was killed
    try:
        _write(archive, manifest, temporary, on_bytes)
        temporary.replace(data)
        sync_directory(data.parent)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        needed = f"The backup needs {manifest.size:,} bytes there."
        raise DiskFull(f"{data} cannot be restored: {error.strerror}", needed) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_empty(data: Path) -> None:
    """Raises RequestError, also for what another directory cannot be renamed to."""
    if data.is_symlink():
        raise RequestError(
            f"{data} is a symbolic link", f"Name the directory that it leads to: --data {data.resolve()}"
        )
    if data.is_mount():
        raise RequestError(
            f"{data} is a mount point, which cannot be replaced",
            f"Restore to a directory on it, and move what it contains up: --data {data / 'restored'}",
        )
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise RequestError(f"{data} exists and is not an empty directory", "Name a new one: --data DIR")


def _write(archive: Archive, manifest: Manifest, directory: Path, on_bytes: OnBytes) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    for one in manifest.files:
        file = directory / one.path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive.copy(one, file, on_bytes)
    for folder, _, _ in os.walk(directory):
        sync_directory(Path(folder))
