"""What the controller knows: scopes, streams, the segments of each epoch, and transactions.

A stream's events are in segments, each of which has a range of routing keys: hashes from 0 to 1. A scaling replaces
some segments by others that cover the same ranges, and begins an epoch. A segment's id is `epoch << 32 | number`, where
the epoch is the one that it was created in.
"""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.core.errors import RequestError
from penstock.protocol.stored.names import check_pipeline_name, is_own_name, pravega_segment

_EPOCH_BITS = 32
_NUMBER_MASK = 2**_EPOCH_BITS - 1


class Segment(msgspec.Struct, frozen=True, array_like=True):
    id: int
    low: float
    high: float

    @property
    def epoch(self) -> int:
        """In which it was created."""
        return self.id >> _EPOCH_BITS

    def overlaps(self, other: "Segment") -> bool:
        return self.low < other.high and other.low < self.high

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high


Epoch = tuple[Segment, ...]


class Config(msgspec.Struct, frozen=True, array_like=True):
    """As the client has given it. Only the number of segments, the tags and the timeout have an effect."""

    scale_type: int = 0
    target_rate: int = 0
    scale_factor: int = 0
    segments_min: int = 1
    retention_type: int = 0
    retention: int = 0
    retention_max: int = 0
    tags: tuple[str, ...] | None = None
    writer_timeout_ms: int = 0
    """After this time without a note, a writer's time does not count any more; 0: as the controller's settings say."""


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    segments: Epoch
    """Those that were active when it began: it has one of its own for each."""
    lease_ms: int


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """The time that a writer has noted, and where the stream was then."""

    time: int
    cut: dict[int, int]


class TimeMark(msgspec.Struct, frozen=True, array_like=True):
    """Whoever has read up to there has all events before this time."""

    time: int
    cut: dict[int, int]


class Stream(msgspec.Struct, frozen=True, array_like=True):
    config: Config
    epochs: tuple[Epoch, ...]
    """The last one is active."""
    first: int = 0
    """The number of the first epoch that is still known."""
    numbers: int = 0
    """How many segments were created."""
    is_sealed: bool = False
    cut: dict[int, int] | None = None
    """Where it begins, if it was truncated: segment → offset."""
    transactions: dict[str, Transaction] = {}
    ended: dict[str, bool] = {}
    """The last transactions that have ended: whether they were committed."""
    times: dict[str, Noted] = {}
    """Of the active writers."""
    removed: dict[int, int] = {}
    """The last segments that truncations have removed as a whole → their lengths."""
    marks: tuple[TimeMark, ...] = ()
    """In the order of their times."""

    @property
    def active(self) -> Epoch:
        """None are active in a sealed stream."""
        return () if self.is_sealed else self.epochs[-1]

    @property
    def epoch(self) -> int:
        return self.first + len(self.epochs) - 1

    def segments(self) -> dict[int, Segment]:
        return {segment.id: segment for epoch in self.epochs for segment in epoch}

    def existing(self) -> dict[int, Segment]:
        """Those that a truncation has not removed."""
        known = self.segments()
        head = None if self.cut is None else [known[one] for one in self.cut]
        return {number: one for number, one in known.items() if head is None or not _is_before(one, head)}

    def head(self) -> dict[int, int]:
        """Where it begins."""
        return {segment.id: 0 for segment in self.epochs[0]} if self.cut is None else self.cut

    def successors(self, number: int) -> dict[Segment, tuple[int, ...]]:
        """The segments that continue a sealed one, each with all those that it continues. Empty for one that is still
        active. Raises RequestError if there is no such segment.
        """
        for before, after in zip(self.epochs, self.epochs[1:], strict=False):
            ids = {segment.id for segment in after}
            ended = [segment for segment in before if segment.id not in ids]
            found = next((segment for segment in ended if segment.id == number), None)
            if found is not None:
                new = [segment for segment in after if segment.overlaps(found)]
                return {one: tuple(old.id for old in ended if old.overlaps(one)) for one in new}
        if number not in self.segments():
            raise RequestError(f"there is no segment {number}")
        return {}


class State(msgspec.Struct, frozen=True, array_like=True):
    scopes: dict[str, dict[str, Stream]] = {}


def _is_before(segment: Segment, head: Iterable[Segment]) -> bool:
    """Whether all of it was truncated. Of two segments with common keys, the one that was created first comes first."""
    common = [one for one in head if one.overlaps(segment)]
    return all(one.id != segment.id and segment.epoch < one.epoch for one in common)


def even_ranges(count: int) -> Iterator[tuple[float, float]]:
    return ((number / count, (number + 1) / count) for number in range(count))


def new_segments(epoch: int, first: int, ranges: Iterable[tuple[float, float]]) -> Epoch:
    """`first`: the number of the first one."""
    return tuple(
        Segment(epoch << _EPOCH_BITS | number, low, high) for number, (low, high) in enumerate(ranges, start=first)
    )


# Names.


def check_scope(name: str) -> str:
    """Raises RequestError for a name that is not valid, or is a prefix of the worker's own segments."""
    if is_own_name(f"{check_pipeline_name(name, 'scope')}/"):
        raise RequestError(f"{name!r} is reserved for segments of the worker itself", "Use another name.")
    return name


def check_stream(name: str) -> str:
    return check_pipeline_name(name, "stream")


def segment_name(scope: str, stream: str, number: int) -> str:
    return pravega_segment(f"{scope}/{stream}", number & _NUMBER_MASK, number >> _EPOCH_BITS)


def transaction_name(scope: str, stream: str, number: int, transaction: str) -> str:
    return f"{segment_name(scope, stream, number)}#transaction.{transaction}"


def all_names(scope: str, name: str, stream: Stream) -> Iterator[str]:
    """Of the segments that a stream and its transactions have."""
    yield from (segment_name(scope, name, number) for number in stream.existing())
    for key, transaction in stream.transactions.items():
        yield from (transaction_name(scope, name, one.id, key) for one in transaction.segments)
