"""Which events dead letters were made of, without parsing all of them."""

from typing import Any

import pytest

from penstock.core.errors import Damaged
from penstock.protocol.stored.dead_letter_identities import identified_in
from tests.protocol.stored.events import stored

PLACE = {"segment": "connector/s/0", "offset": 70}
SAME: list[list[dict[str, Any]]] = [
    [{**PLACE, "source": "s", "headers": {"a": [1, None]}, "reason": "bad"}, {**PLACE, "reason": "worse"}],
    [{**PLACE, "offset": 71}],
    [{**PLACE, "segment": "connector/s/1"}],
    [
        {"source": "s", "derived": True},
        {"segment": "connector/s/0", "source": "s"},
        {"segment": 3, "offset": "x", "source": "s"},
    ],
    [{"source": "t", "derived": True}],
    [{}],
]
"""Metadata of dead letters that were made of one event each. The last three have no position: their ids count."""


def test_dead_letters_of_one_event_are_identified_as_such_by_their_position_or_else_by_their_ids() -> None:
    events = [stored(2**64 - 1, 5, 1, b"k", b"value", one) for group in SAME for one in group]
    ends = [100 + sum(map(len, events[:count])) for count in range(len(events) + 1)]
    found = identified_in(b"".join(events) + events[0][:-1], 100)
    assert found.starts.tolist() == ends, "the incomplete one is left for later"
    assert found.is_known.all()
    identities = iter(map(tuple, found.identities.tolist()))
    groups = [{next(identities) for _ in group} for group in SAME]
    assert [len(group) for group in groups] == [1] * len(SAME)
    assert len(set.union(*groups)) == len(SAME)


def test_a_derived_dead_letter_without_ids_has_no_identity() -> None:
    found = identified_in(stored(7, 0, 1, metadata={"source": "s"}), 0)
    assert (len(found), found.is_known.tolist()) == (1, [False])


def test_other_bytes_are_refused() -> None:
    with pytest.raises(Damaged):
        identified_in(b"\xff" * 100, 0)
