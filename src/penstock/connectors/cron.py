"""`cron`: an event at each time of a cron expression."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from itertools import islice, takewhile
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, ShownBy, Stream
from penstock.connectors.streams import ready_or_draining, until_draining
from penstock.core.types import Guarantee

_CAUGHT_UP_AT_ONCE = 1000
"""Missed times that are found, and stored, in one step: a year of minutes takes 526 of them."""

_WAIT_SECONDS_MAX = 60.0
"""The longest wait before the clock is read again: it may be set, and a machine may sleep."""


class CronOptions(Options):
    """An event is `{"at": "2026-01-31T06:30:00+01:00", "at_us": MICROSECONDS}`: the time at which it was due, which is
    also its event time. Its id is the same time in seconds since 1970, so a restart repeats no event, and `catch_up`
    leaves none out.

    The time zone decides what an expression means when clocks change, as in Debian's cron: an expression with a fixed
    hour that falls into the skipped hour is due right after it; one that falls into the repeated hour is due once.
    """

    expression: Annotated[str, Field(min_length=1)]
    """Five fields: minute, hour, day of the month, month, day of the week, like `*/15 8-18 * * MON-FRI`. Six fields
    begin with the second."""
    timezone: Annotated[str, Field(min_length=1)] = "UTC"
    """A name from the time zone database, like `Europe/Berlin`."""
    missed: Literal["skip", "catch_up"] = "skip"
    """Times that pass while the worker is down: `skip` leaves them out; `catch_up` sends all of them since the last
    event when it is back. Of the times that pass while the stream is paused, `skip` sends the last one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        zone_of(self.timezone)
        if next(_after(self.expression, UTC, 0), None) is None:
            raise ValueError("the expression matches no time")
        return self


class Cron(Connector[CronOptions]):
    about = About(
        name="cron",
        text="Sends an event at each time of a cron expression.",
        options=CronOptions,
        capabilities=Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=True),
        extra="cron",
        example={"expression": "30 6 * * MON-FRI", "timezone": "Europe/Berlin"},
        shown_by=ShownBy(
            source="tests/connectors/test_source_kills.py::test_each_number_is_stored_once_and_in_order_although_the_worker_is_killed",
        ),
    )

    clock: Callable[[], float] = staticmethod(time.time)
    """So that a test can set the time."""

    async def run(self, host: Host) -> None:
        stream = await host.open_stream(f"{self.options.expression} {self.options.timezone}", resume=True)
        host.connected()
        since = self._first(stream.last_id, self.clock())
        while await ready_or_draining(stream, host):
            since = await self._send_due(stream, since)
            due = next(self.times_after(since), None)
            if due is None:
                break
            if await until_draining(host, min(max(due - self.clock(), 0), _WAIT_SECONDS_MAX)):
                break
        await stream.cut_off("the connector is drained")

    def _first(self, last: int, now: float) -> int:
        """The time after which the first event is due."""
        return last if self.options.missed == "catch_up" and last else max(last, int(now))

    async def _send_due(self, stream: Stream, since: int) -> int:
        """Send what is due after `since`. Returns the last time that is dealt with."""
        due = [*islice(takewhile(lambda at: at <= self.clock(), self.times_after(since)), _CAUGHT_UP_AT_ONCE)]
        if not due:
            return since
        is_all = self.options.missed == "catch_up"
        sent = due if is_all else due[-1:] if len(due) < _CAUGHT_UP_AT_ONCE else []  # the last one is not among them
        await stream.put([self._value(at) for at in sent], ids=sent, event_times_us=[at * 1_000_000 for at in sent])
        return due[-1]

    def times_after(self, second: int) -> Iterator[int]:
        """The times of the expression after this one, in seconds since 1970."""
        return _after(self.options.expression, self._zone, second)

    @cached_property
    def _zone(self) -> tzinfo:
        return zone_of(self.options.timezone)

    def _value(self, at: int) -> bytes:
        written = datetime.fromtimestamp(at, self._zone).isoformat()
        return json.dumps({"at": written, "at_us": at * 1_000_000}).encode()


def zone_of(name: str) -> tzinfo:
    """Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError("the time zone is not known here: expected a name like Europe/Berlin") from None


def _after(expression: str, zone: tzinfo, second: int) -> Iterator[int]:
    """Strictly growing. Raises ValueError if the expression is not valid."""
    from cronsim import CronSim, CronSimError

    try:
        found = CronSim(expression, datetime.fromtimestamp(second, zone))
    except CronSimError as error:
        raise ValueError(f"not a valid cron expression: {error}") from None
    last = second
    for moment in found:
        at = int(moment.timestamp())
        if at > last:  # where clocks change, two of its local times can be one
            last = at
            yield at
