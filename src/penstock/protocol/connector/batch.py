"""Many messages of one stream as bytes, for a source that has only Python."""

from collections.abc import Iterable
from struct import Struct, error

from penstock.core.errors import LimitExceeded, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector.codec import FRAME_SIZE_MAX
from penstock.protocol.connector.frames import Message

MESSAGE_HEAD = Struct(">IBQQqH")
"""A MESSAGE up to its key: length, tag, stream id, message id, event time, length of the key."""

FIXED_SIZE = MESSAGE_HEAD.size - 4
"""What a MESSAGE's length field counts besides key and payload."""


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
