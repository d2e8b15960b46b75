"""From what a connector sends to what is stored: in records of a bounded size, without what is there already. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgpack

from penstock.core.errors import LimitExceeded, RequestError
from penstock.ingest.stored_batch import Values
from penstock.protocol.stored.event import KEY_START, LENGTH_MAX, SHORT_MAX

RECORD_BYTES = 8 << 20
"""Of events that go into one record, unless one of them is larger: half of the largest append."""

VALUE_BYTES_MAX = LENGTH_MAX - 2 * SHORT_MAX - KEY_START
"""Of one event, whatever its key and its metadata."""

_EVENT_BYTES = KEY_START + 2
"""That every event has besides key, metadata and value."""


def packed(metadata: Mapping[str, Any] | None) -> bytes:
    """As a map in msgpack; empty if there is nothing to tell. Raises RequestError, LimitExceeded."""
    if not metadata:
        return b""
    try:
        data: bytes = msgpack.packb(dict(metadata))
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"metadata cannot be stored: {error}", "Give texts, numbers, lists and maps.") from None
    if len(data) > SHORT_MAX:
        raise LimitExceeded(f"metadata of {len(data):,} bytes; the limit is {SHORT_MAX:,}", "Tell less of an event.")
    return data


def record_slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Rows that fit into a record each, in order; most often all of them. `sizes`: of their values and metadata."""
    if sum(sizes) + _EVENT_BYTES * len(sizes) <= RECORD_BYTES:
        yield slice(0, len(sizes))
        return
    first, size = 0, 0
    for row, each in enumerate(sizes):
        size += _EVENT_BYTES + each
        if size > RECORD_BYTES and row > first:
            yield slice(first, row)
            first, size = row, _EVENT_BYTES + each
    yield slice(first, len(sizes))


def sizes_of(values: Values) -> list[int]:
    """Of each event's value, metadata and key."""
    told = values.metadata
    if isinstance(told, bytes):
        sizes = [len(value) + len(told) for value in values.values]
    else:
        sizes = [len(value) + len(one) for value, one in zip(values.values, told, strict=True)]
    return sizes if values.keys is None else [size + len(key) for size, key in zip(sizes, values.keys, strict=True)]


def new_only(values: Values, last_id: int) -> Values:
    """Those behind this id, perhaps none. Raises RequestError unless the ids grow."""
    ids = values.ids
    if any(after <= before for before, after in pairwise(ids)) or ids[0] < 1:
        raise RequestError("the ids of events are at least 1, each above the one before")
    first = next((row for row, one in enumerate(ids) if one > last_id), len(ids))
    return rows_of(values, slice(first, len(ids)))


def rows_of(values: Values, rows: slice) -> Values:
    times, told = values.times_us, values.metadata
    return Values(
        values.values[rows],
        values.ids[rows],
        times if isinstance(times, int) else times[rows],
        None if values.keys is None else values.keys[rows],
        told if isinstance(told, bytes) else told[rows],
    )
