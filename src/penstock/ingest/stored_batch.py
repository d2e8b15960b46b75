"""Events of one stream as a batch for its segment: encoded in bulk, with the head that tells of them."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from penstock.ingest.connector import Batch
from penstock.protocol.stored.bulk import Bytes, encode
from penstock.protocol.stored.head import Mark, StreamColumns

_U64, _I64 = Struct("<Q"), Struct("<q")


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Events that are to be stored, one at least."""

    values: Sequence[bytes]
    ids: Sequence[int]
    """Strictly increasing."""
    times_us: Sequence[int] | int
    """In microseconds since 1970: of each event, or one for all."""
    keys: Sequence[bytes] | None = None
    metadata: Sequence[bytes] | bytes = b""
    """Maps in msgpack: of each event, or one for all."""


def stored_batch(route: int, stream_id: int, values: Values, marks: Sequence[Mark] = ()) -> Batch:
    """Raises LimitExceeded for an event that is too large, RequestError for metadata that are no map."""
    count, times = len(values.values), values.times_us
    encoded = encode(
        Bytes.of(values.values),
        keys=None if values.keys is None else Bytes.of(values.keys),
        event_times=array("q", [times]) * count if isinstance(times, int) else array("q", times),
        stream_ids=array("Q", [stream_id]) * count,
        event_ids=array("Q", values.ids),
        metadata=_metadata(values.metadata, count),
    )
    told = columns(stream_id, values.ids[-1], times if isinstance(times, int) else max(times))
    return Batch(route, marks, count, encoded.data, told)


def columns(stream_id: int, last_id: int, highest_us: int) -> StreamColumns:
    """What the head says of a stream."""
    return StreamColumns(_U64.pack(stream_id), _U64.pack(last_id), _I64.pack(highest_us))


def _metadata(metadata: Sequence[bytes] | bytes, count: int) -> Bytes | None:
    if not metadata:
        return None
    if not isinstance(metadata, bytes):
        return Bytes.of(metadata)
    size = len(metadata)
    return Bytes(array("q", range(0, size * count + 1, size)), metadata * count)
