"""Sinks that block, in a thread of their own each: databases and files want to be called from one thread only."""

from typing import Protocol

from penstock.delivery.block import Block
from penstock.delivery.one_thread import OneThread
from penstock.delivery.sink import Epoch, Transaction, Vote


class BlockingSink(Protocol):
    """As `VotingSink`, one call at a time. Each raises SinkLost when it cannot work now; `close` and `open` follow."""

    def open(self, decided: bytes) -> None:
        """Settle what is in doubt from before: commit if it is the transaction `decided`, abort any other one."""

    def write(self, block: Block) -> None:
        """The next messages of the transaction."""

    def prepare(self, transaction: Transaction) -> Vote:
        """All of it was written. Yes: it is durable, and `commit` will succeed. After a no nothing of it stays."""

    def commit(self, transaction: Transaction) -> None:
        """After a yes. It may be done already."""

    def abort(self) -> None:
        """Void everything that is not committed."""

    def close(self) -> None:
        """In any state, without raising."""


class Threaded:
    """A blocking sink as a VotingSink. A call that was cancelled is finished by its thread before the next one."""

    def __init__(self, sink: BlockingSink, name: str) -> None:
        self._sink = sink
        self._thread = OneThread(name)
        self.is_open = False

    async def open(self, decided: bytes) -> None:
        await self._thread.call(self._sink.open, decided)
        self.is_open = True

    async def prepare(self, epoch: Epoch) -> Vote:
        async for block in epoch.blocks():
            await self._thread.call(self._sink.write, block)
        await epoch.journalled()
        return await self._thread.call(self._sink.prepare, epoch.transaction)

    async def commit(self, transaction: Transaction) -> None:
        await self._thread.call(self._sink.commit, transaction)

    async def abort(self, transaction_id: bytes) -> None:  # noqa: ARG002
        await self._thread.call(self._sink.abort)

    async def end(self) -> None:
        """It has no need to know."""

    async def close(self) -> None:
        self.is_open = False
        await self._thread.call_surely(self._sink.close)
