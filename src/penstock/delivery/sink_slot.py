"""A sink slot: one bound sink and its state. The sink is opened when it is needed and closed when it is lost."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

from penstock.connectors.sink_api import Epoch, SinkLost, SinkReport, Transaction, Vote, VotingSink
from penstock.core.errors import PenstockError
from penstock.core.logs import one_line
from penstock.delivery.positions import Decided, Divergence, Fit, compare

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long a sink may take to close; a thread that hangs in a database call is abandoned."""

SILENT_SECONDS = 10.0
"""Time without an answer before the status shows it."""

_T = TypeVar("_T")


class SlotState(Enum):
    CONNECTING = "CONNECTING"
    READY = "READY"
    IN_ROUND = "IN ROUND"
    VOTED = "VOTED"
    REFUSED = "REFUSED"
    WAITING = "WAITING"
    DIVERGED = "DIVERGED"


class Closable(Protocol):
    async def close(self) -> None: ...


class SlotStatus:
    """The state of a sink, and the reason for it."""

    def __init__(self, unsettled_at: Callable[[], float | None] = lambda: None) -> None:
        """`unsettled_at`: when the sink got the oldest epoch that it has not settled, by `time.monotonic`."""
        self._unsettled_at = unsettled_at
        self.state = SlotState.CONNECTING
        self.reason = ""
        self.failures = 0
        """Consecutive failures."""
        self.watcher: Callable[[SlotStatus], None] | None = None
        """Called when the state or the reason changes."""
        self._logged = ""
        self._asked_at: float | None = None

    def set(self, state: SlotState, reason: str = "") -> None:
        has_changed = (self.state, self.reason) != (state, reason)
        self.state, self.reason = state, reason
        if has_changed and self.watcher is not None:
            self.watcher(self)

    def asked(self) -> None:
        """Something is asked of the sink now, or it has just taken a part of it: an answer is waited for."""
        self._asked_at = time.monotonic()

    def answered(self) -> None:
        """Nothing is asked of it any more, whether it has answered or was lost."""
        self._asked_at = None

    @property
    def silent_seconds(self) -> float | None:
        """For how long it has not answered, or not sent on what it got; None if nothing is waited for."""
        since = self._asked_at or self._unsettled_at()
        return None if since is None else time.monotonic() - since

    @property
    def why(self) -> str:
        """The reason, or that the sink does not answer: whatever it did before, it is what the others wait for."""
        seconds = self.silent_seconds
        if seconds is None or seconds < SILENT_SECONDS:
            return self.reason
        what = "no answer" if self._asked_at is not None else "it has not sent on what it got"
        return f"{what} for {seconds:.0f} s" + (f"; before that: {self.reason}" if self.reason else "")

    def failed(self, state: SlotState, reason: str, who: str) -> None:
        reason = _printable(reason)
        if reason != self._logged:  # once, however often it happens
            log.warning("%s", one_line(reason if reason.startswith(who) else f"{who}: {reason}"))
        self._logged = reason
        self.failures += 1
        self.set(state, reason)

    def succeeded(self) -> None:
        self.failures, self._logged = 0, ""
        self.set(SlotState.READY)

    def parked(self) -> None:
        """The refused epoch is parked: failures are counted from zero for the next one."""
        self.failures, self._logged = 0, ""
        if self.state is SlotState.REFUSED:
            self.set(SlotState.READY)


class SinkSlot:
    """The slot of one voting sink. Any exception of a call, except a cancellation, becomes SinkLost and closes the
    sink.
    """

    def __init__(
        self, pipeline: str, name: str, url: str, sink: VotingSink, decided: Callable[[], Decided | None]
    ) -> None:
        """`decided` returns the ledger's current record of the sink; None if it is no longer bound."""
        self.who = f"sink {name} of pipeline {pipeline}"
        self.url = url
        self.status = SlotStatus()
        self.divergence: Divergence | None = None
        """Why the sink was rejected when it was last opened; None if it was not compared, or matches."""
        self._pipeline = pipeline
        self._name = name
        self._sink = sink
        self._decided = decided

    async def open(self, decided: bytes) -> None:
        if self._sink.is_open:
            return
        if self.status.state is SlotState.READY:
            self.status.set(SlotState.CONNECTING)
        await self._call(lambda: self._sink.open(decided, self._check))
        if self.status.state is not SlotState.REFUSED:
            self.status.set(SlotState.READY)

    def _check(self, report: SinkReport) -> None:
        """Called by the sink in its own thread, before it changes anything. Raises SinkLost if its data do not match
        the ledger.
        """
        decided = self._decided()
        fit = Fit.CONTINUE if decided is None else compare(report, decided)
        if decided is None or fit is Fit.CONTINUE:
            self.divergence = None
            return
        self.divergence = Divergence(fit, self._pipeline, self._name, report, decided)
        raise SinkLost(self.divergence.sentence, self.divergence.hint)

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    async def prepare(self, epoch: Epoch) -> Vote:
        if self.status.state is not SlotState.REFUSED:  # it may refuse again
            self.status.set(SlotState.IN_ROUND)
        return await self._call(lambda: self._sink.prepare(epoch))

    async def commit(self, transaction: Transaction) -> None:
        """Commit. If the sink is lost now, it commits when it is next opened."""
        with suppress(SinkLost):
            await self._call(lambda: self._sink.commit(transaction))
            self.status.succeeded()

    async def abort(self, transaction_id: bytes) -> None:
        if self._sink.is_open:
            with suppress(SinkLost):
                await self._call(lambda: self._sink.abort(transaction_id))
                if self.status.state in (SlotState.IN_ROUND, SlotState.VOTED):
                    self.status.set(SlotState.READY)

    def agrees(self) -> None:
        """The sink has voted yes: if the round fails, or does not end, another sink is the cause."""
        self.status.set(SlotState.VOTED)

    def refuses(self, reason: str) -> None:
        self.status.failed(SlotState.REFUSED, reason or "no reason given", self.who)

    async def end(self) -> None:
        """End the session properly if the sink is there, then close it."""
        if self._sink.is_open:
            with suppress(SinkLost):
                await self._call(self._sink.end)
        await self.close()

    async def close(self) -> None:
        await close(self._sink, self.who)

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        self.status.asked()
        try:
            return await call()
        except Exception as error:
            if not isinstance(error, PenstockError):
                log.error("%s: %r", self.who, error, exc_info=error)
            self._failed(error)
            await self.close()
            raise SinkLost(f"{self.who}: {reason_of(error)}") from error
        finally:
            self.status.answered()

    def _failed(self, error: Exception) -> None:
        found = self.divergence
        if found is not None and found.sentence in str(error):
            self.status.failed(SlotState.DIVERGED, f"{found.sentence}. {found.hint}", self.who)
        else:
            self.status.failed(SlotState.WAITING, reason_of(error), self.who)


def _printable(text: str) -> str:
    """The text without control characters: a sink's reason may contain anything, and is printed on terminals."""
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text)


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


async def close(sink: Closable, who: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await sink.close()
    except Exception as error:  # it is no longer used in any case
        log.warning("%s: closing it failed: %r", who, error)
