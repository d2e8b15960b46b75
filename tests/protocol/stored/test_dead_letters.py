"""A dead letter is an event with a reason; without the reason it is the original event."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import encode_events
from penstock.protocol.stored.dead_letters import dead_letters_in
from tests.protocol.connector.strategies import blobs, i64s, u64s
from tests.protocol.stored.events import EMPTY_EVENT, stored

TOLD = {"reason": "why", "segment": "connector/s/0", "offset": 70, "watermark": 9, "behind_us": 3}


def test_what_was_added_to_the_event_is_distinguished_from_its_own() -> None:
    data = stored(1, 2, 3, b"k", b"v", {"source": "s", "stream": "t", "mine": 1, **TOLD})
    (letter,) = dead_letters_in(data, 100)
    assert (letter.start, letter.end, letter.reason) == (100, 100 + len(data), "why")
    assert (letter.segment, letter.offset, letter.watermark, letter.behind_us) == ("connector/s/0", 70, 9, 3)
    assert letter.event.metadata == {"source": "s", "stream": "t", "mine": 1}
    assert encode_events([letter.event]) == stored(1, 2, 3, b"k", b"v", {"source": "s", "stream": "t", "mine": 1})


def test_what_is_missing_or_has_another_type_is_unknown() -> None:
    data = stored(time=NO_TIME) + EMPTY_EVENT + stored(metadata={"reason": 5, "offset": "x", "segment": None})
    for letter in dead_letters_in(data, 0):
        assert (letter.reason, letter.segment, letter.offset, letter.watermark) == ("", None, None, None)
    assert len([*dead_letters_in(data, 0)]) == 2


def test_an_incomplete_dead_letter_is_left_in_place() -> None:
    data = stored(payload=b"one") + stored(payload=b"two")
    assert [letter.event.payload for letter in dead_letters_in(data[:-1], 0)] == [b"one"]
    assert [*dead_letters_in(b"", 5)] == []


_metadata = st.dictionaries(st.sampled_from(["source", "stream", "x"]), st.text(max_size=5))


@given(st.lists(st.tuples(u64s, u64s, i64s, blobs, blobs, _metadata), max_size=5), st.integers(0, 2**40))
def test_the_originals_are_the_events_that_they_were(rows: list[tuple[Any, ...]], offset: int) -> None:
    letters, events = b"", b""
    for stream_id, event_id, time, key, payload, metadata in rows:
        letters += stored(stream_id, event_id, time, key, payload, {**metadata, **TOLD})
        events += stored(stream_id, event_id, time, key, payload, metadata or b"")
    assert encode_events([letter.event for letter in dead_letters_in(letters, offset)]) == events
