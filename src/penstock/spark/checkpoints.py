"""Where a pipeline's checkpoint is, and what is in it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_FOLDER = "penstock-checkpoints"

OFFSETS = "offsets"
"""Spark's log of planned batches: a file for each, named by its number."""

PLAN = "penstock.json"
"""Our own file in a checkpoint: what its state stands for. Spark looks at none that it does not know."""

_ASIDE = "~reset"
"""Behind the name of a checkpoint that was moved aside. No pipeline's name has a tilde."""


def checkpoint_of(folder: str, pipeline: str) -> str:
    """`folder` may be a URL that Spark's file systems know; a local one becomes absolute."""
    local = local_path(folder)
    return f"{folder.rstrip('/')}/{pipeline}" if local is None else str(local.absolute() / pipeline)


def is_fresh(checkpoint: str) -> bool | None:
    """True: Spark has planned no batch there. None for what is not on this machine: we do not know."""
    local = local_path(checkpoint)
    return None if local is None else not LocalCheckpoint(local).batches()


def local_path(text: str) -> Path | None:
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", text)
    if scheme is None:
        return Path(text)
    return Path(re.sub(r"^file:(//)?", "", text)) if scheme[1] == "file" else None


class Checkpoint(Protocol):
    """A checkpoint's folder. Files are named relative to it."""

    def batches(self) -> list[int]:
        """Those in Spark's log, ascending."""

    def read(self, name: str) -> str | None:
        """None if there is no such file."""

    def write(self, name: str, text: str) -> None: ...

    def move_aside(self) -> str:
        """Rename the folder; one that was moved aside before is deleted. Gives the new place."""


def opened(spark: SparkSession, checkpoint: str) -> Checkpoint:
    local = local_path(checkpoint)
    return HadoopCheckpoint(spark, checkpoint) if local is None else LocalCheckpoint(local)


def incarnation_of(checkpoint: Checkpoint) -> int | None:
    """Of the pipeline whose offsets are in it; None if there are none."""
    batches = checkpoint.batches()
    text = (checkpoint.read(f"{OFFSETS}/{batches[-1]}") if batches else None) or ""
    for line in text.splitlines():
        match _json(line):
            case {"incarnation": int(incarnation)}:
                return incarnation
    return None


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


class LocalCheckpoint:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def batches(self) -> list[int]:
        offsets = self._folder / OFFSETS
        return _numbers([file.name for file in offsets.iterdir()]) if offsets.is_dir() else []

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        partial = self._folder / f".{name}.tmp"
        partial.write_text(text)
        partial.replace(self._folder / name)

    def move_aside(self) -> str:
        aside = self._folder.with_name(self._folder.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        self._folder.replace(aside)
        return str(aside)


class HadoopCheckpoint:
    """On any file system that Spark knows, through its JVM."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._hadoop = spark._jvm.org.apache.hadoop  # type: ignore[union-attr]  # noqa: SLF001  no public way
        self._url = url.rstrip("/")
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files = self._path().getFileSystem(configuration)

    def _path(self, name: str = "") -> Any:
        return self._hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def batches(self) -> list[int]:
        offsets = self._path(OFFSETS)
        found = self._files.listStatus(offsets) if self._files.exists(offsets) else []
        return _numbers([str(one.getPath().getName()) for one in found])

    def read(self, name: str) -> str | None:
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def move_aside(self) -> str:
        aside = self._hadoop.fs.Path(self._url + _ASIDE)
        self._files.delete(aside, True)
        self._files.rename(self._path(), aside)
        return self._url + _ASIDE
