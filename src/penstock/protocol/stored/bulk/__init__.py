"""Stored events as columns, and columns as stored events, a buffer at a time.

    bytes of a segment ──▶ decode ──▶ Events: numbers, and Bytes for keys, values and origins
    columns ──▶ encode ──▶ Encoded: stored events, one after the other

Compiled kernels do the work. The columns are laid out as Arrow lays out its own, so that Arrow arrays can be created
from them without copying.
"""

from penstock.protocol.stored.bulk.codec import (
    Bytes,
    Column,
    Encoded,
    Events,
    Wanted,
    decode,
    encode,
    encode_events,
)

__all__ = ["Bytes", "Column", "Encoded", "Events", "Wanted", "decode", "encode", "encode_events"]
