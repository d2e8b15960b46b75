"""How much a follower asks for: its window, and its part of what all followers of a process may have in memory."""

import msgspec
import pytest

from penstock.coordinator import follower as module
from penstock.coordinator.follower import SHARE_BYTES, TOTAL_BYTES, WINDOW_BYTES, Budget, Follower, packed, room_for
from penstock.protocol.api.shards import RECORD_BYTES, ClockWanted, Followed, FollowedSegment

SEGMENT = "connector/s/0"


def test_a_follower_gets_its_window_while_others_need_little() -> None:
    assert room_for(0, 0) == WINDOW_BYTES
    assert room_for(WINDOW_BYTES, WINDOW_BYTES) == 0
    assert room_for(10, TOTAL_BYTES - 100) == SHARE_BYTES - 10


def test_when_all_is_used_each_follower_still_gets_its_share_and_no_more() -> None:
    assert room_for(0, TOTAL_BYTES) == SHARE_BYTES
    assert room_for(SHARE_BYTES, TOTAL_BYTES) <= 0
    assert room_for(0, 2 * TOTAL_BYTES) == SHARE_BYTES


def reply(start: int, count: int) -> Followed:
    records = [(start + number + 1, 1, b"h" * 100) for number in range(count)]
    segment = FollowedSegment(begin=0, start=start, end=start + count, block=packed(records))
    return Followed(version="1", segments={SEGMENT: segment}, disorder_us=0, has_finished=False)


def test_all_followers_together_stay_below_the_total_and_one_share_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOTAL_BYTES", 20_000)
    monkeypatch.setattr(module, "SHARE_BYTES", 2_000)
    monkeypatch.setattr(module, "REPLY_BYTES", 5_000)
    budget = Budget()
    followers = [Follower(0, f"s{number}", 1, {}, {}, budget=budget) for number in range(10)]
    for _ in range(20):
        for one in followers:
            if (request := one.request(0, ClockWanted())) is not None:
                size = len(reply(0, 1).segments[SEGMENT].block.heads) + RECORD_BYTES
                one.take(reply(request.after.get(SEGMENT, 0), max(request.bytes_max // size, 1)))
    assert all(one.bytes > 0 for one in followers)
    assert budget.bytes == sum(one.bytes for one in followers) <= 20_000 + 10 * 2_000
    followers[-1].read({SEGMENT: followers[-1].windows[SEGMENT].end})
    assert followers[-1].request(0, ClockWanted()) is not None
    assert budget.bytes == sum(one.bytes for one in followers)
    for one in followers:
        one.close()
    assert budget.bytes == 0


def test_a_request_counts_until_it_is_answered_or_lost() -> None:
    one = Follower(0, "s", 1, {}, {})
    assert one.request(0, ClockWanted()) is not None
    assert one.bytes == one.asked > 0
    one.lost("away")
    assert one.bytes == 0


def numbered(number: int, count: int) -> Followed:
    found = reply(0, count)
    segments = {name: msgspec.structs.replace(one, number=number) for name, one in found.segments.items()}
    return msgspec.structs.replace(found, segments=segments)


def test_a_segment_that_was_created_again_has_nothing_of_what_was_read() -> None:
    one = Follower(0, "s", 1, {}, {})
    one.take(numbered(7, 10))
    one.read({SEGMENT: 5})
    one.take(numbered(7, 12))
    assert (one.windows[SEGMENT].durable, one.windows[SEGMENT].end) == (12, 12)
    one.take(numbered(9, 20))
    assert one.windows[SEGMENT].durable == 0  # below what was read: the next cut raises DataLoss
    assert one.windows[SEGMENT].end == 12


def test_a_segment_whose_number_is_not_known_was_not_created_again() -> None:
    one = Follower(0, "s", 1, {}, {})
    one.take(numbered(7, 10))
    one.read({SEGMENT: 5})
    one.take(numbered(0, 0))
    assert (one.windows[SEGMENT].durable, one.windows[SEGMENT].end) == (10, 10)
    one.take(numbered(9, 20))
    assert one.windows[SEGMENT].durable == 0


def test_a_segment_of_which_nothing_was_read_may_be_created_again() -> None:
    one = Follower(0, "s", 1, {}, {})
    one.take(numbered(7, 10))
    one.take(numbered(9, 3))
    assert (one.windows[SEGMENT].durable, one.windows[SEGMENT].end) == (3, 3)
