"""What a writer sends, and sends again: each event is stored once, in order, whatever is lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.segments.window import BLOCKS_MAX, AppendWindow, Block
from penstock.core.errors import ConditionFailed, LimitExceeded, ProtocolError, RequestError
from penstock.protocol.segment import BLOCK_SIZE_MAX, frame_events
from tests.support.segment_bytes import split_events


def opened(last: int | None = None, window_bytes: int = 100, block_bytes: int = 20) -> AppendWindow:
    window = AppendWindow(window_bytes, block_bytes)
    window.set_up(last)
    return window


def sent(window: AppendWindow) -> list[int]:
    numbers = []
    while (block := window.take()) is not None:
        numbers.append(block.event_number)
    return numbers


def test_numbers_are_in_line_and_may_be_given() -> None:
    window = opened()
    assert window.add(b"12345678", 1) == 1
    assert window.add(b"1234567812345678", 2) == 3
    assert window.add_block(b"12345678", 1, 10) == 10
    assert window.taken == 10


def test_numbers_continue_where_the_writer_stopped() -> None:
    window = opened(41)
    assert (window.acknowledged, window.taken) == (41, 41)
    assert window.add(b"12345678", 1) == 42


@pytest.mark.parametrize("number", [5, 4, 2**63])
def test_a_number_must_grow_and_fit(number: int) -> None:
    window = opened(5)
    with pytest.raises(RequestError):
        window.add(b"12345678", 1, number)
    assert window.is_empty


def test_a_block_is_closed_when_it_is_full() -> None:
    window = opened(block_bytes=20)
    window.add(b"a" * 15, 1)
    assert window.take() is None
    window.add(b"b" * 10, 1)
    assert window.take() == Block(bytearray(b"a" * 15), 1, 1)
    assert window.take() is None
    window.add(b"c" * 10, 1)
    assert window.take() == Block(bytearray(b"b" * 10 + b"c" * 10), 2, 3)


def test_a_block_of_the_callers_is_not_copied_and_keeps_its_place() -> None:
    window = opened()
    window.add(b"a", 1)
    framed = bytearray(b"b" * 50)
    window.add_block(framed, 7)
    first, second = window.take(), window.take()
    assert first is not None
    assert first.data == b"a"
    assert second is not None
    assert second.data is framed
    assert second.event_number == 8


def test_room_is_bounded_in_bytes_and_blocks() -> None:
    window = opened(window_bytes=100, block_bytes=20)
    assert window.has_room(1000)
    window.add(b"a" * 60, 1)
    assert window.has_room(40)
    assert not window.has_room(41)
    many = opened(window_bytes=10**9)
    for _ in range(BLOCKS_MAX):
        assert many.has_room(1)
        many.add_block(b"x", 1)
    assert not many.has_room(1)


@pytest.mark.parametrize(("framed", "count"), [(b"", 1), (b"x", 0), (b"x", -1)])
def test_an_empty_append_is_refused(framed: bytes, count: int) -> None:
    with pytest.raises(RequestError):
        opened().add_block(framed, count)


def test_more_than_a_server_takes_is_refused() -> None:
    window = opened()
    with pytest.raises(LimitExceeded):
        window.add(bytes(BLOCK_SIZE_MAX + 1), 1)
    assert window.taken is None


@pytest.mark.parametrize(("window_bytes", "block_bytes"), [(0, 1), (1, 0), (1, BLOCK_SIZE_MAX + 1)])
def test_impossible_sizes_are_refused(window_bytes: int, block_bytes: int) -> None:
    with pytest.raises(RequestError):
        AppendWindow(window_bytes, block_bytes)


def filled(*numbers: int, last: int | None = None) -> AppendWindow:
    window = opened(last)
    for number in numbers:
        window.add_block(b"x" * 10, 1, number)
    return window


def test_an_acknowledgement_covers_everything_before_it() -> None:
    window = filled(1, 2, 3)
    assert sent(window) == [1, 2, 3]
    window.acknowledge(2)
    assert (window.acknowledged, window.buffered_bytes) == (2, 10)
    window.acknowledge(1)
    window.acknowledge(3)
    assert window.is_empty
    assert window.is_idle
    window.acknowledge(3)


def test_an_acknowledgement_of_what_was_not_sent_is_an_error() -> None:
    window = filled(1, 2)
    window.take()
    with pytest.raises(ProtocolError):
        window.acknowledge(2)


def test_what_is_stored_is_dropped_and_the_rest_sent_again_in_the_same_blocks() -> None:
    window = filled(1, 2, 3, 4)
    assert sent(window) == [1, 2, 3, 4]
    window.acknowledge(1)
    window.set_up(2)
    assert window.acknowledged == 2
    assert sent(window) == [3, 4]
    window.set_up(4)
    assert window.is_empty


def test_a_set_up_with_nothing_stored_sends_everything_again() -> None:
    window = filled(1, 2)
    sent(window)
    window.set_up(None)
    assert sent(window) == [1, 2]


@pytest.mark.parametrize("last", [None, 4, 7, 9, 20])
def test_a_set_up_that_cannot_be_ours_is_refused(last: int | None) -> None:
    window = filled(6, 8, 9, last=5)
    window.take()
    window.take()
    with pytest.raises(ConditionFailed) as raised:
        window.set_up(last)
    assert raised.value.hint
    assert window.buffered_bytes == 30


def test_after_no_room_one_block_probes_until_it_is_acknowledged() -> None:
    window = filled(1, 2, 3)
    sent(window)
    window.probe()
    window.set_up(None)
    assert sent(window) == [1]
    window.acknowledge(1)
    assert sent(window) == [2, 3]


def test_probing_ends_when_nothing_is_left_to_probe_with() -> None:
    window = filled(1)
    sent(window)
    window.probe()
    window.set_up(1)
    assert not window.is_probing


@given(st.lists(st.integers(1, 30), max_size=60))
def test_blocks_hold_the_events_in_order_and_keep_their_size(sizes: list[int]) -> None:
    window = AppendWindow(10**6, 64)
    window.set_up(None)
    events = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    for event in events:
        window.add(frame_events([event]), 1)
    window.close_block()
    found = []
    while (block := window.take()) is not None:
        assert len(block.data) <= 64
        assert block.event_count == len(split_events(block.data))
        found += [bytes(event) for event in split_events(block.data)]
        assert block.event_number == len(found)
    assert found == events


class TinyServer:
    """Stores a writer's blocks as a segment server does, and forgets connections, not blocks."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.last: int | None = None

    def append(self, block: Block) -> None:
        if self.last is None or block.event_number > self.last:
            self.stored += [bytes(event) for event in split_events(block.data)]
            self.last = block.event_number


class Losses(RuleBasedStateMachine):
    """A writer, a server, and connections that lose replies, blocks, or both. A lost connection's blocks may still
    reach the server later, in order.
    """

    events: Bundle[bytes] = Bundle("events")

    def __init__(self) -> None:
        super().__init__()
        self.window = opened(window_bytes=400, block_bytes=40)
        self.server = TinyServer()
        self.lines: list[list[Block]] = [[]]
        self.acks: list[int] = []
        self.taken: list[bytes] = []

    @precondition(lambda self: self.window.has_room(24))  # a header, a number, and up to 12 more
    @rule(size=st.integers(0, 12), own_block=st.booleans())
    def append(self, size: int, own_block: bool) -> None:
        event = b"%d" % len(self.taken) + b"." * size
        framed = frame_events([event])
        number = (self.window.add_block if own_block else self.window.add)(framed, 1)
        self.taken.append(event)
        assert number == len(self.taken)

    @rule()
    def close(self) -> None:
        self.window.close_block()

    @rule()
    def send(self) -> None:
        if (block := self.window.take()) is not None:
            self.lines[-1].append(block)

    @rule(line=st.integers(0, 5))
    def arrive(self, line: int) -> None:
        current = line >= len(self.lines) - 1
        blocks = self.lines[min(line, len(self.lines) - 1)]
        if blocks:
            block = blocks.pop(0)
            self.server.append(block)
            if current:
                self.acks.append(block.event_number)

    @rule()
    def acknowledge(self) -> None:
        if self.acks:
            self.window.acknowledge(self.acks.pop(0))

    @rule(lose_blocks=st.integers(0, 3))
    def lose(self, lose_blocks: int) -> None:
        """The newest blocks never arrive, the others may; all acknowledgements on their way are gone."""
        blocks = self.lines[-1]
        del blocks[max(0, len(blocks) - lose_blocks) :]
        self.lines.append([])
        self.acks.clear()
        self.window.set_up(self.server.last)

    @rule()
    def refuse(self) -> None:
        """No room: what is on its way on this connection is not stored, and the appender is set up again."""
        self.lines[-1].clear()
        self.acks.clear()
        self.window.probe()
        self.window.set_up(self.server.last)

    @invariant()
    def stored_is_what_was_taken_in_order(self) -> None:
        assert self.server.stored == self.taken[: len(self.server.stored)]
        assert (self.window.acknowledged or 0) <= len(self.server.stored)
        assert self.window.buffered_bytes <= 400

    def teardown(self) -> None:
        self.window.close_block()
        self.window.set_up(self.server.last)
        while not self.window.is_empty:
            block = self.window.take()
            assert block is not None
            self.server.append(block)
            self.window.acknowledge(block.event_number)
        assert self.server.stored == self.taken


TestLosses = Losses.TestCase
