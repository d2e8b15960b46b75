"""Which pipelines are alive, and which of them take events.

In memory only: a worker that has just started knows no pipelines.

    announced ──start──▶ STARTING ──its query asks for an epoch──▶ RUNNING ──it reports so──▶ STOPPED
        (STARTING too)                                                └──silence, or it reports a failure──▶ FAILING
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from penstock.core.errors import LimitExceeded
from penstock.protocol.api.pipelines import QueryFailure, QueryReport

log = logging.getLogger(__name__)

State = Literal["STARTING", "RUNNING", "FAILING", "STOPPED"]

DEFAULT_START_SECONDS = 20.0
"""The estimate if no start was measured: Spark on a laptop, and the first Python processes."""

_ANNOUNCED_MAX = 1000
"""Pipelines that are starting at the same time: each is walked over at every announcement."""

_OVERDUE_SECONDS = 5.0
"""The reported remaining time of a start that takes longer than the last one."""


class StartTimes(Protocol):
    """How long starts took, as this worker and those before it have measured."""

    def seconds(self, name: str) -> float:
        """How long a start of this pipeline takes."""
        ...

    def keep(self, name: str, seconds: float) -> None: ...


class NoStartTimes:
    """Nothing was measured, and nothing is stored."""

    def seconds(self, name: str) -> float:  # noqa: ARG002
        return DEFAULT_START_SECONDS

    def keep(self, name: str, seconds: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the worker knows about the pipeline's newest generation."""

    at: float
    stopped: bool = False
    failed: bool = False
    failure: QueryFailure | None = None
    """Why it has failed, if its driver has reported that, as of `at`."""
    takes_epochs: bool = False
    """It has asked for one, or merged one."""
    first_epoch: int | None = None
    """The first epoch with events that its query got; None: it has got none."""
    is_warm: bool = False
    """That epoch is merged. Spark has compiled what later epochs use, and its Python processes run."""
    started_at: float = 0.0
    beat_at: float | None = None
    """The last heartbeat of the driver; `at` also counts what the query asks for. None: there was none."""
    asked_at: float | None = None
    """When its query last asked for an epoch, or merged one."""
    query: QueryReport | None = None
    """What the last heartbeat reported about the query, as of `beat_at`."""


_SURVIVOR = _Heard(0, takes_epochs=True, is_warm=True)
"""A generation that started before this worker did."""


@dataclass(frozen=True, slots=True)
class _Announced:
    first_at: float
    at: float
    sources: tuple[str, ...]


class Heartbeats:
    """`clock` counts seconds. Whatever a pipeline's newest generation asks for is a sign of life."""

    def __init__(self, lapse_seconds: float, clock: Callable[[], float], starts: StartTimes | None = None) -> None:
        self._lapse_seconds = lapse_seconds
        self._clock = clock
        self._starts = starts or NoStartTimes()
        self._heard: dict[str, _Heard] = {}
        self._announced: dict[str, _Announced] = {}
        self._began: dict[str, float] = {}
        """When the start that is in progress began."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a pipeline may have become ready, or has finished its first epoch."""

    def announce(self, pipelines: Mapping[str, Sequence[str]]) -> None:
        """A driver is starting Spark for them. Repeated until the pipelines start; otherwise it lapses. Raises
        LimitExceeded.
        """
        now = self._clock()
        self._announced = {one: announced for one, announced in self._announced.items() if self._is_announced(one)}
        if len(self._announced.keys() | pipelines.keys()) > _ANNOUNCED_MAX:
            raise LimitExceeded(f"more than {_ANNOUNCED_MAX} pipelines are starting")
        for name, sources in pipelines.items():
            known = self._announced.get(name)
            if known is None and self.state(name) != "STARTING":
                self._began[name] = now
            self._announced[name] = _Announced(now if known is None else known.first_at, now, tuple(sources))

    def started(self, name: str) -> None:
        """A driver has started a new generation."""
        if self.state(name) != "STARTING":
            self._began[name] = self._clock()
        self._heard[name] = _Heard(self._clock(), started_at=self._clock())
        self._announced.pop(name, None)

    def beat(
        self,
        name: str,
        *,
        stopped: bool = False,
        failed: bool = False,
        failure: QueryFailure | None = None,
        query: QueryReport | None = None,
    ) -> None:
        """`failed`: its query has ended with an error, which is known before the heartbeat lapses. `query`: what the
        driver knows about it.
        """
        heard = self._heard.get(name) or _SURVIVOR
        if failure is not None and not _is_same(failure, heard.failure):
            log.warning("pipeline %s: %s", name, failure)
        now = self._clock()
        heard = replace(heard, at=now, stopped=stopped, failed=failed, failure=failure, beat_at=now, query=query)
        self._hear(name, heard)

    def alive(self, name: str) -> None:
        """Its query asks for something. That may be the last question of a query whose driver has reported a failure,
        so only the next merge, or the next heartbeat, takes that back.
        """
        heard = self._heard.get(name) or _SURVIVOR
        self._hear(name, replace(heard, at=self._clock(), stopped=False))

    def asked(self, name: str) -> None:
        """Its query asks for an epoch, or reads one again: events that arrive from now on are processed."""
        self._took(name, replace(self._heard.get(name) or _SURVIVOR, takes_epochs=True))

    def got_epoch(self, name: str, epoch: int) -> None:
        """Its query gets an epoch with events."""
        heard = self._heard.get(name) or _SURVIVOR
        if heard.first_epoch is None:
            if not heard.is_warm:
                log.info("pipeline %s: its first epoch with events since Spark was started; requests wait for it", name)
            self._heard[name] = replace(heard, first_epoch=epoch)

    def merged(self, name: str, epoch: int) -> None:
        """All epochs up to this one are merged, or Spark has reported them done for its own sinks. A query may start
        with a batch without an epoch, or an epoch without events: these do not show how long the next one takes.
        """
        heard = self._heard.get(name) or _SURVIVOR
        is_warm = heard.is_warm or (heard.first_epoch is not None and heard.first_epoch <= epoch)
        self._took(name, replace(heard, takes_epochs=True, failed=False, failure=None, is_warm=is_warm))

    def _took(self, name: str, heard: _Heard) -> None:
        before = self._heard.get(name)
        if before is not None and not before.takes_epochs and (began := self._began.pop(name, None)) is not None:
            self._starts.keep(name, self._clock() - began)
        now = self._clock()
        self._hear(name, replace(heard, at=now, asked_at=now, stopped=False))

    def _hear(self, name: str, heard: _Heard) -> None:
        before, was_cold = self.state(name), self.is_on_first_epoch(name)
        self._heard[name] = heard
        if self.state(name) != before or self.is_on_first_epoch(name) != was_cold:
            self.on_change()

    def forget(self, name: str) -> None:
        for known in (self._heard, self._announced, self._began):
            known.pop(name, None)
        self.on_change()

    def age(self, name: str) -> float | None:
        """Seconds since the last heartbeat; None if there was none."""
        heard = self._heard.get(name)
        return None if heard is None else self._clock() - heard.at

    def driver_age(self, name: str) -> float | None:
        """Seconds since the last heartbeat of the driver itself; None if there was none."""
        heard = self._heard.get(name)
        return None if heard is None or heard.beat_at is None else self._clock() - heard.beat_at

    def asked_age(self, name: str) -> float | None:
        """Seconds since its query last asked for an epoch, or merged one."""
        heard = self._heard.get(name)
        return None if heard is None or heard.asked_at is None else self._clock() - heard.asked_at

    def query(self, name: str) -> QueryReport | None:
        """What is known about its query, as of now."""
        heard = self._heard.get(name)
        if heard is None or heard.query is None or heard.beat_at is None:
            return None
        return heard.query.later(self._clock() - heard.beat_at)

    def started_at(self, name: str) -> float:
        """When its generation was started, by the clock; 0 if that was before this worker."""
        heard = self._heard.get(name)
        return 0.0 if heard is None else heard.started_at

    def failure(self, name: str) -> QueryFailure | None:
        """Why it is FAILING, if its driver has reported that. The time until its restart is as of now."""
        heard = self._heard.get(name)
        if heard is None or heard.failure is None or self._clock() - heard.at > self._lapse_seconds:
            return None
        seconds = heard.failure.restart_in_seconds
        left = None if seconds is None else max(0.0, heard.at + seconds - self._clock())
        return replace(heard.failure, restart_in_seconds=left)

    def state(self, name: str) -> State:
        """A driver without a heartbeat since another one was announced counts as gone."""
        heard, announced = self._heard.get(name), self._announced.get(name) if self._is_announced(name) else None
        if heard is None or heard.stopped:
            return "STOPPED" if announced is None else "STARTING"
        if announced is not None and heard.at < announced.first_at:
            return "STARTING"
        if heard.failed or self._clock() - heard.at > self._lapse_seconds:
            return "FAILING"
        return "RUNNING" if heard.takes_epochs else "STARTING"

    def is_on_first_epoch(self, name: str) -> bool:
        """It has processed no event since its start: the first epoch with events takes longer than later ones."""
        heard = self._heard.get(name)
        return heard is None or not heard.is_warm

    def ready_in_seconds(self, name: str) -> float | None:
        """About how long until it takes events; None if it is not starting."""
        began = self._began.get(name)
        if began is None or self.state(name) != "STARTING":
            return None
        return max(self._starts.seconds(name) - (self._clock() - began), _OVERDUE_SECONDS)

    def announced(self) -> dict[str, tuple[str, ...]]:
        """Pipelines whose driver is starting Spark, with the sources that they will read."""
        return {name: one.sources for name, one in self._announced.items() if self._is_announced(name)}

    def _is_announced(self, name: str) -> bool:
        one = self._announced.get(name)
        return one is not None and self._clock() - one.at <= self._lapse_seconds


def _is_same(failure: QueryFailure, before: QueryFailure | None) -> bool:
    """Reported by several heartbeats, which differ in the time that is left until the restart."""
    return before is not None and replace(failure, restart_in_seconds=before.restart_in_seconds) == before
