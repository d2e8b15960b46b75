"""The files of a directory as the log in a bucket describes them: which exist, and which objects have their bytes.

Pure: the same operations make the same directory when they are written and when they are read back.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from penstock.core.types import Buffer

# Operations, as arrays in the body of a log's object: their number, the file's id, and what else they need.
CREATE, WRITE, TRUNCATE, ALLOCATE, RENAME, REMOVE, SETTLE, PLACE = range(1, 9)

Operation: TypeAlias = list[Any]
"""create name · write offset length (and its data) · truncate size · allocate size · rename name · remove · settle ·
place: like write, behind everything that the file has; the data stay in this object, which becomes a part
"""

PLACED_BYTES_MIN = 256 << 10
"""A write of this size stays in its object, and is not written again. Smaller ones are moved to parts with others: a
file of many small objects would take long to read, and the directory would grow with their number.
"""

PARTS_MANY = 10_000
"""Above this number of parts, only large ones stay: a checkpoint names them all, in some 60 bytes each."""

_LARGE_BYTES = 4 << 20
_GAPS_MAX = 8
"""Between the parts of a file that stay: each gap becomes one part."""


class Range(NamedTuple):
    start: int
    end: int


class Place(NamedTuple):
    """Where the data of a log's object are."""

    key: str
    skip: int
    checksum: int


PartId: TypeAlias = tuple[str, int]


class Part(NamedTuple):
    """Bytes of a file in an object that stays. Where parts overlap, the later one counts."""

    key: str
    skip: int
    """Where they start in the object."""
    start: int
    """Where they start in the file."""
    length: int
    checksum: int
    """Of the whole object; of an object of the log, that of its header."""

    @property
    def id(self) -> PartId:
        """An object of the log may have several parts of a file."""
        return self.key, self.skip

    @property
    def end(self) -> int:
        return self.start + self.length

    def cut(self, size: int) -> "Part":
        return self._replace(length=min(self.length, size - self.start))

    def overlaps(self, other: "Part | Range") -> bool:
        return self.start < other.end and other.start < self.end


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

    def place(self, start: int, length: int, place: Place) -> None:
        self.size = max(self.size, start + length)
        self.parts.append(Part(place.key, place.skip, start, length, place.checksum))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.size = size
            self.parts = [part.cut(size) for part in self.parts if part.start < size]
            self.logged, self.folding = _cut(self.logged, size), _cut(self.folding, size)

    def to_fold(self, kept_bytes_min: int) -> tuple[list[Range], set[PartId]]:
        """Start to fold: the ranges to be written to parts, and the parts that they replace. Of a settled file that is
        all but its large parts.

        Small parts at the end are written again with what follows them, as long as that at least doubles them: so a
        file has few parts, however often it is folded, and its bytes are written a few times only.
        """
        if self.settled:
            if self.is_stored:
                return [], set()
            kept = self._few_kept(kept_bytes_min)
            self.folding, self.logged = _gaps(kept, self.size), []
            return [*self.folding], {part.id for part in self.parts} - {part.id for part in kept}
        self.folding, self.logged = _merged([*self.folding, *self.logged]), []
        replaced: set[PartId] = set()
        if len(self.folding) == 1:
            start, end = self.folding[0]
            for part in reversed(self.parts):
                if part.end != start or part.length > end - start:
                    break
                start = part.start
                replaced.add(part.id)
            self.folding = [Range(start, end)]
        return [*self.folding], replaced

    def fold(self, parts: Iterable[Part], replaced: Set[PartId]) -> None:
        """`folding` is in these parts now. What was cut off since must not come back with them."""
        self.parts = [part for part in self.parts if part.id not in replaced]
        for part in parts:
            for start, end in self.folding:
                first, last = max(part.start, start), min(part.end, end)
                if first < last:
                    skip = part.skip + first - part.start
                    self.parts.append(part._replace(skip=skip, start=first, length=last - first))
        self.folding = []

    @property
    def is_stored(self) -> bool:
        """Whether parts without overlaps have all its bytes, for good."""
        if not self.settled or self.logged or self.folding:
            return False
        ends = [0, *(part.end for part in sorted(self.parts, key=_start))]
        return ends == [*(part.start for part in sorted(self.parts, key=_start)), self.size]

    def _few_kept(self, bytes_min: int) -> list[Part]:
        """Large parts, in order. The more small writes there are between them, the larger they must be."""
        kept = self._kept(bytes_min)
        while len(_gaps(kept, self.size)) > _GAPS_MAX:
            bytes_min *= 4
            kept = self._kept(bytes_min)
        return kept

    def _kept(self, bytes_min: int) -> list[Part]:
        """Large parts of which nothing was written again, in order."""
        newer: list[Part | Range] = [*self.logged, *self.folding]
        kept = []
        for part in reversed(self.parts):
            if part.length >= bytes_min and not any(part.overlaps(other) for other in newer):
                kept.append(part)
            newer.append(part)
        return sorted(kept, key=_start)

    def part_keys(self) -> set[str]:
        return {part.key for part in self.parts}


PartsByFile: TypeAlias = dict[int, list[Part]]
"""The parts that were written of each file, by its id."""


class FoldWork(NamedTuple):
    """What is to be written of one file, each range to a part of its own."""

    file: int
    ranges: list[Range]
    replaced: set[PartId]
    """Parts that these replace."""


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
            kept = [part for part in old if (part[0], part[1]) not in replaced.get(number, ())]
            complete.append([number, name, size, settled, kept + [list(part) for part in parts.get(number, ())]])
        return [next_id, complete]


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """In order, without overlaps: so no two parts have the same bytes, and no part is named twice."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1].end:
            merged[-1] = Range(merged[-1].start, max(merged[-1].end, end))
        else:
            merged.append(Range(start, end))
    return merged


def _start(part: Part) -> int:
    return part.start


def _gaps(parts: Iterable[Part], size: int) -> list[Range]:
    """What these parts, which are in order, lack of a file."""
    gaps, at = [], 0
    for part in parts:
        if at < part.start:
            gaps.append(Range(at, part.start))
        at = part.end
    return [*gaps, Range(at, size)] if at < size else gaps


def _cut(ranges: list[Range], size: int) -> list[Range]:
    return [Range(start, min(end, size)) for start, end in ranges if start < size]


class Directory:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.names: dict[str, int] = {}
        self.next_id = 1

    def apply(self, operations: Iterable[Operation], place: Place, released: list[str]) -> None:
        """Those of one object, whose data are at `place`. Keys that a file needs no more are added to `released`:
        another file may still need one.
        """
        for number, file, *rest in operations:
            if number == CREATE:
                self._create(file, rest[0])
            elif (entry := self.entries.get(file)) is None:
                pass  # it was removed while it was open
            elif number == PLACE:
                entry.place(rest[0], rest[1], place)
            else:
                self._change(entry, number, rest, released)
            if number in (WRITE, PLACE):
                place = place._replace(skip=place.skip + rest[1])

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
        """Whether the bytes of a settled file are to be moved from the log to parts."""
        return any(entry.settled and not entry.is_stored for entry in self.entries.values())

    def begin_fold(self, first: int, released: Iterable[str], placed_bytes_min: int = PLACED_BYTES_MIN) -> Fold:
        """All that only the log has. `placed_bytes_min`: of parts that stay."""
        is_crowded = sum(len(entry.parts) for entry in self.entries.values()) > PARTS_MANY
        kept_bytes_min = max(placed_bytes_min, _LARGE_BYTES) if is_crowded else placed_bytes_min
        needed = self.part_keys()
        fold = Fold(first, self.encode(), [], [key for key in released if key not in needed])
        for entry in self.entries.values():
            ranges, replaced = entry.to_fold(kept_bytes_min)
            if ranges or replaced:
                fold.work.append(FoldWork(entry.id, ranges, replaced))
        return fold

    def finish_fold(self, fold: Fold, parts: PartsByFile, released: list[str]) -> None:
        """A checkpoint with these parts is durable: it has released those that they replace. Parts of a file that was
        removed or cut off meanwhile are in that checkpoint: they are added to `released`, for the next one.
        """
        replaced_keys = {key for work in fold.work if work.file in self.entries for key, _ in work.replaced}
        for file, _, replaced in fold.work:
            entry = self.entries.get(file)
            if entry is not None:
                entry.fold(parts[file], replaced)
            used = set() if entry is None else entry.part_keys()
            released += [part.key for part in parts[file] if part.key not in used]
        fold.released += replaced_keys - self.part_keys()

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
        length = operation[3] if operation[0] in (WRITE, PLACE) else 0
        yield operation, view[at : at + length]
        at += length


def redo(content: bytearray, operation: Operation, data: Buffer) -> None:
    """An operation on the bytes of its file."""
    match operation:
        case [2 | 8, _, offset, _]:
            overwrite(content, offset, data)
        case [3, _, size]:
            del content[size:]


def overwrite(content: bytearray, offset: int, data: Buffer) -> None:
    """A gap before them becomes zeros."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


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
