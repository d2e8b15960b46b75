"""A record's head with its columns as maps: easier to compare than what the worker works with."""

from dataclasses import dataclass

from penstock.core.types import Buffer
from penstock.protocol.stored.head import Mark, numbers, unpack_head


@dataclass(frozen=True, slots=True)
class Head:
    """`last` has the last event id of each stream, `highest` the highest event time, in microseconds."""

    last: dict[int, int]
    highest: dict[int, int]
    marks: list[Mark]
    count: int
    """Events in the record; those that only carry marks do not count."""


def decode_head(data: Buffer) -> Head | None:
    """None for a record without a head: somebody else has written it, over the segment protocol. Raises Damaged."""
    packed = unpack_head(data)
    if packed is None:
        return None
    ids, last, highest = packed.columns
    keys = numbers("Q", ids)
    return Head(
        dict(zip(keys, numbers("Q", last), strict=True)),
        dict(zip(keys, numbers("q", highest), strict=True)),
        packed.marks,
        packed.count,
    )
