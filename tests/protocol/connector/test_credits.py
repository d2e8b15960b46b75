"""Credits bound the bytes that a session has in flight, and come back for what is durable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import Allowance, Credits, LargestFrame
from penstock.protocol.connector.credits import (
    FRAME_SIZE_FLOOR,
    LATELY_S,
    SEEN_SIZE_FLOOR,
    SMALL_WINDOW_BYTES,
    WINDOW_BYTES,
    announce_window,
    announced_window,
)

WHOLE = WINDOW_BYTES // SEEN_SIZE_FLOOR
"""The credits of a session with the largest window, from its first small frame on."""

MIB = 2**20


def opened(now: float = 0.0, largest: LargestFrame | None = None) -> Credits:
    """Its source has sent a small frame lately."""
    largest = largest or LargestFrame()
    largest.saw(100, now)
    made = Credits(largest)
    made.grant(now)
    return made


def test_while_no_frame_has_come_each_counts_as_4_kib() -> None:
    assert Credits(LargestFrame()).grant(0.0) == WINDOW_BYTES // FRAME_SIZE_FLOOR == 2048


def test_small_frames_count_as_512_bytes_from_the_first_one_on() -> None:
    session = Credits(LargestFrame())
    started_with = session.grant(0.0)
    session.messages(10, 1000, 100, 0.0)
    assert session.grant(0.0) == WHOLE - started_with == 14_336
    assert session.available == WHOLE - 10
    assert session.promised_bytes(0.0) <= WINDOW_BYTES
    session.settled(10, 1000)
    assert session.grant(0.0) == 10


def test_in_a_small_window_they_always_count_as_4_kib() -> None:
    session = Credits(LargestFrame(), SMALL_WINDOW_BYTES)
    assert session.grant(0.0) == 64
    session.messages(10, 1000, 100, 0.0)
    session.settled(10, 1000)
    assert session.grant(0.0) == 10
    assert session.available == 64


def test_frames_of_any_size_below_4_kib_are_promised_no_more_than_the_window() -> None:
    largest = LargestFrame()
    largest.saw(1000, 0.0)
    assert Credits(largest).grant(0.0) == WINDOW_BYTES // 1000


def test_after_small_frames_those_of_1_kib_fill_twice_the_window_and_larger_ones_end_the_session() -> None:
    session = opened()
    session.messages(WHOLE - 1, (WHOLE - 1) * 1024, 1024, 0.0)
    assert not session.is_over
    session.messages(1, 1025 + 1024, 2049, 0.0)
    assert session.is_over


def test_credits_come_back_for_what_is_settled_and_no_earlier() -> None:
    session = opened()
    session.messages(100, 10_000, 100, 0.0)
    assert session.grant(0.0) == 0
    session.settled(40, 4000)
    assert session.grant(0.0) == 40
    assert session.grant(0.0) == 0
    assert (session.available, session.in_flight_bytes) == (WHOLE - 60, 6000)


def test_a_message_without_credit_is_a_protocol_error() -> None:
    session = opened()
    session.messages(WHOLE, 100_000, 100, 0.0)
    with pytest.raises(ProtocolError, match="MESSAGE: 1 received, with credit for 0"):
        session.messages(1, 100, 100, 0.0)
    assert session.available == 0


def test_a_notify_is_never_refused_and_its_credit_comes_back_with_its_answer() -> None:
    session = Credits(LargestFrame())
    session.stopped = True
    assert session.grant(0.0) == 0
    session.notify()
    assert (session.available, session.grant(0.0)) == (-1, 0)
    with pytest.raises(ProtocolError, match="credit for 0"):
        session.messages(1, 100, 100, 0.0)
    session.answered()
    assert session.grant(0.0) == 1
    assert session.available == 0


def test_the_credit_of_a_refused_notify_comes_back_when_it_is_returned_and_no_earlier() -> None:
    session = opened()
    session.notify()
    session.refused()
    assert session.grant(0.0) == 0
    session.return_refused()
    assert session.grant(0.0) == 1
    assert session.available == WHOLE


def test_a_small_window_leaves_room_for_one_large_frame() -> None:
    session = Credits(LargestFrame(), SMALL_WINDOW_BYTES, 2 * WINDOW_BYTES)
    assert session.grant(0.0) == 64
    session.messages(1, 4 * MIB, 4 * MIB, 0.0)
    assert not session.is_over
    session.messages(63, 63 * MIB, 4 * MIB, 0.0)
    assert session.is_over


@pytest.mark.parametrize("program", ["", "program", "a;b", "a;window=1;window=2", "x\n;y", "é"])
def test_a_window_is_announced_behind_the_name_of_the_program(program: str) -> None:
    assert announced_window(announce_window(program, 12_345)) == (program, 12_345)


@pytest.mark.parametrize(
    "program", ["", "program", "p;window=", "p;window=-1", "p;window=1 ", "p;window=1e6", "p;window=²"]
)
def test_any_other_program_announces_none(program: str) -> None:
    assert announced_window(program) == (program, 0)


def test_while_a_quota_is_reached_nothing_is_granted_and_afterwards_all_of_it() -> None:
    session = opened()
    session.messages(10, 1000, 100, 0.0)
    session.settled(10, 1000)
    session.stopped = True
    assert session.grant(0.0) == 0
    session.stopped = False
    assert session.grant(0.0) == 10


def test_large_frames_make_fewer_credits_until_they_are_long_past() -> None:
    session = opened()
    session.messages(1, MIB, MIB, 0.0)
    session.settled(1, MIB)
    assert session.grant(0.0) == 0  # WHOLE - 1 are out already, 8 would do
    session.messages(WHOLE - 1, WHOLE - 1, 1, 1.0)
    session.settled(WHOLE - 1, WHOLE - 1)
    assert session.grant(1.0) == 8
    assert session.grant(LATELY_S + 1) == 0
    assert session.grant(2 * LATELY_S + 1) == WINDOW_BYTES // FRAME_SIZE_FLOOR - 8


def test_a_session_over_twice_its_window_is_closed_and_resumes_with_fewer() -> None:
    largest = LargestFrame()
    session = opened(largest=largest)
    session.messages(4, 16 * MIB, 4 * MIB, 0.0)
    was_over = session.is_over
    session.messages(1, 1, 1, 0.0)
    assert (was_over, session.is_over) == (False, True)
    assert Credits(largest).grant(1.0) == 2


def test_a_frame_larger_than_the_window_still_gets_its_credit() -> None:
    largest = LargestFrame()
    largest.saw(2 * WINDOW_BYTES, 0.0)
    assert Credits(largest).grant(0.0) == 1


def test_recent_means_one_to_two_periods() -> None:
    largest = LargestFrame()
    largest.saw(10_000, LATELY_S - 1)
    assert largest.size(2 * LATELY_S - 1) == 10_000
    assert largest.size(2 * LATELY_S) == FRAME_SIZE_FLOOR
    largest.saw(10_000, 3 * LATELY_S)
    assert largest.size(9 * LATELY_S) == FRAME_SIZE_FLOOR


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "settle", "notify", "accept", "refuse", "return", "grant", "stop", "go"]),
        st.integers(1, 500),
    )
)


@given(STEPS)
def test_source_and_worker_always_count_the_same(steps: list[tuple[str, int]]) -> None:
    largest = LargestFrame()
    largest.saw(100, 0.0)
    worker, source = Credits(largest), Allowance()
    flying = asked = kept_back = 0
    for step, number in steps:
        match step:
            case "send":
                count = min(number, source.available)
                worker.messages(count, 100 * count, 100, 0.0)
                source.spend(count)
                flying += count
            case "settle":
                count = min(number, flying)
                worker.settled(count, 100 * count)
                flying -= count
            case "notify":
                worker.notify()
                source.spend()
                asked += 1
            case "accept" | "refuse" if asked:
                answer = worker.answered if step == "accept" else worker.refused
                answer()
                asked -= 1
                kept_back += step == "refuse"
            case "return":
                worker.return_refused()
                kept_back = 0
            case "grant":
                source.add(worker.grant(0.0))
            case "stop" | "go":
                worker.stopped = step == "stop"
        assert source.available == max(worker.available, 0)
        assert worker.available + flying + asked + kept_back <= WHOLE
    for _ in range(asked):
        worker.answered()
    worker.return_refused()
    worker.settled(flying, worker.in_flight_bytes)
    worker.stopped = False
    worker.grant(0.0)
    assert worker.available == WHOLE
