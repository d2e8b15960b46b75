"""Which files of a data directory, and of the folder with checkpoints, are part of a backup.

The journal is fixed first: everything before one durable position P, at which pipeline *p* has merged its epochs up to
E(p). Checkpoints are copied afterwards, while their queries run, and are therefore newer than the journal. What is
newer is left out: entries of Spark's logs after E(p), and state of later versions. What is left is a checkpoint as a
crash right after the merge of E(p) leaves it:

- Its logs and its state up to E(p) were durable before the merge, so they are there when the copying starts. Spark
  keeps the last 100 epochs of all of them; a copy that takes longer than that is noticed (see `has_moved_on`).
- The commit of E(p) may be missing in it. Then Spark runs E(p) again, on the same input, and the merge is a no-op.
- The other order would not do. A checkpoint that is copied before the journal is older than the ledger, possibly by
  many epochs whose input is gone. One that is newer than the ledger is refused when the pipeline starts.

State of later versions must go, and not only the entries of the logs: Spark loads the newest snapshot up to the version
that it needs, and after the restore a snapshot of the abandoned epochs would be taken for one of the new ones.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from penstock.core.types import NO_EPOCH, Position
from penstock.spark.run.checkpoint_files import belongs
from penstock.store.chapters import chapter_name, file_offset

JOURNAL = "journal"
CHECKPOINTS = "checkpoints"
PLAIN_FILES = ("application.json", "access.json", "token")
"""In the data directory itself. Others belong to one process (ports, logs, locks) or to one directory (trace_seed: a
restored worker must not add to the traces of the original), or are an estimate (starts.json).
"""

_ASIDE = "~"
"""In the name of a checkpoint that was moved aside; see `penstock.spark.run.checkpoints`."""


class Chapter(NamedTuple):
    """A chapter to copy."""

    base: Position
    length: int | None
    """Only so many bytes of the last one; None: all, because it is closed."""

    @property
    def path(self) -> str:
        return f"{JOURNAL}/{chapter_name(self.base)}"


def chapters_before(bases: Sequence[int], position: int) -> list[Chapter]:
    """What holds everything before the position: closed chapters, and the beginning of the last one."""
    needed = [Position(base) for base in bases if base < position]
    closed = [Chapter(base, None) for base in needed[:-1]]
    return [*closed, *(Chapter(base, file_offset(base, position)) for base in needed[-1:])]


def has_moved_on(batches: Sequence[int], epoch: int) -> bool:
    """Whether Spark may have deleted state of this epoch. It deletes state and old entries of its logs by the same
    rule, so the state of an epoch is there as long as the log's entry before it is.
    """
    return not batches or batches[0] > max(epoch - 1, 0)


def checkpoint_files(folder: Path, epoch: int) -> Iterator[PurePosixPath]:
    """Relative to the checkpoint's folder. Spark's logs come before the state that they refer to: an entry of the
    commit log is there only if its state is. Files that disappear meanwhile are left out.
    """
    for top in sorted(folder.iterdir(), key=lambda one: one.name):
        found = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in found:
            path = PurePosixPath(file.relative_to(folder).as_posix())
            if belongs(path, epoch) and file.is_file():
                yield path


def checkpoints_in(folder: Path) -> list[str]:
    """The names of the pipelines that have one."""
    if not folder.is_dir():
        return []
    return sorted(one.name for one in folder.iterdir() if _ASIDE not in one.name and (one / "offsets").is_dir())


def missing_checkpoints(needed: dict[str, int], present: Sequence[str]) -> list[str]:
    """Pipelines that cannot continue without one. One that has committed nothing starts without."""
    return sorted(name for name, epoch in needed.items() if epoch > NO_EPOCH and name not in present)
