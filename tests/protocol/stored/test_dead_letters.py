"""A dead letter is an event with a reason; without the reason it is the original event."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import encode_events
from penstock.protocol.stored.dead_letters import dead_letters_in, with_added
from tests.protocol.connector.strategies import blobs, i64s, u64s
from tests.protocol.stored.events import EMPTY_EVENT, stored

ADDED = {"reason": "why", "segment": "connector/s/0", "offset": 70, "watermark": 9, "behind_us": 3}


def test_metadata_added_to_an_event_is_distinguished_from_its_own() -> None:
    data = stored(1, 2, 3, b"k", b"v", {"source": "s", "stream": "t", "mine": 1, **ADDED})
    (found,) = dead_letters_in(data, 100)
    assert (found.start, found.end, found.reason) == (100, 100 + len(data), "why")
    assert (found.segment, found.offset, found.watermark, found.behind_us) == ("connector/s/0", 70, 9, 3)
    assert found.event.metadata == {"source": "s", "stream": "t", "mine": 1}
    assert encode_events([found.event]) == stored(1, 2, 3, b"k", b"v", {"source": "s", "stream": "t", "mine": 1})


def test_what_is_missing_or_has_another_type_is_unknown() -> None:
    data = stored(time=NO_TIME) + EMPTY_EVENT + stored(metadata={"reason": 5, "offset": "x", "segment": None})
    for found in dead_letters_in(data, 0):
        assert (found.reason, found.segment, found.offset, found.watermark) == ("", None, None, None)
    assert len([*dead_letters_in(data, 0)]) == 2


def test_an_incomplete_dead_letter_is_left_in_place() -> None:
    data = stored(payload=b"one") + stored(payload=b"two")
    assert [found.event.payload for found in dead_letters_in(data[:-1], 0)] == [b"one"]
    assert [*dead_letters_in(b"", 5)] == []


_metadata = st.dictionaries(
    st.sampled_from(["source", "stream", "x", "reason", "offset", "derived", "behind_us", "penstock.replaced"]),
    st.text(max_size=5),
)


@given(st.lists(st.tuples(u64s, u64s, i64s, blobs, blobs, _metadata), max_size=5), st.integers(0, 2**40))
def test_the_original_events_are_restored_exactly(rows: list[tuple[Any, ...]], offset: int) -> None:
    data, events = b"", b""
    for stream_id, event_id, time, key, payload, metadata in rows:
        data += stored(stream_id, event_id, time, key, payload, with_added(metadata, ADDED))
        events += stored(stream_id, event_id, time, key, payload, metadata or b"")
    assert encode_events([found.event for found in dead_letters_in(data, offset)]) == events
