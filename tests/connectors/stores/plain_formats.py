"""The file sink's formats in plain Python: what the kernels are compared with."""

from struct import Struct

from penstock.protocol.stored.bulk import Bytes

FRAME = Struct(">I")
"""The length of a frame's payload, in front of it."""


def lines(values: Bytes) -> bytes:
    return b"".join([part for row in values.rows() for part in (row, b"\n")])


def frames(values: Bytes) -> bytes:
    return b"".join([part for row in values.rows() for part in (FRAME.pack(len(row)), row)])
