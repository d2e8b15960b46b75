"""A writer's unacknowledged events: bounded, in order, ready to be sent again. No I/O."""

from collections import deque
from dataclasses import dataclass

from penstock.core.errors import ConditionFailed, LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment import BLOCK_SIZE_MAX

WINDOW_BYTES = 8 * 2**20
"""Enough to keep a disk busy over a network round trip, and little enough to resend after a lost connection."""

BLOCK_BYTES = 256 * 2**10
"""Large enough that the cost per message is small compared with that of its bytes."""

BLOCKS_MAX = 4096
"""Unacknowledged blocks: bounds the overhead of small ones, and how many replies the server owes."""

NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Block:
    """Events with their headers. `event_number` is that of the last one."""

    data: Buffer
    event_count: int
    event_number: int


class AppendWindow:
    """Events are taken into a block that is being filled; a full block waits to be sent, then to be acknowledged.

    A block that was sent once never changes its boundaries. The server may still have it buffered on an old connection,
    and stores whole blocks: with other boundaries, some of its events could be stored twice.
    """

    def __init__(self, window_bytes: int = WINDOW_BYTES, block_bytes: int = BLOCK_BYTES) -> None:
        if not 0 < block_bytes <= BLOCK_SIZE_MAX or window_bytes <= 0:
            raise RequestError(f"window_bytes {window_bytes} and block_bytes {block_bytes} do not fit together")
        self._window_bytes = window_bytes
        self._block_bytes = block_bytes
        self._blocks: deque[Block] = deque()
        self._sent = 0
        self._sent_number: int | None = None
        self._filling = bytearray()
        self._filling_count = 0
        self._bytes = 0
        self._probing = False
        self._is_new = True
        self.acknowledged: int | None = None
        """The number of the last event that is known to be stored; None if there is none."""
        self.taken: int | None = None
        """The number of the last event that was taken; None if there is none."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes taken and not acknowledged."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        return not self._bytes

    def is_stored(self, number: int | None) -> bool:
        """Whether everything up to `number` is known to be stored."""
        return number is None or (self.acknowledged is not None and self.acknowledged >= number)

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight."""
        return not self._sent

    @property
    def has_unsent(self) -> bool:
        """A block is ready to be sent."""
        return self._sent < len(self._blocks)

    @property
    def is_probing(self) -> bool:
        """One block at a time is sent, until one is acknowledged."""
        return self._probing

    # Taking events.

    def has_room(self, size: int) -> bool:
        """Whether this many bytes may be taken. More than the whole window is taken if nothing else is buffered."""
        if not self._bytes:
            return True
        return self._bytes + size <= self._window_bytes and len(self._blocks) < BLOCKS_MAX

    def add(self, framed: Buffer, event_count: int, number: int | None = None) -> int:
        """Take events with their headers, and copy them into the block that is being filled.
        Returns the number of the last one: `number`, or the next in line.
        """
        number = self._numbered(framed, event_count, number)
        if self._filling and len(self._filling) + len(framed) > self._block_bytes:
            self.close_block()
        self._filling += framed
        self._filling_count += event_count
        self._took(framed, number)
        if len(self._filling) >= self._block_bytes:
            self.close_block()
        return number

    def add_block(self, framed: Buffer, event_count: int, number: int | None = None) -> int:
        """The same as a separate block, not copied: it must not change until it is acknowledged."""
        number = self._numbered(framed, event_count, number)
        self.close_block()
        self._blocks.append(Block(framed, event_count, number))
        self._took(framed, number)
        return number

    def close_block(self) -> None:
        """Let the block that is being filled be sent as it is."""
        if self._filling_count:
            assert self.taken is not None
            self._blocks.append(Block(self._filling, self._filling_count, self.taken))
            self._filling = bytearray()
            self._filling_count = 0

    def _took(self, framed: Buffer, number: int) -> None:
        self._bytes += len(framed)
        self.taken = number

    def _numbered(self, framed: Buffer, event_count: int, number: int | None) -> int:
        if event_count < 1 or not framed:
            raise RequestError(f"{event_count} events in {len(framed)} bytes", "Append one event or more.")
        if len(framed) > BLOCK_SIZE_MAX:
            raise LimitExceeded(
                f"{len(framed)} bytes at once are over the limit of {BLOCK_SIZE_MAX}", "Append less at a time."
            )
        if number is None:
            number = (self.taken or 0) + event_count
        if number > NUMBER_MAX or (self.taken is not None and number <= self.taken):
            raise RequestError(f"event number {number} after {self.taken}", "A writer's event numbers must grow.")
        return number

    # Sending.

    def take(self) -> Block | None:
        """The next block to send, if there is one; from now on it is in flight."""
        if self._sent == len(self._blocks) or (self._probing and self._sent):
            return None
        block = self._blocks[self._sent]
        self._sent += 1
        if self._sent_number is None or block.event_number > self._sent_number:
            self._sent_number = block.event_number
        return block

    def acknowledge(self, number: int) -> None:
        """Everything up to `number` is stored."""
        if not self._sent or number > self._blocks[self._sent - 1].event_number:
            if self.acknowledged is None or number > self.acknowledged:
                raise ProtocolError(f"event {number} is acknowledged, but was not sent")
            return
        self._drop(number)

    def set_up(self, last: int | None) -> None:
        """`last` is the last number the server has stored for this writer; the rest is to be sent again.

        Raises ConditionFailed if this window cannot have sent that: to continue could lose events or store them twice.
        """
        if self._is_new:
            self._is_new = False
            self.acknowledged = self.taken = self._sent_number = last
            return
        self._check_ours(last)
        self._sent = 0
        if last is not None:
            self._drop(last)
        self._probing = self._probing and bool(self._blocks)

    def probe(self) -> None:
        """The segment has no room: until it has, do not send the whole window for nothing."""
        self._probing = True

    def _drop(self, number: int) -> None:
        while self._blocks and self._blocks[0].event_number <= number:
            block = self._blocks.popleft()
            self._bytes -= len(block.data)
            self._sent = max(0, self._sent - 1)
            self.acknowledged = block.event_number
            self._probing = False

    def _check_ours(self, last: int | None) -> None:
        if last == self.acknowledged:
            return
        if last is None or (self.acknowledged is not None and last < self.acknowledged):
            raise ConditionFailed(
                f"event {self.acknowledged} was acknowledged, but the segment has {last} as this writer's last one",
                "The segment was recreated, or has forgotten the writer: look at it, then open a new appender.",
            )
        ours = self._sent_number is not None and last <= self._sent_number
        if not ours or all(block.event_number != last for block in self._blocks):
            raise ConditionFailed(
                f"event {last} is stored, but was not sent from here",
                "Another program uses the same writer id: use a separate one for each, and open a new appender.",
            )
