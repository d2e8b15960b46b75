"""The heads' columns: the same bytes from the kernels and from the oracle."""

import struct
from types import ModuleType

import pytest

from penstock.protocol.connector import Message
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import NO_COLUMNS
from tests.protocol.connector.messages import IMPLEMENTATIONS, name_of, run_of


@pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)
def test_only_the_streams_of_the_route_that_had_messages_are_returned(bulk: ModuleType) -> None:
    table = bulk.StreamTable(7)
    for stream_id, route in ((3, 0), (2**63, 1), (5, 0), (6, 1)):
        table.open(stream_id, last_id=4, route=route)
    sent = [Message(stream, number, -number, b"k", b"payload") for number in (3, 9) for stream in (3, 2**63, 5)]
    columns = bulk.scan(run_of(*sent, Message(6, 4, 0, b"", b"")))
    first, second, third = bulk.rewrite(columns, table.admit(columns, EventTimeUnit.US), 3)
    assert first.streams == (struct.pack("<2Q", 3, 5), struct.pack("<2Q", 9, 9), struct.pack("<2q", -9, -9))
    assert second.streams == (struct.pack("<Q", 2**63), struct.pack("<Q", 9), struct.pack("<q", -9))
    assert third.streams == NO_COLUMNS
