"""Which events the dead letters in some bytes were made of. It loads the compiled kernels."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Buffer
from penstock.protocol.stored.bulk import Wanted, decode

NAMES_MAX = 1024
"""Names of segments and sources whose hashes are cached: an epoch usually has a few."""


@dataclass(frozen=True, slots=True, eq=False)
class Identified:
    """Whole dead letters at the start of some bytes."""

    starts: NDArray[np.int64]
    """Where each starts in its segment, and where the last one ends."""
    identities: NDArray[np.int64]
    """A row of three numbers for each, equal for all that were made of one event: the hash of its segment, its offset,
    and 0; for a derived one the hash of its source, the stream and the message id."""
    is_known: NDArray[np.bool_]
    """Whether its identity is known."""

    def __len__(self) -> int:
        return len(self.is_known)


def identified_in(data: Buffer, offset: int) -> Identified:
    """The dead letters in bytes at `offset` of a segment, where one starts. Raises Damaged.

    Only what identifies an event is parsed: an epoch may have millions of late events.
    """
    events = decode(data, offset, wanted=_METADATA)
    assert events.metadata is not None
    assert events.stream_ids is not None
    assert events.event_ids is not None
    ids = zip(events.metadata.rows(), events.stream_ids.tolist(), events.event_ids.tolist(), strict=True)
    found = np.array([_identity(*one) for one in ids], np.int64).reshape(-1, 3)
    starts = np.array([*events.offsets.tolist(), events.end], np.int64)
    return Identified(starts, found, found[:, 0] != 0)


class _Place(msgspec.Struct):
    """Of a dead letter's metadata, what identifies its event."""

    segment: Any = None
    offset: Any = None
    source: Any = None


_place = msgspec.msgpack.Decoder(_Place)
_METADATA = Wanted(keys=False, values=False, origins=False, metadata=True)
_UNKNOWN = (0, 0, 0)
_BITS_63 = 2**63 - 1
"""Of an offset: metadata of an event that only looks like a position may contain any number."""


def _identity(metadata: bytes, stream_id: int, event_id: int) -> tuple[int, int, int]:
    place = _place.decode(metadata) if metadata else _Place()
    if isinstance(place.segment, str) and isinstance(place.offset, int):
        return _hash(place.segment), place.offset & _BITS_63, 0
    return (_hash(str(place.source)), stream_id, event_id) if event_id else _UNKNOWN


@lru_cache(NAMES_MAX)
def _hash(name: str) -> int:
    """Of 64 bits, and not 0. A name takes any length, and there may be any number of them."""
    return int.from_bytes(blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), signed=True) or 1
