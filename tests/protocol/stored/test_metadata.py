"""The metadata of a stored event: whatever MessagePack can hold."""

from contextlib import suppress

import msgpack
import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.stored.event import parse_event
from penstock.protocol.stored.metadata import known_metadata
from tests.protocol.stored.test_event import event

DEEPEST = 1000
"""MessagePack reads values that are nested a little deeper than this."""


@pytest.mark.parametrize("depth", [1, 100, DEEPEST])
def test_a_key_that_is_a_nested_list_is_text_or_makes_the_metadata_unreadable(depth: int) -> None:
    """How deep a list may be to become text depends on Python and on the caller's stack."""
    data = b"\x81" + b"\x91" * depth + b"\xc0" + b"\x01"
    for fields in (known_metadata(data), _parsed(data)):
        assert {type(key) for key in fields} <= {str}
    if depth < DEEPEST:
        assert known_metadata(data) == {"[" * depth + "None" + "]" * depth: 1}


def _parsed(metadata: bytes) -> dict[str, object]:
    with suppress(ProtocolError):
        found = parse_event(event(metadata=metadata))
        assert found is not None
        return found.metadata
    return {}


def test_keys_in_inner_maps_are_text_too() -> None:
    assert known_metadata(msgpack.packb({1: {b"a": {2.5: None}}})) == {"1": {"a": {"2.5": None}}}
