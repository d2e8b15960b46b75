"""What a worker has stored of a source, read through the segment protocol."""

from collections import defaultdict
from ssl import SSLContext
from struct import Struct
from typing import NamedTuple

from penstock.client.segments import SegmentClient
from penstock.core.errors import NoSuchSegment

_HEAD = Struct(">QQqH")


class StoredMessage(NamedTuple):
    id: int
    event_time_us: int
    key: bytes
    payload: bytes


def stored_messages(
    address: str, source: str, segments: int = 2, ssl: SSLContext | None = None
) -> dict[int, list[StoredMessage]]:
    """By stream id, in the order of their segments."""
    found: dict[int, list[StoredMessage]] = defaultdict(list)
    with SegmentClient(address, ssl=ssl) as client:
        for number in range(segments):
            try:
                for event in client.events(f"connector/{source}/{number}"):
                    if event.data:  # those without stand where a stream started or ended
                        stream_id, message = decode_message(bytes(event.data))
                        found[stream_id].append(message)
            except NoSuchSegment:
                pass
    return found


def decode_message(data: bytes) -> tuple[int, StoredMessage]:
    stream_id, message_id, event_time, key_size = _HEAD.unpack_from(data)
    key_end = _HEAD.size + key_size
    metadata_size = int.from_bytes(data[key_end : key_end + 2], "big")
    payload = data[key_end + 2 + metadata_size :]
    return stream_id, StoredMessage(message_id, event_time, data[_HEAD.size : key_end], payload)
