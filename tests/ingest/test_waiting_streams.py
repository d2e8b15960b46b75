"""Streams that wait for a release, against a list of them."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.sessions.acks import WaitingStreams

OFFSETS = st.integers(0, 20)


def test_a_point_is_due_once_at_its_offset() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert waiting.due(0, 9, 100).points == []
    assert waiting.due(1, 99, 100).points == []
    assert waiting
    assert waiting.due(0, 10, 100).points == [(7, 5)]
    assert not waiting
    assert waiting.due(0, inf, 100).points == []


def test_what_is_below_a_point_does_not_pass_and_what_is_not_ends_the_waiting() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    assert not waiting.passes(7, 4)
    assert waiting.passes(8, 0)
    assert waiting.passes(7, 5)
    assert waiting.passes(7, 4)
    assert waiting.due(0, inf, 100).points == []


def test_a_stream_that_waits_already_waits_for_the_later_offset() -> None:
    waiting = WaitingStreams()
    waiting.add_point(0, 10, stream_id=7, last_id=5)
    waiting.add_point(0, 20, stream_id=7, last_id=6)
    assert waiting.due(0, 10, 100).points == []
    assert waiting.due(0, 20, 100).points == [(7, 6)]
    assert not waiting


def test_ends_stay_when_points_are_forgotten() -> None:
    waiting = WaitingStreams()
    for offset in (30, 10, 20):
        waiting.add_end(0, offset, stream_id=offset)
        waiting.add_point(0, offset, stream_id=offset, last_id=1)
    waiting.keep_ends()
    assert waiting.due(0, 25, 100) == ([], [10, 20], True)
    assert waiting.due(0, inf, 100) == ([], [30], True)
    assert not waiting


@given(st.lists(st.tuples(OFFSETS, st.booleans()), max_size=30), st.lists(OFFSETS), st.integers(1, 5))
def test_everything_is_due_in_the_end_and_nothing_before_its_offset(
    entries: list[tuple[int, bool]], releases: list[int], limit: int
) -> None:
    waiting = WaitingStreams()
    for stream_id, (offset, is_end) in enumerate(entries):
        if is_end:
            waiting.add_end(0, offset, stream_id)
        else:
            waiting.add_point(0, offset, stream_id, last_id=1)
    taken: set[int] = set()
    for passed in [*sorted(releases), inf]:
        while True:
            points, ends, is_all = waiting.due(0, passed, limit)
            assert len(points) + len(ends) <= limit
            taken |= {stream_id for stream_id, _ in points} | set(ends)
            if is_all:
                break
        assert taken == {stream_id for stream_id, (offset, _) in enumerate(entries) if offset <= passed}
