"""One stored event taken apart."""

import msgpack
import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.stored import NO_TIME, parse_event

NUMBERS = (7).to_bytes(8, "big") + (2**64 - 2).to_bytes(8, "big")


def event(time: int = -5, key: bytes = b"k", metadata: bytes = b"", payload: bytes = b"pay") -> bytes:
    parts = (NUMBERS, time.to_bytes(8, "big", signed=True), len(key).to_bytes(2, "big"), key)
    return b"".join((*parts, len(metadata).to_bytes(2, "big"), metadata, payload))


def test_all_parts_are_found() -> None:
    found = parse_event(event(metadata=msgpack.packb({"source": "s", "stream": "é"})))
    assert found is not None
    assert (found.stream_id, found.event_id, found.event_time) == (7, 2**64 - 2, -5)
    assert (found.key, found.metadata, found.payload) == (b"k", {"source": "s", "stream": "é"}, b"pay")


def test_an_event_without_a_time_has_none() -> None:
    found = parse_event(event(NO_TIME, b"", b"", b""))
    assert found is not None
    assert (found.event_time, found.key, found.payload) == (None, b"", b"")


def test_an_event_without_data_is_none() -> None:
    assert parse_event(b"") is None


@pytest.mark.parametrize("size", [1, 23, 25, 26, 28])
def test_bytes_that_end_too_early_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="not a valid stored event"):
        parse_event(event(key=b"key", metadata=b"\x81\xa1a\x01", payload=b"")[:size])
