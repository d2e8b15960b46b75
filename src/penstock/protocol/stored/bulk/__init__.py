"""Stored events as columns, and columns as stored events, a buffer at a time.

    bytes of a segment ──▶ decode ──▶ Events: numbers, and Bytes for keys, values and origins
    columns ──▶ encode ──▶ Encoded: stored events, one behind the other

With numba (`pip install penstock-streams[fast]`) these are compiled kernels, else plain Python with the same results.
The columns are laid out as Arrow lays out its own, so that Arrow arrays can be made of them without copying.
"""

from penstock.protocol.stored.bulk.columns import ALL, Bytes, Column, Encoded, Events, Wanted
from penstock.protocol.stored.bulk.implementation import COMPILED, decode, encode

__all__ = ["ALL", "COMPILED", "Bytes", "Column", "Encoded", "Events", "Wanted", "decode", "encode"]
