"""Rows for a stream of Pravega's clients: each goes to the segment that the clients would choose for its key, in the
form in which they write events. No loop here runs over rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.api.pipelines import Span
from penstock.spark.sink.rows import BLOCK_BYTES, Block, bytes_of, check_values

VALUE_BYTES_MAX = 8 << 20
"""Of an event: the clients neither write nor read larger ones."""

_HEADER_SIZE = 8
_ASCII_MAX = 0x7F
_GOLDEN = 0.6180339887498949
"""Multiples of it, without their integer part, are spread evenly between 0 and 1."""

_U64 = NDArray[np.uint64]
_SEED = np.uint64(1741865571)
"""With which the clients hash routing keys."""
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_FINAL = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_UNITS = 4
"""UTF-16 code units in half a block of the hash, which has 128 bits."""


def routed_blocks(batch: pa.RecordBatch, port: str, spans: Sequence[Span], partition: int) -> Iterator[Block]:
    """All rows, in order per key. Rows without a key go to one segment, which depends on the partition.

    Raises RequestError for a null value and for a key that is not text, LimitExceeded for a row that is too large.
    """
    check_values(batch)
    if not batch.num_rows:
        return
    chosen = _segments(batch, spans, partition)
    values = _binary(batch.column("value"))
    for number in np.unique(chosen).tolist():
        rows = values if len(spans) == 1 else values.filter(pa.array(chosen == number))
        yield from _framed(rows, f"{port}.{number}", spans[number].segment)


def _segments(batch: pa.RecordBatch, spans: Sequence[Span], partition: int) -> NDArray[np.int64]:
    """The number of the span of each row."""
    if "key" in batch.schema.names:
        keys = batch.column("key")
        places = hashes(keys)
        places[keys.is_null().to_numpy(zero_copy_only=False)] = partition * _GOLDEN % 1
    else:
        places = np.full(batch.num_rows, partition * _GOLDEN % 1)
    ends = np.array([span.high for span in spans])
    return np.minimum(np.searchsorted(ends, places, side="right"), len(spans) - 1)


def _framed(values: Any, name: str, segment: str) -> Iterator[Block]:
    lengths = pc.binary_length(values).to_numpy().astype(np.int64)
    if lengths.max() > VALUE_BYTES_MAX:
        raise LimitExceeded(
            f"a value of {lengths.max():,} bytes is over the limit of {VALUE_BYTES_MAX:,} of Pravega's clients",
            "Store large objects elsewhere and a reference to them here, or cut them into several rows.",
        )
    headers = np.zeros((len(values), 2), ">i4")
    headers[:, 1] = lengths
    ends = np.cumsum(lengths + _HEADER_SIZE)
    start = 0
    while start < len(values):
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + BLOCK_BYTES, side="right")), start + 1)
        yield Block(name, _joined(headers[start:end], values[start:end]), end - start, segment)
        start = end


def _joined(headers: NDArray[Any], values: Any) -> bytes:
    """Each header, and its value."""
    places = pa.py_buffer(np.arange(len(headers) + 1, dtype=np.int32) * _HEADER_SIZE)
    heads = pa.Array.from_buffers(pa.binary(), len(headers), [None, places, pa.py_buffer(headers.tobytes())])
    data: bytes = pc.binary_join_element_wise(heads, values, b"").buffers()[2].to_pybytes()
    return data


def _binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


# Where the clients place a key: a fraction, from a hash (Murmur3, 128 bits) of its UTF-16 code units.
#
# The clients in Rust and Python hash as many code units as the key has bytes in UTF-8: behind the last one of a key
# that is not ASCII there are zeros. Those in Java do not, and place such a key elsewhere.


def hashes(keys: Any) -> NDArray[np.float64]:
    """Of a column of text or bytes, null like empty; each different key is hashed once. Raises RequestError for bytes
    that are not UTF-8.
    """
    distinct = pc.fill_null(keys, pa.scalar("").cast(keys.type)).dictionary_encode()
    found = bytes_of(distinct.dictionary)
    starts = np.asarray(found.offsets)
    data = np.frombuffer(found.data, np.uint8)[starts[0] : starts[-1]]
    units, places = _utf16(data, starts - starts[0])
    rows: NDArray[np.int64] = distinct.indices.to_numpy()
    return _fractions(units, places, np.diff(starts))[rows]


def _utf16(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """All keys, one after the other, and where each of them starts."""
    if not len(data) or data.max() <= _ASCII_MAX:
        return data.astype(np.uint16), starts
    begins = (data & 0xC0) != 0x80
    try:
        text = data.tobytes().decode()
    except UnicodeDecodeError:
        text = None
    if text is None or not begins[starts[:-1][np.diff(starts) > 0]].all():
        raise RequestError("a key is not valid UTF-8", "Routing keys are text: use hex(key).")
    of_byte = begins.astype(np.int64) + (data >= 0xF0)  # a character has two units if it has four bytes
    places = np.concatenate(([0], np.cumsum(of_byte)))[starts]
    return np.frombuffer(text.encode("utf-16-le"), np.uint16), places


def _fractions(units: NDArray[np.uint16], places: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Keys of the same number of blocks are hashed together, block by block. `sizes`: in code units, with zeros."""
    found = np.empty(len(sizes), np.float64)
    starts, counts, blocks = places[:-1], np.diff(places), sizes // (2 * _UNITS)
    padded = np.concatenate((units, np.zeros(1, np.uint16)))
    for number in np.unique(blocks).tolist():
        rows = np.flatnonzero(blocks == number)
        columns = np.arange(2 * _UNITS * (number + 1))
        table = padded[np.minimum(starts[rows, None] + columns, len(units))]
        table[columns >= counts[rows, None]] = 0
        halves = table.astype("<u2").view("<u8").T.astype(np.uint64)
        found[rows] = (_murmur(halves, sizes[rows]) >> np.uint64(12)).astype(np.float64) / float(1 << 52)
    return found


def _murmur(halves: _U64, sizes: NDArray[np.int64]) -> _U64:
    """The upper half of the hashes of keys with equally many blocks, of two halves each; the last one is incomplete,
    and ends with zeros.
    """
    blocks = len(halves) // 2 - 1
    h1, h2 = np.full(len(sizes), _SEED), np.full(len(sizes), _SEED)
    for block in range(blocks):
        h1 = _rotated(h1 ^ _mixed1(halves[2 * block]), 27) + h2
        h1 = h1 * np.uint64(5) + np.uint64(0x52DCE729)
        h2 = _rotated(h2 ^ _mixed2(halves[2 * block + 1]), 31) + h1
        h2 = h2 * np.uint64(5) + np.uint64(0x38495AB5)
    size = (2 * sizes).astype(np.uint64)
    h1, h2 = h1 ^ _mixed1(halves[-2]) ^ size, h2 ^ _mixed2(halves[-1]) ^ size
    h1 = h1 + h2
    h2 = h2 + h1
    return _finished(h1) + _finished(h2)


def _mixed1(half: _U64) -> _U64:
    return _rotated(half * _C1, 31) * _C2


def _mixed2(half: _U64) -> _U64:
    return _rotated(half * _C2, 33) * _C1


def _rotated(numbers: _U64, bits: int) -> _U64:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))


def _finished(numbers: _U64) -> _U64:
    for factor in _FINAL:
        numbers = (numbers ^ (numbers >> np.uint64(33))) * factor
    return numbers ^ (numbers >> np.uint64(33))
