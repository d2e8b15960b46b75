"""Files that were rotated while nobody followed them: where the rest of each is now."""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeAlias

from penstock.connectors.file.contents import Contents, algorithm_of, pread
from penstock.connectors.interceptors.api import BadRecord
from penstock.connectors.interceptors.compression import Algorithm
from penstock.core.errors import PenstockError

HEAD_BYTES = 1024
"""The part of the first line that identifies a file: log lines start with their time."""

NEWLINE = b"\n"

IN_PART = "p"
"""Follows the mark of a first line that may still grow: not a digit of a mark."""

ANY = "any"
"""Instead of a mark, where files do not consist of lines."""

_NAME = re.compile(rf"([0-9a-f]+)-([0-9a-f]+)-({ANY}|[0-9a-f]{{16}}{IN_PART}?)(?:~[0-9]+)?")

_SHOWN = 5
"""How many files a reason names."""

_CHUNK_BYTES = 256 << 10


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Its file descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class Inode(NamedTuple):
    device: int
    number: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Inode":
        return cls(status.st_dev, status.st_ino)


def mark_of(head: bytes) -> str:
    """The mark of the first line, or of the part that is used; empty while that is incomplete."""
    line, newline, _ = head.partition(NEWLINE)
    return sha256(line).hexdigest()[:16] if newline or len(head) == HEAD_BYTES else ""


class FileName(NamedTuple):
    """The name of a stream, without the number of its life: which file it is."""

    inode: Inode
    mark: str

    def __str__(self) -> str:
        return f"{self.inode.device:x}-{self.inode.number:x}-{self.mark}"

    @classmethod
    def parse(cls, name: str) -> "FileName | None":
        found = _NAME.fullmatch(name)
        return None if found is None else cls(Inode(int(found[1], 16), int(found[2], 16)), found[3])

    @classmethod
    def all_of(cls, inode: Inode, head: bytes) -> "set[FileName]":
        """The names that a file with this head can have."""
        marks = {ANY, mark_of(head), mark_of(head + NEWLINE) + IN_PART if NEWLINE not in head else ""} - {""}
        return {cls(inode, mark) for mark in marks}


@dataclass(frozen=True, slots=True, eq=False)
class Rotated:
    """A file that may be the rest of another one."""

    path: Path
    inode: Inode
    algorithm: Algorithm | None
    head: bytes
    """The beginning of what is in it, decompressed."""
    error: str = ""
    """Why it cannot be read."""

    @property
    def names(self) -> set[FileName]:
        return FileName.all_of(self.inode, self.head)

    def reaches(self, position: int) -> bool:
        """Whether it has so many bytes, decompressed. Blocks."""
        try:
            with opened(self.path) as fd:
                if self.algorithm is None:
                    return os.fstat(fd).st_size >= position
                contents = Contents(partial(pread, fd), _CHUNK_BYTES, self.algorithm, position)
                contents.read()
                return not contents.is_before_position
        except (OSError, BadRecord):
            return False


NoRest: TypeAlias = str
"""Why nothing is known to be the rest of a file."""


def names_of(paths: Iterable[tuple[Inode, Path]]) -> set[FileName]:
    """Those that these files can have. A file that cannot be read has any."""
    found: set[FileName] = set()
    for inode, path in paths:
        try:
            with opened(path) as fd:
                found |= FileName.all_of(inode, os.pread(fd, HEAD_BYTES, 0))
        except OSError:
            found.add(FileName(inode, ""))
    return found


def orphans(started: Iterable[str], followed: Collection[FileName]) -> dict[FileName, list[str]]:
    """The files that are not followed, with their streams that are not finished: one for each life of the file, in
    order.
    """
    unreadable = {name.inode for name in followed if not name.mark}
    found: dict[FileName, list[str]] = {}
    for name in sorted(started, key=lambda name: int(name.partition("~")[2] or 0)):
        file = FileName.parse(name)
        if file is not None and file not in followed and file.inode not in unreadable:
            found.setdefault(file, []).append(name)
    return found


def rotated_files(pattern: str, followed: Mapping[Inode, Path], allows: Callable[[Path], bool]) -> list[Rotated] | None:
    """All files beside those that are followed. None if there is no directory in which they could be. Blocks."""
    above = str(Path(os.path.abspath(pattern)).parent)  # noqa: PTH100  as `find_files`
    matching = [above] if Path(above).is_dir() else glob(above, recursive=True)  # noqa: PTH207  as there
    folders = [folder for folder in map(Path, matching) if folder.is_dir()]
    if not folders:
        return None
    found = [_rotated(path) for folder in folders for path in sorted(folder.iterdir()) if allows(path)]
    by_inode = {one.inode: one for one in reversed(found) if one is not None and one.inode not in followed}
    return [*reversed(by_inode.values())]


def _rotated(path: Path) -> Rotated | None:
    """None for what is not a file."""
    algorithm = algorithm_of(path.name, "auto")
    try:
        status = path.stat()
    except OSError:  # gone since
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    inode = Inode.of(status)
    try:
        with opened(path) as fd:
            head = Contents(partial(pread, fd), HEAD_BYTES, algorithm, 0).read()[:HEAD_BYTES]
    except (OSError, PenstockError) as error:
        return Rotated(path, inode, algorithm, b"", str(error))
    return Rotated(path, inode, algorithm, head)


def rest_of(
    file: FileName, position: int, candidates: Sequence[Rotated], known: Collection[FileName]
) -> Rotated | NoRest:
    """Which of them has the rest of a file that was read up to this position: the file itself under another name, or
    a copy that begins like it and is as long, perhaps compressed. `known` are the files that have or had streams.
    Blocks.
    """
    for one in candidates:
        if one.algorithm is None and file in one.names:
            return one
    if file.mark == ANY or file.mark.endswith(IN_PART):
        return "no file in its directory has its inode"
    if any(one.mark == file.mark and one != file for one in known):
        return "no file in its directory has its inode, and others begin with the same line"
    alike = [one for one in candidates if mark_of(one.head) == file.mark]
    copies = [one for one in alike if one.reaches(position)]
    plain = [one for one in copies if one.algorithm is None]
    found = plain or copies
    if len(found) == 1:
        return found[0]
    if found:
        return f"{len(found)} files begin like it: {', '.join(str(one.path) for one in found[:_SHOWN])}"
    failed = [f"; {one.path} cannot be read: {one.error}" for one in candidates if one.error]
    return f"no file in its directory has its inode, or begins like it and is as long{''.join(failed[:_SHOWN])}"
