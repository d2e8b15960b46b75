"""A sink at its place: opened when it is needed, closed when it is lost, with what people are shown of it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

from penstock.core.errors import PenstockError
from penstock.delivery.sink import Epoch, SinkLost, Transaction, Vote, VotingSink

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""For a sink to let go; a thread that hangs in a database's call is left behind."""

SILENT_SECONDS = 10.0
"""Without an answer: then it is said."""

_T = TypeVar("_T")


class Standing(Enum):
    CONNECTING = "CONNECTING"
    READY = "READY"
    IN_ROUND = "IN ROUND"
    REFUSED = "REFUSED"
    WAITING = "WAITING"


class Closing(Protocol):
    async def close(self) -> None: ...


class Shown:
    """How a sink stands, and why."""

    def __init__(self) -> None:
        self.standing = Standing.CONNECTING
        self.reason = ""
        self.failures = 0
        """In a row."""
        self.watcher: Callable[[Shown], None] | None = None
        """Told when it stands otherwise, or for another reason."""
        self._said = ""
        self._since = time.monotonic()

    def stands(self, standing: Standing, reason: str = "") -> None:
        is_news = (self.standing, self.reason) != (standing, reason)
        self.standing, self.reason = standing, reason
        self._since = time.monotonic()
        if is_news and self.watcher is not None:
            self.watcher(self)

    @property
    def why(self) -> str:
        """What people are told: the reason, or that nothing is heard of it."""
        seconds = time.monotonic() - self._since
        if self.reason or self.standing is not Standing.IN_ROUND or seconds < SILENT_SECONDS:
            return self.reason
        return f"it has not answered for {seconds:.0f} s"

    def fails(self, standing: Standing, reason: str, who: str) -> None:
        reason = _printable(reason)
        if reason != self._said:  # once, however often it happens
            log.warning("%s: %s", who, reason)
        self._said = reason
        self.failures += 1
        self.stands(standing, reason)

    def succeeds(self) -> None:
        self.failures, self._said = 0, ""
        self.stands(Standing.READY)

    def parked(self) -> None:
        """What it did not take is no longer asked of it: the next epoch's story is another one."""
        self.failures, self._said = 0, ""
        if self.standing is Standing.REFUSED:
            self.stands(Standing.READY)


class Seat:
    """Of one voting sink. Whatever a call of it raises, but for being cancelled, becomes SinkLost, and closes it."""

    def __init__(self, who: str, url: str, sink: VotingSink) -> None:
        self.who = who
        self.url = url
        self.shown = Shown()
        self._sink = sink

    async def open(self, decided: bytes) -> None:
        if self._sink.is_open:
            return
        if self.shown.standing is Standing.READY:
            self.shown.stands(Standing.CONNECTING)
        await self._call(lambda: self._sink.open(decided))
        if self.shown.standing is not Standing.REFUSED:
            self.shown.stands(Standing.READY)

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    async def prepare(self, epoch: Epoch) -> Vote:
        if self.shown.standing is not Standing.REFUSED:  # which it may do again
            self.shown.stands(Standing.IN_ROUND)
        return await self._call(lambda: self._sink.prepare(epoch))

    async def commit(self, transaction: Transaction) -> None:
        """One that is lost now is told when it is opened the next time."""
        with suppress(SinkLost):
            await self._call(lambda: self._sink.commit(transaction))
            self.shown.succeeds()

    async def abort(self, transaction_id: bytes) -> None:
        if self._sink.is_open:
            with suppress(SinkLost):
                await self._call(lambda: self._sink.abort(transaction_id))
                if self.shown.standing is Standing.IN_ROUND:
                    self.shown.stands(Standing.READY)

    def agrees(self) -> None:
        """A yes: if the round fails, it is not for this one."""
        self.shown.stands(Standing.IN_ROUND)

    def refuses(self, reason: str) -> None:
        self.shown.fails(Standing.REFUSED, reason or "it votes no, and does not say why", self.who)

    async def end(self) -> None:
        """In order, as far as that is possible."""
        if self._sink.is_open:
            with suppress(SinkLost):
                await self._call(self._sink.end)
        await self.close()

    async def close(self) -> None:
        await close(self._sink, self.who)

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except Exception as error:
            if not isinstance(error, PenstockError):
                log.error("%s: %r", self.who, error, exc_info=error)
            self.shown.fails(Standing.WAITING, reason_of(error), self.who)
            await self.close()
            raise SinkLost(f"{self.who}: {reason_of(error)}") from error


def _printable(text: str) -> str:
    """Sinks say what they like, and it goes to terminals."""
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text)


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


async def close(sink: Closing, who: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await sink.close()
    except Exception as error:  # it is of no use any more, whatever it says
        log.warning("%s is not closed: %r", who, error)
