"""The kernels of the file sink's formats, compiled by numba: loops over rows of a column of bytes.

They have no bounds checks: they trust the offsets, which the decoder has made.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.protocol.intrinsics import BYTES, I64S, U8S, compiled, copy, store8, store32
from penstock.protocol.stored.bulk import Bytes

NEWLINE = 10


@compiled(types.void(I64S, BYTES, U8S))
def fill_lines(offsets: Any, data: Any, out: Any) -> Any:
    """Each row, and a newline. `out` has a byte more for each row than the rows have."""
    to = 0
    for row in range(offsets.shape[0] - 1):
        start = offsets[row]
        size = offsets[row + 1] - start
        copy(out, to, data, start, size)
        store8(out, to + size, NEWLINE)
        to += size + 1


@compiled(types.void(I64S, BYTES, U8S))
def fill_frames(offsets: Any, data: Any, out: Any) -> Any:
    """A u32 with the length, and the row. `out` has four bytes more for each row than the rows have."""
    to = 0
    for row in range(offsets.shape[0] - 1):
        start = offsets[row]
        size = offsets[row + 1] - start
        store32(out, to, size)
        copy(out, to + 4, data, start, size)
        to += size + 4


def lines(values: Bytes) -> memoryview:
    return _filled(fill_lines, values, 1)


def frames(values: Bytes) -> memoryview:
    return _filled(fill_frames, values, 4)


def _filled(fill: Any, values: Bytes, extra: int) -> memoryview:
    offsets = np.ascontiguousarray(values.offsets, np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) + extra * len(values), np.uint8)
    data = values.data if len(values.data) else b"\0"  # numpy takes no empty buffer
    fill(offsets, np.frombuffer(data, np.uint8), out)
    return out.data
