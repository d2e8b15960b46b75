"""The location and the contents of a pipeline's checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from penstock.core.durable_files import sync_directory
from penstock.core.errors import CheckpointFailed, RequestError
from penstock.core.platforms import sync_file
from penstock.core.types import NO_EPOCH

DEFAULT_FOLDER = "penstock-checkpoints"

OFFSETS = "offsets"
"""Spark's log of planned batches: one file per batch, named by its number."""

COMMITS = "commits"
"""Spark's log of committed batches, likewise."""

PLAN = "penstock.json"
"""Our own file in a checkpoint: the plan that its state belongs to. Spark ignores files that it does not know."""

_ASIDE = "~reset"
"""The suffix of a checkpoint that was moved aside. Pipeline names cannot contain a tilde."""


def checkpoint_of(folder: str, pipeline: str) -> str:
    """`folder` may be a URL that Spark's file systems support; a local path becomes absolute."""
    local = local_path(folder)
    return f"{folder.rstrip('/')}/{pipeline}" if local is None else str(local.absolute() / pipeline)


def is_fresh(checkpoint: str) -> bool | None:
    """True if Spark has planned no batch there; None if it is not on this machine, so we do not know."""
    local = local_path(checkpoint)
    return None if local is None else not LocalCheckpoint(local).batches()


def local_path(text: str) -> Path | None:
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", text)
    if scheme is None:
        return Path(text)
    return Path(re.sub(r"^file:(//)?", "", text)) if scheme[1] == "file" else None


class Checkpoint(Protocol):
    """A checkpoint's folder; file names are relative to it. Every method raises CheckpointFailed if the file system
    refuses access.
    """

    def batches(self) -> list[int]:
        """The numbers of planned batches in Spark's log, ascending."""

    def committed(self) -> int:
        """The last committed batch; NO_EPOCH if there is none."""

    def read(self, name: str) -> str | None:
        """None if there is no such file."""

    def write(self, name: str, text: str) -> None:
        """A crash leaves the old or the new text."""

    def move_aside(self) -> str:
        """Rename the folder and return its new location. Deletes one that was moved aside earlier."""


def opened(checkpoint: str, gateway: Any) -> Checkpoint:
    """`gateway`: Py4J's, to a JVM with a Spark session, for a checkpoint that is not on this machine. Raises
    RequestError for such a checkpoint if there is none, and CheckpointFailed.
    """
    local = local_path(checkpoint)
    if local is not None:
        return LocalCheckpoint(local)
    if gateway is None:
        raise RequestError(
            f"the checkpoint {checkpoint} is not on this machine, and its file system cannot be reached from here",
            "Use a local folder, or run the pipeline with penstock run.",
        )
    return HadoopCheckpoint(gateway, checkpoint)


def incarnation_of(checkpoint: Checkpoint) -> int | None:
    """The incarnation of the pipeline whose offsets it contains; None if it contains no offsets."""
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


@contextmanager
def local_access(folder: Path) -> Iterator[None]:
    """Raises CheckpointFailed if the file system refuses access."""
    try:
        yield
    except OSError as error:
        raise _failed(str(folder), str(error)) from error


@contextmanager
def _hadoop_access(url: str) -> Iterator[None]:
    """Translates only what Java throws: a JVM that no longer answers is not a failure of the checkpoint."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:  # its own text is a page of Java
        raise _failed(url, error.java_exception.toString()) from error
    except PySparkException as error:  # PySpark translates some Java exceptions, such as IllegalArgumentException
        raise _failed(url, str(error)) from error


def _failed(checkpoint: str, why: str) -> CheckpointFailed:
    return CheckpointFailed(f"the checkpoint {checkpoint} cannot be used: {why}")


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


class LocalCheckpoint:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def batches(self) -> list[int]:
        return self._logged(OFFSETS)

    def committed(self) -> int:
        return max(self._logged(COMMITS), default=NO_EPOCH)

    def _logged(self, log: str) -> list[int]:
        folder = self._folder / log
        with local_access(self._folder):
            return _numbers([file.name for file in folder.iterdir()]) if folder.is_dir() else []

    def read(self, name: str) -> str | None:
        with local_access(self._folder):
            try:
                return (self._folder / name).read_text(errors="replace")
            except FileNotFoundError:
                return None

    def write(self, name: str, text: str) -> None:
        partial = self._folder / f".{name}.tmp"
        with local_access(self._folder):
            with partial.open("w") as out:
                out.write(text)
                out.flush()
                sync_file(out.fileno())
            partial.replace(self._folder / name)
            sync_directory(self._folder)

    def move_aside(self) -> str:
        aside = self._folder.with_name(self._folder.name + _ASIDE)
        with local_access(self._folder):
            shutil.rmtree(aside, ignore_errors=True)
            self._folder.replace(aside)
        return str(aside)


_SCHEMA_PATH = re.compile(r"file:[^\"]*?(/state/\d+/_stateSchema/)")
"""Spark stores where the schemas of an operator's state are as absolute paths: those of transformWithState, which our
windows use, are found nowhere else.
"""


def adopt_moved(checkpoint: str) -> None:
    """Let a local checkpoint that was moved, copied or restored to this folder refer to itself, and no longer to the
    folder where it was created. Raises CheckpointFailed.
    """
    folder = local_path(checkpoint)
    if folder is None:
        return
    place = f"file:{folder.absolute()}"
    with local_access(folder):
        for file in folder.glob("state/*/_metadata/v2/[0-9]*"):  # and not their checksums, which are no text
            text = file.read_text()
            adopted = _SCHEMA_PATH.sub(lambda found: place + found[1], text)
            if adopted != text:
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of the old text
                partial = file.with_name(f".{file.name}.tmp")
                partial.write_text(adopted)
                partial.replace(file)


class HadoopCheckpoint:
    """On any file system that Spark supports, through its JVM."""

    def __init__(self, gateway: Any, url: str) -> None:
        """Its file system is configured as Spark's are."""
        self._gateway = gateway
        self._hadoop = gateway.jvm.org.apache.hadoop
        self._url = url.rstrip("/")
        with _hadoop_access(self._url):
            self._configuration = gateway.jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
            self._files = self._path().getFileSystem(self._configuration)

    def _path(self, name: str = "") -> Any:
        return self._hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def batches(self) -> list[int]:
        return self._logged(OFFSETS)

    def committed(self) -> int:
        return max(self._logged(COMMITS), default=NO_EPOCH)

    def _logged(self, log: str) -> list[int]:
        with _hadoop_access(self._url):
            folder = self._path(log)
            found = self._files.listStatus(folder) if self._files.exists(folder) else []
            return _numbers([str(one.getPath().getName()) for one in found])

    def read(self, name: str) -> str | None:
        with _hadoop_access(self._url):
            if not self._files.exists(self._path(name)):
                return None
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """Replaces the file as a whole. As Spark does for its own logs, a file system that cannot replace one file by
        another gets the new bytes directly: it is an object store, where an object appears when it is complete.
        """
        with _hadoop_access(self._url):
            context = self._file_context()
            if context is None:
                self._create(self._path(name), text)
            else:
                partial = self._path(f".{name}.tmp")
                self._create(partial, text)
                context.rename(partial, self._path(name), self._overwriting())

    def _file_context(self) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._hadoop.fs.FileContext.getFileContext(self._files.getUri(), self._configuration)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "UnsupportedFileSystemException":
                return None
            raise

    def _overwriting(self) -> Any:
        rename = self._hadoop.fs.Options.Rename
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        return options

    def _create(self, path: Any, text: str) -> None:
        stream = self._files.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def move_aside(self) -> str:
        aside = self._url + _ASIDE
        with _hadoop_access(self._url):
            self._files.delete(self._hadoop.fs.Path(aside), True)
            is_moved = self._files.rename(self._path(), self._hadoop.fs.Path(aside))
            if not is_moved:  # some file systems refuse without an exception
                raise _failed(self._url, f"its file system did not rename it to {aside}")
        return aside
