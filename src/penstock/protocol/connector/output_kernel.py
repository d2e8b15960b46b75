"""The kernel that encodes, compiled by numba: loops over the rows of columns.

It has no bounds checks: `measure` looks at every offset of the columns before `write` goes by them, into an array whose
size `output.py` has made from what was measured.

numba's cache knows a function by its own file alone, so all that is compiled together stands in this one, but for the
intrinsics: the numbers of the frame's layout too; a test compares them.
"""

from typing import Any

from numba import types
from numba.types import int64

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

MESSAGE, HEAD, FIXED, STREAM, KEY_SIZE_MAX = 5, 31, 27, 1, 2**16 - 1
NO_TIME = -(2**63)

WELL, OFFSETS, LARGE_KEY, LARGE_FRAME = 0, 1, 2, 3
"""What is wrong with a row that is to be encoded."""


@inlined
def is_in_order(offsets: Any, size: Any) -> Any:
    """Whether the offsets grow, inside of so many bytes."""
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
    """Fill `out` with the frames of columns that `measure` has found well."""
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
