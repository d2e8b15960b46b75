"""What the sinks that follow have in common: an epoch goes out block by block, each under a name that stays."""

from typing import NamedTuple, Protocol

from penstock.delivery.block import Block
from penstock.delivery.one_thread import OneThread
from penstock.delivery.sink import Epoch


class Taker(Protocol):
    """Takes one block at a time, in one thread, and may block."""

    def take(self, name: str, block: Block) -> None:
        """`name` is `pipeline:incarnation:epoch/number`. Raises SinkLost to be given it again."""

    def interrupt(self) -> None:
        """Called from another thread: a `take` that waits ends soon."""

    def close(self) -> None:
        """After the last `take`, in its thread. Another `take` may follow."""


class _Span(NamedTuple):
    first_id: int
    end_id: int
    events: int


class BlockByBlock:
    """A taker as a FollowingSink: at least once. A block that was taken is not given again when a later one of its
    epoch fails; after a restart of the worker all blocks of the epoch are.
    """

    def __init__(self, taker: Taker, name: str) -> None:
        self._taker = taker
        self._thread = OneThread(name)
        self._epoch = ""
        self._taken: list[_Span] = []

    async def deliver(self, epoch: Epoch) -> None:
        if epoch.name != self._epoch:
            self._epoch, self._taken = epoch.name, []
        number = 0
        async for block in epoch.blocks():
            span = _Span(block.first_id, block.end_id, len(block))
            if self._taken[number : number + 1] != [span]:
                del self._taken[number:]
                await self._thread.call(self._taker.take, f"{epoch.name}/{number}", block)
                self._taken.append(span)
            number += 1

    async def close(self) -> None:
        """Returns at once, also while a block is being taken: that one is interrupted, or left behind."""
        self._taker.interrupt()
        self._thread.stop(self._taker.close)
