"""Small disks that a test can fill: ext4 in a file, mounted where root may do that."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.core.sizes import MIB


def run(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True)


def make_image(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    run("mkfs.ext4", "-q", "-F", "-m", "0", path)
    return path


@contextmanager
def mounted(image: Path, directory: Path) -> Iterator[Path]:
    directory.mkdir()
    run("mount", "-o", "loop", image, directory)
    try:
        yield directory
    finally:
        run("umount", "--lazy", directory)


def directory_for_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a fixture; skips the test if no image can be mounted here."""
    directory = tmp_path_factory.mktemp("images")
    if sys.platform != "linux" or not shutil.which("mkfs.ext4"):
        pytest.skip("needs Linux and mkfs.ext4")
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount an ext4 image")
    try:
        with mounted(make_image(directory / "try.img", 8 * MIB), directory / "try"):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"an ext4 image cannot be mounted here: {error.stderr.decode().strip()}")
    return directory


def fill_disk(directory: Path) -> Path:
    """Take every block that is left; returns the file to delete to make room again."""
    rest = directory / "rest"
    with rest.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12, 1 << 10):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return rest
