"""One segment in memory, and the runs that map its bytes to chapters.

There may be a million of them, and a full garbage collection looks at every object that the collector tracks: so it
tracks nothing here (`gc=False`, and bytes instead of an array). None of it can be part of a reference cycle.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct as Layout
from typing import NamedTuple, Self

import msgspec

from penstock.core.types import Offset, Position, SegmentId

_RUN = Layout("=4Q")
_START = Layout("=Q")
_WIDTH = 4


class Run(NamedTuple):
    """From `start` on, the bytes are in `chapter`, in the rows of `key`, where `start` is called `key_start`."""

    start: Offset
    chapter: Position
    key: SegmentId
    key_start: Offset


class Runs(msgspec.Struct, gc=False, eq=False):
    """A segment's runs in ascending order. Flat, because there are many segments and most have one run."""

    _packed: bytearray = msgspec.field(default_factory=bytearray)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """The inverse of `flat`."""
        values = [*numbers]
        return cls(bytearray(Layout(f"={len(values)}Q").pack(*values)))

    def __len__(self) -> int:
        return len(self._packed) // _RUN.size

    def __getitem__(self, number: int) -> Run:
        start, chapter, key, key_start = _RUN.unpack_from(self._packed, number * _RUN.size)
        return Run(Offset(start), Position(chapter), SegmentId(key), Offset(key_start))

    def __iter__(self) -> Iterator[Run]:
        return (self[number] for number in range(len(self)))

    def touch(self, chapter: Position) -> bool:
        """Whether any of them is in the chapter."""
        return chapter in self.flat()[1::_WIDTH]

    def flat(self) -> list[int]:
        return memoryview(self._packed).cast("Q").tolist()

    def find(self, offset: Offset) -> int:
        """The number of the run that contains `offset`; -1 if none does, because its bytes were lost."""
        return bisect_right(range(len(self)), int(offset), key=self._start) - 1

    def end(self, number: int, length: Offset) -> Offset:
        """Where the run ends, in a segment of this length."""
        return Offset(self._start(number + 1)) if number + 1 < len(self) else length

    def _start(self, number: int) -> int:
        start: int = _START.unpack_from(self._packed, number * _RUN.size)[0]
        return start

    def add(self, run: Run) -> None:
        """Add a run at the end, unless the last run already covers it."""
        if not (self._packed and _continues(self[len(self) - 1], run)):
            self._packed += _RUN.pack(*run)

    def drop_before(self, offset: Offset) -> None:
        """Forget the runs that lie wholly below `offset`."""
        if (first := self.find(offset)) > 0:
            del self._packed[: first * _RUN.size]

    def replace(self, start: Offset, end: Offset, run: Run, length: Offset) -> None:
        """Make `run` cover [start, end), in a segment of this length."""
        first, last = max(self.find(start), 0), self.find(Offset(end - 1))
        after = self[last]
        new: list[Run] = []
        if self[first].start < start:
            new.append(self[first])
            before: Run | None = self[first]
        else:
            before = self[first - 1] if first else None
        if before is None or not _continues(before, run):
            new.append(run)
        if end < self.end(last, length):
            new.append(Run(end, after.chapter, after.key, Offset(after.key_start + end - after.start)))
        self._packed[first * _RUN.size : (last + 1) * _RUN.size] = b"".join(_RUN.pack(*each) for each in new)


def _continues(last: Run, run: Run) -> bool:
    return (
        last.chapter == run.chapter and last.key == run.key and run.key_start - last.key_start == run.start - last.start
    )


class Damage(NamedTuple):
    """Why a segment is refused: what is wrong, and the offset that a truncation must reach to end it."""

    reason: str
    end: Offset
    known: bool
    """Whether all lost bytes are known to be before `end`; otherwise later ones may be lost too."""


class Segment(msgspec.Struct, gc=False, eq=False):
    """`length` counts all accepted bytes, `durable` those that an fsync has covered. Readers see durable bytes only."""

    id: SegmentId
    name: str
    start: Offset = Offset(0)
    length: Offset = Offset(0)
    durable: Offset = Offset(0)
    sealed: bool = False
    runs: Runs = msgspec.field(default_factory=Runs)
    # Most segments have none of these: None costs nothing, an empty dict 64 bytes.
    writers: dict[bytes, int] | None = None
    attributes: dict[bytes, int] | None = None
    damage: Damage | None = None

    def last_number(self, writer: bytes) -> int | None:
        """The number of the writer's last append; None if the writer is new."""
        return self.writers.get(writer) if self.writers else None

    def remember(self, writer: bytes, number: int, limit: int) -> None:
        """Remember the writer's number; the writer that has been silent longest makes room for a new one."""
        if self.writers is None:
            self.writers = {}
        self.writers.pop(writer, None)
        if len(self.writers) >= limit:
            del self.writers[next(iter(self.writers))]
        self.writers[writer] = number
