"""Many heads of one segment, in order, as one: each stream's last event id and highest event time, and all the marks.

With numpy a fold costs a sort of the columns, without it a dict's update for each stream of each head; the results are
the same.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from penstock.core.errors import Damaged
from penstock.core.types import Buffer
from penstock.protocol.stored.head import NO_COLUMNS, Mark, PackedHead, StreamColumns, numbers, unpack_head

if TYPE_CHECKING:
    import numpy as np

    HAS_NUMPY: bool
else:
    try:
        import numpy as np

        HAS_NUMPY = True
    except ImportError:
        HAS_NUMPY = False


@dataclass(frozen=True, slots=True)
class HeadFold:
    """Of each stream, in ascending order of ids. `count` is how many events there are in all the records."""

    stream_ids: "array[int]"
    last_ids: "array[int]"
    highest_times: "array[int]"
    marks: list[Mark]
    count: int

    @property
    def last(self) -> dict[int, int]:
        return dict(zip(self.stream_ids, self.last_ids, strict=True))

    @property
    def highest(self) -> dict[int, int]:
        return dict(zip(self.stream_ids, self.highest_times, strict=True))


def fold_heads(segment: str, heads: Iterable[tuple[int, Buffer]]) -> HeadFold:
    """Fold what `store.heads` gives of a segment: heads, each with the offset at which its record ends.
    Records without a head say nothing. Raises Damaged for a head that cannot be read.
    """
    packed: list[PackedHead] = []
    for end, data in heads:
        try:
            head = unpack_head(data)
        except Damaged as error:
            raise Damaged(f"segment {segment!r}, the record that ends at {end}: {error}") from None
        if head is not None:
            packed.append(head)
    return fold_packed(packed)


def fold_packed(heads: Sequence[PackedHead]) -> HeadFold:
    joined = NO_COLUMNS
    if heads:
        joined = StreamColumns(*map(b"".join, zip(*(head.columns for head in heads), strict=True)))
    columns = fold_fast(joined) if HAS_NUMPY else fold_plainly(joined)
    return HeadFold(*columns, list(chain.from_iterable(h.marks for h in heads)), sum(h.count for h in heads))


Folded = tuple["array[int]", "array[int]", "array[int]"]


def fold_plainly(columns: StreamColumns) -> Folded:
    """Ids in ascending order, the last one's last id, the highest of the highest times."""
    ids, last_ids = numbers("Q", columns.stream_ids), numbers("Q", columns.last_ids)
    last = dict(zip(ids, last_ids, strict=True))
    highest: dict[int, int] = {}
    for stream_id, time in zip(ids, numbers("q", columns.highest_times), strict=True):
        if time > highest.get(stream_id, time - 1):
            highest[stream_id] = time
    order = sorted(last)
    return array("Q", order), array("Q", map(last.__getitem__, order)), array("q", map(highest.__getitem__, order))


def fold_fast(columns: StreamColumns) -> Folded:
    """As `fold_plainly`, with numpy."""
    if not columns.stream_ids:
        return array("Q"), array("Q"), array("q")
    ids = np.frombuffer(columns.stream_ids, "<u8")
    order = ids.argsort(kind="stable")
    ids = ids[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    final = np.append(first[1:], len(ids)) - 1
    last_ids = np.frombuffer(columns.last_ids, "<u8")[order[final]]
    highest = np.maximum.reduceat(np.frombuffer(columns.highest_times, "<i8")[order], first)
    return (
        array("Q", ids[first].astype("=u8").tobytes()),
        array("Q", last_ids.astype("=u8").tobytes()),
        array("q", highest.astype("=i8").tobytes()),
    )
