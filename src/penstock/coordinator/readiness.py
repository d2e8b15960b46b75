"""Whether the pipelines that read a source take its events now, and how long it may be until they do."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.machine.state import State
from penstock.protocol.api.pipelines import StartingPipeline

_LOOK_SECONDS = 1.0
"""How often to check: a killed driver reports nothing, so only its silence can be noticed."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why events would wait. `seconds`: for about how long, if that is known."""

    text: str
    seconds: int | None = None


class Readiness:
    """The readiness of all pipelines. Used in the worker's event loop."""

    def __init__(self, state: Callable[[], State], heartbeats: Heartbeats) -> None:
        self._state = state
        self._heartbeats = heartbeats
        self._changed = asyncio.Event()
        heartbeats.on_change = self._on_change

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def of(self, source: str) -> "SourceReadiness":
        return SourceReadiness(self, source)

    def not_ready(self, source: str) -> NotReady | None:
        """The registered pipeline on a source that will be ready last; None: all of them process events."""
        waiting = [self._not_ready(name) for name, state in self._states(source).items() if state != "RUNNING"]
        return max(waiting, key=lambda one: math.inf if one.seconds is None else one.seconds, default=None)

    def is_waited_for(self, source: str, *, by_all: bool) -> bool:
        """Whether to send events later: because none of the pipelines on the source runs, or, with `by_all`, because
        one of them is starting. A failed or stopped pipeline does not keep events from the others.
        """
        states = [*self._states(source).values()]
        return bool(states) and ("RUNNING" not in states or (by_all and "STARTING" in states))

    def _states(self, source: str) -> dict[str, str]:
        pipelines = self._state().pipelines.items()
        return {name: self._heartbeats.state(name) for name, one in pipelines if source in one.sources}

    def _not_ready(self, name: str) -> NotReady:
        match self._heartbeats.state(name):
            case "STARTING":
                seconds = self._heartbeats.ready_in_seconds(name)
                left = None if seconds is None else math.ceil(seconds)
                return NotReady(f"{name} is starting" + ("" if left is None else f", ready in about {left} s"), left)
            case "FAILING":
                if self._heartbeats.failure(name) is not None:  # senders need not know more
                    return NotReady(f"{name} is FAILING: its query has failed; penstock status shows why")
                age = round(self._heartbeats.age(name) or 0)
                return NotReady(f"{name} is FAILING: its driver has not been heard for {age} s")
            case _:
                return NotReady(
                    f"{name} is not running: start it with penstock run, or end it with penstock pipeline drop {name}"
                )

    async def ready(self, source: str, *, by_all: bool) -> None:
        """Return when `is_waited_for` is false."""
        while self.is_waited_for(source, by_all=by_all):
            await self._changed.wait()

    def is_on_first_epoch(self, source: str, *, by_all: bool) -> bool:
        """With `by_all`, whether one of the starting or running pipelines has not processed its first events yet;
        otherwise, whether none of them has.
        """
        alive = [name for name, state in self._states(source).items() if state in ("STARTING", "RUNNING")]
        cold = [self._heartbeats.is_on_first_epoch(name) for name in alive]
        return any(cold) if by_all else bool(cold) and all(cold)

    async def warm(self, source: str, *, by_all: bool) -> None:
        """Return when no first epoch is outstanding: it is merged, or its pipeline is gone."""
        while self.is_on_first_epoch(source, by_all=by_all):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    def starting(self) -> list[StartingPipeline]:
        """The pipelines that are starting, including those that are not registered yet because their driver is still
        starting Spark.
        """
        known = {name: sorted(one.sources) for name, one in self._state().pipelines.items()}
        announced = {name: sorted(sources) for name, sources in self._heartbeats.announced().items()}
        return [
            StartingPipeline(name, sources, self._heartbeats.ready_in_seconds(name))
            for name, sources in sorted((announced | known).items())
            if self._heartbeats.state(name) == "STARTING"
        ]


@dataclass(frozen=True, slots=True)
class SourceReadiness:
    """The readiness of the pipelines on one source, as its connector sees it."""

    _all: Readiness
    _source: str

    def not_ready(self) -> NotReady | None:
        return self._all.not_ready(self._source)

    def is_waited_for(self, *, by_all: bool) -> bool:
        return self._all.is_waited_for(self._source, by_all=by_all)

    async def ready(self, *, by_all: bool) -> None:
        await self._all.ready(self._source, by_all=by_all)

    def is_on_first_epoch(self, *, by_all: bool) -> bool:
        return self._all.is_on_first_epoch(self._source, by_all=by_all)

    async def warm(self, *, by_all: bool) -> None:
        await self._all.warm(self._source, by_all=by_all)
