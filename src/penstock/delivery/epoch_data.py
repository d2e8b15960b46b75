"""An epoch's output for one sink, read from its segment block by block while it is delivered."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import groupby

from penstock.connectors.sink_api import PLAIN, Block, Transaction
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.coordinator.records import Records
from penstock.core.errors import Damaged
from penstock.delivery.outbox.rows import WANTED, encode_dead_letters, rows_of
from penstock.protocol.stored.bulk import Events, Wanted, decode
from penstock.protocol.stored.names import Kind, output_segment

BLOCK_BYTES = 4 << 20
"""Bytes read and decoded at once. Delivery to a sink uses a few times this much memory."""


async def _at_once() -> None:
    """For a sink that does not vote, and so has no attempt to wait for."""


@dataclass(slots=True, kw_only=True)
class EpochData:
    """An `Epoch`: the bytes [offset, end) of an output segment, for one sink."""

    records: Records
    segment: str
    offset: int
    end: int
    name: str
    number: int
    transaction_id: bytes
    start: int
    when_journalled: Callable[[], Awaitable[None]] = _at_once
    block_bytes: int = BLOCK_BYTES
    on_block: Callable[[], None] = field(default=lambda: None)
    """Called whenever the sink asks for the next block: it has taken the one before."""
    rows: int = field(init=False, default=0)
    """Rows of the blocks that were read."""
    refused: dict[int, str] = field(init=False, default_factory=dict)
    """The reasons of rows that the sink can never accept, by their numbers."""
    _next_id: int = field(init=False)

    def __post_init__(self) -> None:
        self._next_id = self.start

    @classmethod
    def of(
        cls,
        records: Records,
        name: str,
        pipeline: Pipeline,
        batch: int,
        sink: Sink,
        transaction_id: bytes | None = None,
        when_journalled: Callable[[], Awaitable[None]] = _at_once,
    ) -> "EpochData":
        """The output that the pipeline's sink does not have yet, up to the end of this batch."""
        epoch = f"{name}:{pipeline.incarnation}:{batch}"
        return cls(
            records=records,
            segment=output_segment(name, sink.port),
            offset=sink.at,
            end=pipeline.epochs[batch].ends[sink.port],
            name=epoch,
            number=batch,
            transaction_id=epoch.encode() if transaction_id is None else transaction_id,
            start=sink.sent,
            when_journalled=when_journalled,
        )

    async def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        self._next_id, self.rows = self.start, 0
        self.on_block()
        async for events in self._events(wanted):
            if len(events):
                block = Block(events, self._next_id)
                self._next_id = block.end_id
                self.rows += len(block)
                yield block
            self.on_block()

    def refuse(self, row: int, reason: str) -> None:
        self.refused[row] = reason

    async def dead_letters(self) -> list[bytes]:
        """The rows that were refused, as they are stored, with their reasons. Nothing is asked of the sink. Raises as
        `blocks` does if they cannot be read again.
        """
        found: list[bytes] = []
        if not self.refused:
            return found
        first = 0
        async for events in self._events(WANTED):
            rows = [row for row in rows_of(events, first) if row.number in self.refused]
            for reason, run in groupby(rows, key=lambda row: self.refused[row.number]):
                found.append(encode_dead_letters([*run], reason))
            first += len(events)
        return found

    async def _events(self, wanted: Wanted) -> AsyncIterator[Events]:
        """What each read has found, which may be nothing."""
        at, length = self.offset, self.block_bytes
        while at < self.end:
            data = await self.records.data(self.segment, at, length)
            events = decode(memoryview(data)[: self.end - at], at, Kind.STORED, wanted)
            if events.end == at:
                length = self._longer(at, length)
                continue
            at, length = events.end, self.block_bytes
            yield events

    def _longer(self, at: int, length: int) -> int:
        """A larger length, for an event that does not fit into this many bytes."""
        if length >= self.end - at:
            raise Damaged(f"segment {self.segment!r}: the epoch that ends at {self.end} ends inside the event at {at}")
        return 2 * length

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.transaction_id, self.number, self.start, self._next_id)

    async def journalled(self) -> None:
        await self.when_journalled()
