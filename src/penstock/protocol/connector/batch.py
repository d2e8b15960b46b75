"""Many messages of one stream as bytes and back, for a source or a sink that has only Python."""

from collections.abc import Iterable
from struct import Struct, error
from typing import TypeAlias

from penstock.core.errors import LimitExceeded, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector.codec import FRAME_SIZE_MAX
from penstock.protocol.connector.frames import Message

MESSAGE_HEAD = Struct(">IBQQqH")
"""A MESSAGE up to its key: length, tag, stream id, message id, event time, length of the key."""

LENGTH_SIZE = 4

FIXED_SIZE = MESSAGE_HEAD.size - LENGTH_SIZE
"""What a MESSAGE's length field counts besides key and payload."""


Received: TypeAlias = tuple[int, bytes, int, bytes]
"""Message id, payload, event time, key."""


def encode_messages(
    stream_id: int,
    messages: Iterable[tuple[int, int, bytes, Buffer]],
    *,
    frame_size_max: int = FRAME_SIZE_MAX,
) -> bytes:
    """MESSAGE frames for these (message id, event time, key, payload), one after the other.

    LimitExceeded for a message that is too large, RequestError for a number or a key that does not fit; then nothing
    is encoded. It is for the caller to have the credits, and ids that increase.
    """
    pack, tag, fixed = MESSAGE_HEAD.pack, Message.tag, FIXED_SIZE
    parts: list[Buffer] = []
    for message_id, event_time, key, payload in messages:
        key_size = len(key)
        size = fixed + key_size + len(payload)
        if size > frame_size_max:
            raise LimitExceeded(f"MESSAGE {message_id}: {size} bytes are over the limit of {frame_size_max}")
        try:
            parts += (pack(size, tag, stream_id, message_id, event_time, key_size), key, payload)
        except error as problem:
            raise RequestError(f"MESSAGE {message_id}: {problem}") from None
    return b"".join(parts)


def decode_messages(
    data: bytearray, start: int, stream_id: int, *, frame_size_max: int = FRAME_SIZE_MAX
) -> tuple[list[Received], int]:
    """The whole MESSAGE frames of this stream that stand at `start`, one after the other, and where they end. The first
    frame that is anything else, or not well formed, or not all there, ends it: the decoder has the word on that one.
    """
    found: list[Received] = []
    unpack, head, tag_of_message = MESSAGE_HEAD.unpack_from, MESSAGE_HEAD.size, Message.tag
    last = len(data) - head
    while start <= last:
        size, tag, stream, message_id, event_time, key_size = unpack(data, start)
        at, end = start + head, start + LENGTH_SIZE + size
        payload = at + key_size
        if tag != tag_of_message or stream != stream_id or not payload <= end <= len(data) or size > frame_size_max:
            break
        key = bytes(data[at:payload]) if key_size else b""
        found.append((message_id, bytes(data[payload:end]), event_time, key))
        start = end
    return found, start
