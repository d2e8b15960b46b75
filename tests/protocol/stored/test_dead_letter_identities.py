"""Which events dead letters were made of, without parsing all of them."""

from typing import Any

import pytest

from penstock.core.errors import Damaged
from penstock.protocol.stored.dead_letter_identities import identified_in
from tests.protocol.stored.events import stored

PLACE = {"segment": "connector/s/0", "offset": 70}
DEAD_LETTERS: dict[str, tuple[dict[str, Any], tuple[str, int, int]]] = {
    "its position": ({**PLACE, "source": "s", "headers": {"a": [1, None]}, "reason": "bad"}, ("connector/s/0", 70, 0)),
    "its ids": ({"source": "s", "derived": True}, ("s", 7, 5)),
    "its ids without a source": ({}, ("None", 7, 5)),
    "half a position": ({"segment": "connector/s/0", "source": "s"}, ("s", 7, 5)),
    "a position of other types": ({"segment": 3, "offset": "x", "source": "s"}, ("s", 7, 5)),
}


def test_dead_letters_are_identified_by_their_position_or_else_by_their_ids() -> None:
    events = [stored(7, 5, 1, b"k", b"value", metadata) for metadata, _ in DEAD_LETTERS.values()]
    ends = [100 + sum(map(len, events[:count])) for count in range(len(events) + 1)]
    found = identified_in(b"".join(events) + events[0][:-1], 100)
    assert found.identities == [identity for _, identity in DEAD_LETTERS.values()]
    assert found.starts == ends, "the incomplete one is left for later"
    assert identified_in(stored(7, 0, 1, metadata={"source": "s"}), 0).identities == [None]


def test_other_bytes_are_refused() -> None:
    with pytest.raises(Damaged):
        identified_in(b"\xff" * 100, 0)
