"""Bulk encoding for delivery: columns of events as MESSAGE frames of a sink's stream 1, a buffer at a time."""

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded
from penstock.core.types import Buffer
from penstock.protocol.connector import output_kernel as kernel
from penstock.protocol.connector.codec import FRAME_SIZE_MAX
from penstock.protocol.stored.bulk import Bytes, Column

KEY_SIZE_MAX = 2**16 - 1
"""What a MESSAGE's `sb` holds."""

_HINT = "Store large objects elsewhere, and send a reference to them."

_EMPTY = np.empty(0, np.uint8)


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
    key_offsets, value_offsets = _numbers(keys.offsets), _numbers(values.offsets)
    sizes = (key_offsets, len(keys.data), value_offsets, len(values.data))
    problem, row, size = kernel.measure(*sizes, frame_size_max)
    if problem != kernel.WELL:
        raise _refusal(problem, first_id + int(value_offsets[row]) - int(value_offsets[0]), size, frame_size_max)
    out = np.empty(size, np.uint8)
    columns = (key_offsets, _bytes(keys.data), value_offsets, _bytes(values.data))
    kernel.write(_numbers(times_us), *columns, first_id, unit_us, out)
    return out.data


def _refusal(problem: int, message_id: int, size: int, frame_size_max: int) -> LimitExceeded | ValueError:
    if problem == kernel.OFFSETS:
        return ValueError("the offsets of a column do not fit its data")
    return large_key(message_id, size) if problem == kernel.LARGE_KEY else large_frame(message_id, size, frame_size_max)


def _numbers(column: Column) -> NDArray[np.int64]:
    return np.ascontiguousarray(column, np.int64)


def _bytes(data: Buffer) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else _EMPTY


def check_rows(times: Column, keys: Bytes, values: Bytes) -> None:
    """ValueError unless all columns have as many rows."""
    if not len(times) == len(keys) == len(values):
        raise ValueError(f"the columns have {len(times)}, {len(keys)} and {len(values)} rows")


def large_key(message_id: int, size: int) -> LimitExceeded:
    return LimitExceeded(f"message {message_id}: its key of {size} bytes is over the limit of {KEY_SIZE_MAX}", _HINT)


def large_frame(message_id: int, size: int, frame_size_max: int) -> LimitExceeded:
    return LimitExceeded(
        f"message {message_id}: its frame of {size} bytes is over the limit of {frame_size_max}", _HINT
    )
