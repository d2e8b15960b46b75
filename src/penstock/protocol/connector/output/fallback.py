"""Bulk encoding in plain Python: the oracle of the kernel's tests, and its stand-in where numba is not installed."""

from penstock.core.types import Buffer
from penstock.protocol.connector.codec import FIXED_SIZE, FRAME_SIZE_MAX, MESSAGE_HEAD
from penstock.protocol.connector.frames import Message
from penstock.protocol.connector.output.limits import KEY_SIZE_MAX, check_rows, large_frame, large_key
from penstock.protocol.connector.two_phase import OUTPUT_STREAM
from penstock.protocol.stored.bulk import Bytes, Column
from penstock.protocol.stored.bulk.columns import check_bytes
from penstock.protocol.stored.event import NO_TIME


def encode_output(
    times_us: Column,
    keys: Bytes,
    values: Bytes,
    first_id: int,
    *,
    unit_us: int = 1,
    frame_size_max: int = FRAME_SIZE_MAX,
) -> memoryview:
    """A MESSAGE frame of stream 1 for each row, in their order.

    Its id is `first_id` plus the bytes of the payloads before it. Its event time is that of the row in units of
    `unit_us` microseconds, rounded down; 0 for a row that has NO_TIME. LimitExceeded, which names the message by its
    id, for one that is too large; nothing is given then.
    """
    check_rows(times_us, keys, values)
    check_bytes(keys)
    check_bytes(values)
    parts: list[Buffer] = []
    message_id = first_id
    for time_us, key, value in zip(times_us.tolist(), keys.rows(), values.rows(), strict=True):
        size = FIXED_SIZE + len(key) + len(value)
        if len(key) > KEY_SIZE_MAX:
            raise large_key(message_id, len(key))
        if size > frame_size_max:
            raise large_frame(message_id, size, frame_size_max)
        time = 0 if time_us == NO_TIME else time_us // unit_us
        parts += (MESSAGE_HEAD.pack(size, Message.tag, OUTPUT_STREAM, message_id, time, len(key)), key, value)
        message_id += len(value)
    return memoryview(b"".join(parts))
