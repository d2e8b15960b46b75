"""Epochs for tests of sinks: their blocks are made by the real encoder and decoder of stored events."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from penstock.connectors.sink_api import PLAIN, Block, Transaction
from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import Bytes, Wanted, decode, encode


class Row(NamedTuple):
    value: bytes
    key: bytes = b""
    time_us: int = NO_TIME


def column(rows: Sequence[bytes]) -> Bytes:
    offsets = array("q", [0])
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    return Bytes(offsets, b"".join(rows))


def block_of(rows: Sequence[Row], first_id: int = 0) -> Block:
    values, keys, times = zip(*rows, strict=True)
    encoded = encode(column(values), keys=column(keys), event_times=array("q", times))
    return Block(decode(encoded.data), first_id)


class FakeEpoch:
    """`rows` in blocks of `block_rows`, starting at message id `start`. `release` lets `journalled` return."""

    def __init__(
        self,
        rows: Sequence[Row | bytes],
        *,
        start: int = 0,
        number: int = 1,
        attempt: int = 1,
        block_rows: int = 3,
        is_journalled: bool = True,
    ) -> None:
        self.rows = [row if isinstance(row, Row) else Row(row) for row in rows]
        self.start = start
        self.number = number
        self.attempt = attempt
        self.refused: dict[int, str] = {}
        self.taken = 0
        """Blocks that were asked for."""
        self._block_rows = block_rows
        self._end: int | None = None
        self._journalled = asyncio.Event()
        if is_journalled:
            self.release()

    def refuse(self, row: int, reason: str) -> None:
        self.refused[row] = reason

    @property
    def name(self) -> str:
        return f"p:1:{self.number}"

    @property
    def transaction_id(self) -> bytes:
        return b"p:%d:%d" % (self.number, self.attempt)

    @property
    def end(self) -> int:
        return self.start + sum(len(row.value) for row in self.rows)

    @property
    def transaction(self) -> Transaction:
        assert self._end is not None, "not all blocks were taken"
        return Transaction(self.transaction_id, self.number, self.start, self._end)

    async def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        at = self.start
        for first in range(0, len(self.rows), self._block_rows):
            self.taken += 1
            block = block_of(self.rows[first : first + self._block_rows], at)
            at = block.end_id
            yield block
        self._end = at

    async def journalled(self) -> None:
        await self._journalled.wait()

    def release(self) -> None:
        self._journalled.set()
