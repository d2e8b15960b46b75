"""The class archive: Spark's classes, parsed and verified, in a file that a JVM maps at its start (AppCDS).

The archive is a cache: a JVM that finds none, or one that does not fit, starts as it would without.
`penstock.cli.class_archive` creates it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from penstock.core.errors import RequestError
from penstock.core.platforms import sync_file
from penstock.spark.run.java import Java, cache_folder, find_java

SWITCH = "PENSTOCK_CLASS_ARCHIVE"
"""The environment variable: `auto` (the default) uses the archive and creates a missing one, `use` never creates it,
`off` does neither.
"""

AUTO, OFF = "auto", "off"

_QUIET = "-Xlog:disable -Xlog:all=warning:stderr"
"""The JVM's warnings go to Spark's log: by default they go to stdout, which belongs to the user's pipelines."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The file for one build of Java and one set of jars, whether or not it exists. An archive of other jars or of
    another Java has another name; the JVM checks both again, and its class path.
    """

    path: Path

    def options(self) -> str:
        """For a JVM that uses it; empty if there is none."""
        return f"{_QUIET} -XX:SharedArchiveFile={quote(str(self.path))}" if self.is_usable else ""

    def creating_options(self, partial: Path) -> str:
        """For a JVM that writes its classes to `partial` when it ends in order."""
        return f"{_QUIET} -XX:ArchiveClassesAtExit={quote(str(partial))}"

    @property
    def is_usable(self) -> bool:
        """Code is run from it, so no other user may have written it. A JVM crashes with a truncated archive."""
        try:
            found, size = self.path.stat(), int(self._size.read_text())
        except (OSError, ValueError):
            return False
        is_ours = found.st_uid in (0, os.getuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return is_ours and found.st_size == size

    @property
    def is_missing(self) -> bool:
        """Whether it should be created. No second attempt is made after a failed one: it would fail every time."""
        return not self.is_usable and not self._failed.exists()

    @property
    def _failed(self) -> Path:
        return self.path.with_suffix(".failed")

    @property
    def _size(self) -> Path:
        """Its size, as a number."""
        return self.path.with_suffix(".size")

    def install(self, partial: Path) -> None:
        """Put a complete file in its place. What is left from before an upgrade of Java or Spark is deleted."""
        partial.chmod(0o600)
        with partial.open("rb") as file:
            sync_file(file.fileno())  # after a power cut its size would be right, but not its contents
            self._size.write_text(str(os.fstat(file.fileno()).st_size))
        partial.replace(self.path)
        self._delete(one for one in self._siblings() if one.stem != self.path.stem)

    def discard(self) -> None:
        """A JVM has failed with it: it is not used any more, nor created again."""
        self.mark_failed()
        self._delete([self.path])

    def mark_failed(self) -> None:
        """It cannot be created here, for instance because the class path has a folder of configuration files."""
        with suppress(OSError):
            self._failed.touch()

    def _siblings(self) -> Iterable[Path]:
        place = self.path.name.rpartition("-")[0]
        return self.path.parent.glob(f"{place}-*")

    def _delete(self, files: Iterable[Path]) -> None:
        for file in files:
            with suppress(OSError):
                file.unlink()


def find_archive() -> ClassArchive | None:
    """None if it is switched off, or if Spark cannot run here."""
    home = _spark_home()
    if home is None or os.environ.get(SWITCH, "").lower() == OFF:
        return None
    try:
        return archive_for(find_java(), home / "jars")
    except (OSError, RuntimeError, RequestError):  # RuntimeError: a service user without a home folder
        return None


def archive_for(java: Java, jars: Path) -> ClassArchive:
    """Its name has a part for where Java and Spark are, and a part for what they are. Raises OSError."""
    place = _digest([str(java.home), str(jars)])
    found = sorted((jar.name, jar.stat()) for jar in jars.iterdir())
    contents = _digest([java.build, *(f"{name} {jar.st_size} {jar.st_mtime_ns}" for name, jar in found)])
    return ClassArchive(cache_folder() / f"classes-{place}-{contents}.jsa")


def _digest(texts: Iterable[str]) -> str:
    return blake2b("\n".join(texts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _spark_home() -> Path | None:
    """As PySpark finds it. The package is not imported: that takes time."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent
