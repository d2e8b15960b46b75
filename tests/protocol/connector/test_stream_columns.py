"""The heads' columns: the same bytes from the kernels' columns and from the fallback's."""

import struct
from array import array

import pytest

from penstock.protocol.connector import Message, encode
from penstock.protocol.connector.bulk import EventTimeUnit, Streams, fallback, stream_columns

fast = pytest.importorskip("penstock.protocol.connector.bulk.fast")


def test_only_the_streams_of_the_route_that_had_messages_are_told() -> None:
    streams = Streams(
        array("Q", [1, 2, 2**64 - 2]),
        array("Q", [10, 20, 30]),
        array("q", [-5, 6, 7]),
        array("q", [1, 1, 0]),
        array("q", [0, 0, 3]),
        array("B", [1, 0, 1]),
        array("Q", [9, 19, 30]),
    )
    assert stream_columns(streams, 1) == (struct.pack("<Q", 1), struct.pack("<Q", 10), struct.pack("<q", -5))
    assert stream_columns(streams, 7) == (b"", b"", b"")


def test_the_kernels_and_the_fallback_give_the_same_bytes() -> None:
    messages = [
        Message(stream, number, -number, b"k", b"payload") for number in range(1, 9) for stream in (3, 2**63, 5)
    ]
    data = b"".join(map(encode, messages))
    columns = []
    for bulk in (fast, fallback):
        table = bulk.StreamTable(7)
        for stream, route in ((3, 0), (2**63, 1), (5, 0)):
            table.open(stream, last_id=4, route=route)
        admission = table.admit(bulk.scan(data), EventTimeUnit.MS)
        columns.append([stream_columns(admission.streams, route) for route in (0, 1)])
    assert columns[0] == columns[1]
    assert struct.unpack("<2Q", columns[0][0].stream_ids) == (3, 5)
