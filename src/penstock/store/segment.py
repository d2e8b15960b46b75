"""One segment in memory, and the runs that map its bytes to chapters."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.core.types import Offset, Position, SegmentId

_WIDTH = 4


class Run(NamedTuple):
    """From `start` on, the bytes are in `chapter`, in the rows of `key`, where `start` is called `key_start`."""

    start: Offset
    chapter: Position
    key: SegmentId
    key_start: Offset


class Runs:
    """A segment's runs in ascending order. Flat, because there are many segments and most have one run."""

    __slots__ = ("_flat",)

    def __init__(self, runs: Iterable[int] = ()) -> None:
        self._flat = array("Q", runs)

    def __len__(self) -> int:
        return len(self._flat) // _WIDTH

    def __getitem__(self, number: int) -> Run:
        start, chapter, key, key_start = self._flat[number * _WIDTH : (number + 1) * _WIDTH]
        return Run(Offset(start), Position(chapter), SegmentId(key), Offset(key_start))

    def __iter__(self) -> Iterator[Run]:
        return (self[number] for number in range(len(self)))

    def touch(self, chapter: Position) -> bool:
        """Whether some of them are in the chapter."""
        return chapter in self._flat[1::_WIDTH]

    def flat(self) -> list[int]:
        return self._flat.tolist()

    def find(self, offset: Offset) -> int:
        """The number of the run that holds `offset`; -1 where none does: its bytes were lost."""
        return bisect_right(range(len(self)), int(offset), key=lambda n: self._flat[n * _WIDTH]) - 1

    def end(self, number: int, length: Offset) -> Offset:
        """Where the run ends, in a segment of this length."""
        after = (number + 1) * _WIDTH
        return Offset(self._flat[after]) if after < len(self._flat) else length

    def add(self, run: Run) -> None:
        """Add a run at the end, unless the last run already covers it."""
        flat = self._flat
        if not (
            flat
            and run.key == flat[-2]
            and run.chapter == flat[-3]
            and run.key_start - flat[-1] == run.start - flat[-4]
        ):
            flat.extend(run)

    def drop_before(self, offset: Offset) -> None:
        """Forget the runs that lie wholly below `offset`."""
        if (first := self.find(offset)) > 0:
            del self._flat[: first * _WIDTH]

    def replace(self, start: Offset, end: Offset, run: Run, length: Offset) -> None:
        """Let `run` hold [start, end), in a segment of this length."""
        first, last = max(self.find(start), 0), self.find(Offset(end - 1))
        after = self[last]
        new: list[int] = []
        if self[first].start < start:
            new.extend(self[first])
            before: Run | None = self[first]
        else:
            before = self[first - 1] if first else None
        if before is None or not _continues(before, run):
            new.extend(run)
        if end < self.end(last, length):
            new.extend((end, after.chapter, after.key, after.key_start + end - after.start))
        self._flat[first * _WIDTH : (last + 1) * _WIDTH] = array("Q", new)


def _continues(last: Run, run: Run) -> bool:
    return (
        last.chapter == run.chapter and last.key == run.key and run.key_start - last.key_start == run.start - last.start
    )


class Damage(NamedTuple):
    """Why a segment is refused: what is wrong, and the offset that a truncation must reach to end it."""

    reason: str
    end: Offset
    known: bool
    """Bytes before `end` are lost, and none after it; otherwise it is unknown whether some after it are."""


class Segment:
    """`length` counts every byte that was accepted, `durable` those an fsync has covered: readers see only these."""

    __slots__ = (
        "attributes",
        "damage",
        "durable",
        "id",
        "length",
        "name",
        "runs",
        "sealed",
        "start",
        "writers",
    )

    def __init__(self, segment_id: SegmentId, name: str) -> None:
        self.id = segment_id
        self.name = name
        self.start = Offset(0)
        self.length = Offset(0)
        self.durable = Offset(0)
        self.sealed = False
        self.runs = Runs()
        # Most segments have none of these: None costs nothing, an empty dict 64 bytes.
        self.writers: dict[bytes, int] | None = None
        self.attributes: dict[bytes, int] | None = None
        self.damage: Damage | None = None

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
