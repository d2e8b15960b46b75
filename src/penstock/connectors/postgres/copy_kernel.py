"""The kernel of binary COPY, compiled by numba: a loop over the rows of a block.

It has no bounds checks: it trusts the offsets, which come from the decoder. numba's cache tracks only a function's own
file, so the constants of `sink.py` are repeated here; a test compares the output.
"""

from typing import Any

import numpy as np
from numba import types
from numba.types import int64

from penstock.connectors.sink_api import Block
from penstock.core.types import Buffer
from penstock.protocol.intrinsics import BYTES, I64S, U8S, copy, store16, store32, store64
from penstock.protocol.intrinsics import compiled as kernel

HEADER, ROW, TRAILER = 19, 46, 2
NO_TIME, EPOCH_US, TIME_US_MIN = -(2**63), 946_684_800_000_000, -210_866_803_200_000_000
OUT_OF_RANGE = -(2**63) + 1

_HEADER = np.frombuffer(b"PGCOPY\n\xff\r\n\0" + bytes(8), np.uint8)


@kernel(int64(BYTES, int64, int64, I64S, types.UniTuple(I64S, 2), types.UniTuple(BYTES, 2), U8S))
def fill(header: Any, number: Any, message_id: Any, times: Any, offsets: Any, data: Any, out: Any) -> Any:
    """The whole COPY; returns its end. `out` has room for ROW bytes per row besides keys and values."""
    key_offsets, value_offsets = offsets
    keys, values = data
    copy(out, 0, header, 0, HEADER)
    to = int64(HEADER)
    for row in range(times.shape[0]):
        store16(out, to, 5)
        store32(out, to + 2, 8)
        store64(out, to + 6, number + row)
        store32(out, to + 14, 8)
        store64(out, to + 18, message_id)
        to += 26
        time = times[row]
        if time == NO_TIME:
            store32(out, to, -1)
            to += 4
        else:
            store32(out, to, 8)
            store64(out, to + 4, time - EPOCH_US if time >= TIME_US_MIN else OUT_OF_RANGE)
            to += 12
        start = key_offsets[row]
        size = key_offsets[row + 1] - start
        store32(out, to, size)
        copy(out, to + 4, keys, start, size)
        to += 4 + size
        start = value_offsets[row]
        size = value_offsets[row + 1] - start
        store32(out, to, size)
        copy(out, to + 4, values, start, size)
        to += 4 + size
        message_id += size
    store16(out, to, -1)
    return to + TRAILER


def compiled(block: Block, number: int) -> Buffer:
    offsets = tuple(np.ascontiguousarray(column.offsets, np.int64) for column in (block.keys, block.values))
    # numpy rejects an empty buffer.
    data = tuple(np.frombuffer(column.data or b"\0", np.uint8) for column in (block.keys, block.values))
    size = sum(int(column[-1] - column[0]) for column in offsets)
    out = np.empty(HEADER + ROW * len(block) + size + TRAILER, np.uint8)
    times = np.ascontiguousarray(block.times, np.int64)
    end = fill(_HEADER, number, block.first_id, times, offsets, data, out)
    return out.data[:end]
