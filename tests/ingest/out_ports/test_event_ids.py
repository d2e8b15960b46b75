"""Ids, places and sizes of stored events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded
from penstock.core.types import Offset, Position
from penstock.ingest import batch
from penstock.ingest.batch import Values, record_slices
from penstock.ingest.known_streams import ephemeral_id, is_ephemeral
from penstock.ingest.out_ports.event_ids import (
    PLACES_MAX,
    SINCE_MAX,
    Place,
    Places,
    going_on,
    position,
    reaching,
    since,
)
from penstock.protocol.connector import stream_id_of


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 100), st.booleans()), max_size=50))
def test_ids_of_a_stream_that_resumes_increase_and_show_where_to_resume(
    steps: list[tuple[int, int, bool]],
) -> None:
    last_id = cut = behind = 0
    for size, count, reaches in steps:
        if not count:
            continue
        if reaches:
            cut, behind = cut + size, 0
            ids = reaching(last_id, count, cut)
        else:
            behind += count
            ids = going_on(last_id, count)
        assert len(ids) == count
        assert ids[0] > last_id
        last_id = ids[-1]
        assert (position(last_id), since(last_id)) == (cut, behind)


def test_running_out_of_event_ids_between_two_resume_points_is_refused() -> None:
    last_id = going_on(0, SINCE_MAX)[-1]
    with pytest.raises(LimitExceeded, match="place to resume"):
        going_on(last_id, 1)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=100))
def test_rows_are_split_into_records_of_bounded_size_in_order(sizes: list[int]) -> None:
    limit, batch.RECORD_BYTES = batch.RECORD_BYTES, 500
    try:
        slices = [*record_slices(sizes)]
    finally:
        batch.RECORD_BYTES = limit
    assert [size for rows in slices for size in sizes[rows]] == sizes
    assert all(len(sizes[rows]) == 1 or sum(sizes[rows]) + 36 * len(sizes[rows]) <= 500 for rows in slices)


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(0, 60))
def test_events_that_are_stored_already_are_left_out(ids: set[int], last_id: int) -> None:
    given_ids = sorted(ids)
    kept = Values([b"%d" % i for i in given_ids], given_ids, given_ids, metadata=[b""] * len(ids)).after(last_id)
    assert [*kept.ids] == [i for i in given_ids if i > last_id]
    assert [*kept.values] == [b"%d" % i for i in kept.ids]
    assert [*kept.times_us] == [*kept.ids]  # type: ignore[misc]


@given(st.integers(1, 2000), st.integers(0, 2000), st.integers(0, 2000))
def test_places_are_bounded_and_never_complete_an_event_too_early(count: int, durable: int, completed: int) -> None:
    places = Places()
    for number in range(1, count + 1):
        places.add(Place(number, Position(number), Offset(number)))
        places.prune(Position(min(durable, number)), min(completed, number))
    assert len(places) <= PLACES_MAX + 1
    for event_id in range(1, count + 1):
        place = places.find(event_id)
        if place is None:
            assert event_id <= min(durable, completed, count)
        else:
            assert place.last_id >= event_id
    last = places.find(count)
    assert last is None or last.last_id == count


@given(st.text(max_size=20), st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_a_stream_id_shows_whether_the_stream_can_resume(name: str, incarnation: int, count: int) -> None:
    assert is_ephemeral(ephemeral_id(incarnation, count), name, incarnation)
    assert not is_ephemeral(ephemeral_id(incarnation, count), name, incarnation - 1)
    assert not is_ephemeral(stream_id_of(name), name, 2**32 - 1)
    assert not is_ephemeral(count, name, 2**32 - 1)
