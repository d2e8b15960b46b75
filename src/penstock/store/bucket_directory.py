"""The files of a directory as the log in a bucket describes them: which exist, and which objects have their bytes.

Pure: the same operations make the same directory when they are written and when they are read back.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from penstock.core.types import Buffer

# Operations, as arrays in the body of a log's object: their number, the file's id, and what else they need.
CREATE, WRITE, TRUNCATE, ALLOCATE, RENAME, REMOVE, SETTLE = range(1, 8)

Operation: TypeAlias = list[Any]
"""create name · write offset length (and its data) · truncate size · allocate size · rename name · remove · settle"""


class Range(NamedTuple):
    start: int
    end: int


class Part(NamedTuple):
    """Bytes of a file that are in an object of their own. Where parts overlap, the later one counts."""

    key: str
    skip: int
    """Where they start in the object."""
    start: int
    """Where they start in the file."""
    length: int
    checksum: int
    """Of the whole object."""

    @property
    def end(self) -> int:
        return self.start + self.length

    def cut(self, size: int) -> "Part":
        return self._replace(length=min(self.length, size - self.start))


@dataclass(slots=True)
class Entry:
    """A file. Bytes that are in no part, and not only in the log, are zeros."""

    id: int
    name: str
    size: int = 0
    settled: bool = False
    """Its bytes will not change any more."""
    parts: list[Part] = field(default_factory=list)
    logged: list[Range] = field(default_factory=list)
    """Bytes that only the log has, except those below."""
    folding: list[Range] = field(default_factory=list)
    """Bytes that only the log has while they are written to parts."""

    def write(self, start: int, length: int) -> None:
        if not length:
            return
        self.size = max(self.size, start + length)
        if self.logged and self.logged[-1].start <= start <= self.logged[-1].end:
            last = self.logged[-1]
            self.logged[-1] = Range(last.start, max(last.end, start + length))
        else:
            self.logged.append(Range(start, start + length))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.size = size
            self.parts = [part.cut(size) for part in self.parts if part.start < size]
            self.logged, self.folding = _cut(self.logged, size), _cut(self.folding, size)

    def to_fold(self) -> tuple[list[Range], set[str]]:
        """Start to fold: the ranges to be written to parts, and the keys of parts that they replace. A settled file
        becomes one part.

        Small parts at the end are written again with what follows them, as long as that at least doubles them: so a
        file has few parts, however often it is folded, and its bytes are written a few times only.
        """
        if self.settled:
            if not self.is_stored_whole:
                self.folding, self.logged = [Range(0, self.size)], []
            return [*self.folding], self.part_keys()
        self.folding, self.logged = [*self.folding, *self.logged], []
        replaced: set[str] = set()
        if len(self.folding) == 1:
            start, end = self.folding[0]
            for part in reversed(self.parts):
                if part.end != start or part.length > end - start:
                    break
                start = part.start
                replaced.add(part.key)
            self.folding = [Range(start, end)]
        return [*self.folding], replaced

    def fold(self, parts: Iterable[Part], replaced: Set[str]) -> None:
        """`folding` is in these parts now. What was cut off since must not come back with them."""
        self.parts = [part for part in self.parts if part.key not in replaced]
        for part in parts:
            for start, end in self.folding:
                first, last = max(part.start, start), min(part.end, end)
                if first < last:
                    skip = part.skip + first - part.start
                    self.parts.append(part._replace(skip=skip, start=first, length=last - first))
        self.folding = []

    @property
    def is_stored_whole(self) -> bool:
        """Whether one part has all its bytes, for good."""
        if not self.settled or self.logged or self.folding:
            return False
        return self.size == 0 or (len(self.parts) == 1 and self.parts[0].length == self.size)

    def part_keys(self) -> set[str]:
        return {part.key for part in self.parts}


PartsByFile: TypeAlias = dict[int, list[Part]]
"""The parts that were written of each file, by its id."""


class FoldWork(NamedTuple):
    """What is to be written of one file, each range to a part of its own."""

    file: int
    ranges: list[Range]
    replaced: set[str]
    """Keys of parts that these replace."""


@dataclass(slots=True)
class Fold:
    """A move of bytes from the log to parts."""

    first: int
    """The first number of the log that is not in it."""
    directory: Any
    """As it was, in the form of a checkpoint."""
    work: list[FoldWork]
    released: list[str]
    """Keys that the directory no longer names."""

    def checkpoint(self, parts: PartsByFile) -> Any:
        """The directory with the parts that were written."""
        replaced = {work.file: work.replaced for work in self.work}
        next_id, files = self.directory
        complete = []
        for number, name, size, settled, old in files:
            kept = [part for part in old if part[0] not in replaced.get(number, ())]
            complete.append([number, name, size, settled, kept + [list(part) for part in parts.get(number, ())]])
        return [next_id, complete]


def _cut(ranges: list[Range], size: int) -> list[Range]:
    return [Range(start, min(end, size)) for start, end in ranges if start < size]


class Directory:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.names: dict[str, int] = {}
        self.next_id = 1

    def apply(self, operations: Iterable[Operation], released: list[str]) -> None:
        """Keys of parts that no file needs any more are added to `released`."""
        for number, file, *rest in operations:
            if number == CREATE:
                self._create(file, rest[0])
            elif (entry := self.entries.get(file)) is not None:  # otherwise it was removed while it was open
                self._change(entry, number, rest, released)

    def _create(self, file: int, name: str) -> None:
        self.entries[file] = Entry(file, name)
        self.names[name] = file
        self.next_id = max(self.next_id, file + 1)

    def _change(self, entry: Entry, number: int, rest: list[Any], released: list[str]) -> None:
        before = entry.part_keys() if number == TRUNCATE else set()
        match number:
            case 2:
                entry.write(*rest)
            case 3:
                entry.truncate(*rest)
            case 4:
                entry.size = max(entry.size, *rest)
            case 5:
                self._rename(entry, rest[0], released)
            case 6:
                self._remove(entry, released)
            case 7:
                entry.settled = True
            case _:
                raise ValueError(f"operation {number} is not known")
        released.extend(before - entry.part_keys())

    def _rename(self, entry: Entry, name: str, released: list[str]) -> None:
        replaced = self.names.get(name)
        if replaced is not None and replaced != entry.id:
            self._remove(self.entries[replaced], released)
        del self.names[entry.name]
        entry.name = name
        self.names[name] = entry.id

    def _remove(self, entry: Entry, released: list[str]) -> None:
        del self.entries[entry.id], self.names[entry.name]
        released.extend(entry.part_keys())

    def part_keys(self) -> set[str]:
        """Of all files."""
        return {key for entry in self.entries.values() for key in entry.part_keys()}

    def has_unstored(self) -> bool:
        """Whether a settled file is to become one part."""
        return any(entry.settled and not entry.is_stored_whole for entry in self.entries.values())

    def begin_fold(self, first: int, released: list[str]) -> Fold:
        """All that only the log has; settled files as a whole."""
        fold = Fold(first, self.encode(), [], released)
        for entry in self.entries.values():
            ranges, replaced = entry.to_fold()
            if ranges:
                fold.work.append(FoldWork(entry.id, ranges, replaced))
        return fold

    def finish_fold(self, fold: Fold, parts: PartsByFile, released: list[str]) -> None:
        """A checkpoint with these parts is durable: it has released those that they replace. Parts of a file that was
        removed meanwhile are in that checkpoint: they are added to `released`, for the next one.
        """
        for file, _, replaced in fold.work:
            entry = self.entries.get(file)
            if entry is not None:
                entry.fold(parts[file], replaced)
                fold.released += replaced
            else:
                released += [part.key for part in parts[file]]

    def encode(self) -> Any:
        """For the body of a checkpoint. Only parts: what the log alone has must be in them already."""
        files = [[e.id, e.name, e.size, e.settled, [list(part) for part in e.parts]] for e in self.entries.values()]
        return [self.next_id, files]

    @classmethod
    def decode(cls, body: Any) -> "Directory":
        directory = cls()
        if body is not None:
            directory.next_id, files = body
            for number, name, size, settled, parts in files:
                directory.entries[number] = Entry(number, name, size, settled, [Part(*part) for part in parts])
                directory.names[name] = number
        return directory


def data_of(operations: Iterable[Operation], data: Buffer) -> Iterator[tuple[Operation, memoryview]]:
    """Each operation with its data; empty for all but writes."""
    view, at = memoryview(data), 0
    for operation in operations:
        length = operation[3] if operation[0] == WRITE else 0
        yield operation, view[at : at + length]
        at += length


def groups(
    pending: Sequence[tuple[Operation, bytes]], bytes_max: int
) -> Iterator[tuple[list[Operation], list[Buffer]]]:
    """Operations and their data, in objects of limited size."""
    operations: list[Operation] = []
    data: list[Buffer] = []
    size = 0
    for operation, buffer in _pieces(pending, bytes_max):
        if operations and size + len(buffer) > bytes_max:
            yield operations, data
            operations, data, size = [], [], 0
        operations.append(operation)
        data.append(buffer)
        size += len(buffer)
    if operations:
        yield operations, data


def _pieces(pending: Sequence[tuple[Operation, bytes]], bytes_max: int) -> Iterator[tuple[Operation, Buffer]]:
    """A write that is larger than an object becomes several."""
    for operation, data in pending:
        if len(data) <= bytes_max:
            yield operation, data
            continue
        number, file, offset, _ = operation
        for at in range(0, len(data), bytes_max):
            piece = memoryview(data)[at : at + bytes_max]
            yield [number, file, offset + at, len(piece)], piece
