"""Bulk encoding for delivery: columns of events as MESSAGE frames of a sink's stream 1, a buffer at a time."""

from typing import Any

import numpy as np
from numba import types
from numba.types import int64
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded
from penstock.core.types import Buffer
from penstock.protocol.connector.codec import FRAME_SIZE_MAX
from penstock.protocol.intrinsics import (
    BYTES,
    I64S,
    U8S,
    compiled,
    copy,
    inlined,
    store8,
    store16,
    store32,
    store64,
)
from penstock.protocol.stored.bulk import Bytes, Column

# The kernel that encodes, compiled by numba: loops over the rows of columns.
#
# It has no bounds checks: `measure` checks every offset of the columns before `write` uses them, into an array that is
# allocated with the measured size.
#
# numba's cache tracks only a function's own file, so everything that is compiled together is in this one, except the
# intrinsics. That includes copies of the constants of the frame's layout; a test compares them.

MESSAGE, HEAD, FIXED, STREAM, KEY_SIZE_MAX = 5, 31, 27, 1, 2**16 - 1
NO_TIME = -(2**63)

WELL, OFFSETS, LARGE_KEY, LARGE_FRAME = 0, 1, 2, 3
"""What is wrong with a row that is to be encoded."""


@inlined
def is_in_order(offsets: Any, size: Any) -> Any:
    """Whether the offsets ascend, within `size` bytes."""
    before = int64(0)
    for index in range(offsets.shape[0]):
        if offsets[index] < before:
            return False
        before = offsets[index]
    return before <= size


@compiled(types.UniTuple(int64, 3)(I64S, int64, I64S, int64, int64))
def measure(keys: Any, keys_size: Any, values: Any, values_size: Any, frame_size_max: Any) -> Any:
    """What is wrong, with which row, and how large it is; WELL, the number of rows, and the bytes of all frames.

    The columns are offsets, of the same number of rows; the sizes are those of their data.
    """
    if not (is_in_order(keys, keys_size) and is_in_order(values, values_size)):
        return OFFSETS, int64(0), int64(0)
    total = int64(0)
    rows = values.shape[0] - 1
    for row in range(rows):
        key = keys[row + 1] - keys[row]
        size = FIXED + key + values[row + 1] - values[row]
        if key > KEY_SIZE_MAX:
            return LARGE_KEY, row, key
        if size > frame_size_max:
            return LARGE_FRAME, row, size
        total += 4 + size
    return WELL, rows, total


@compiled(types.void(I64S, I64S, BYTES, I64S, BYTES, int64, int64, U8S))
def write(
    times: Any, keys: Any, key_data: Any, values: Any, value_data: Any, first_id: Any, unit: Any, out: Any
) -> Any:
    """Fill `out` with the frames of columns that `measure` has found valid."""
    to = int64(0)
    for row in range(times.shape[0]):
        key, value = keys[row + 1] - keys[row], values[row + 1] - values[row]
        store32(out, to, FIXED + key + value)
        store8(out, to + 4, MESSAGE)
        store64(out, to + 5, STREAM)
        store64(out, to + 13, first_id + values[row] - values[0])
        store64(out, to + 21, int64(0) if times[row] == NO_TIME else times[row] // unit)
        store16(out, to + 29, key)
        copy(out, to + HEAD, key_data, keys[row], key)
        copy(out, to + HEAD + key, value_data, values[row], value)
        to += HEAD + key + value


KEY_SIZE_MAX = 2**16 - 1
"""The maximum of a MESSAGE's `sb`."""

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
    """A MESSAGE frame of stream 1 for each row, in order.

    Its id is `first_id` plus the bytes of the payloads before it. Its event time is that of the row in units of
    `unit_us` microseconds, rounded down; 0 for a row that has NO_TIME. Raises LimitExceeded, which names the message by
    its id, for one that is too large; then nothing is returned.
    """
    check_rows(times_us, keys, values)
    key_offsets, value_offsets = _numbers(keys.offsets), _numbers(values.offsets)
    sizes = (key_offsets, len(keys.data), value_offsets, len(values.data))
    problem, row, size = measure(*sizes, frame_size_max)
    if problem != WELL:
        raise _refusal(problem, first_id + int(value_offsets[row]) - int(value_offsets[0]), size, frame_size_max)
    out = np.empty(size, np.uint8)
    columns = (key_offsets, _bytes(keys.data), value_offsets, _bytes(values.data))
    write(_numbers(times_us), *columns, first_id, unit_us, out)
    return out.data


def _refusal(problem: int, message_id: int, size: int, frame_size_max: int) -> LimitExceeded | ValueError:
    if problem == OFFSETS:
        return ValueError("the offsets of a column do not fit its data")
    return large_key(message_id, size) if problem == LARGE_KEY else large_frame(message_id, size, frame_size_max)


def _numbers(column: Column) -> NDArray[np.int64]:
    return np.ascontiguousarray(column, np.int64)


def _bytes(data: Buffer) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else _EMPTY


def check_rows(times: Column, keys: Bytes, values: Bytes) -> None:
    """Raises ValueError unless all columns have the same number of rows."""
    if not len(times) == len(keys) == len(values):
        raise ValueError(f"the columns have {len(times)}, {len(keys)} and {len(values)} rows")


def large_key(message_id: int, size: int) -> LimitExceeded:
    return LimitExceeded(f"message {message_id}: its key of {size} bytes is over the limit of {KEY_SIZE_MAX}", _HINT)


def large_frame(message_id: int, size: int, frame_size_max: int) -> LimitExceeded:
    return LimitExceeded(
        f"message {message_id}: its frame of {size} bytes is over the limit of {frame_size_max}", _HINT
    )
