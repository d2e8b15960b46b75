"""`metronome`: an event at every interval."""

import json
import time

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, ShownBy
from penstock.connectors.streams import ready_or_draining, until_draining
from penstock.connectors.values import SomeSeconds
from penstock.core.types import Guarantee


class MetronomeOptions(Options):
    """An event is `{"tick": NUMBER, "at_us": TIME}`. The number is the time since 1970 divided by the interval, and is
    also the event's id, so a restart repeats no tick. It is at-most-once: ticks that are due while the worker is down
    or the stream is paused are skipped. `cron` can catch up.
    """

    interval: SomeSeconds
    """The time between two ticks, such as `1s`."""


class Metronome(Connector[MetronomeOptions]):
    about = About(
        name="metronome",
        text="Sends an event at regular intervals.",
        options=MetronomeOptions,
        capabilities=Capabilities(source=Guarantee.AT_MOST_ONCE, resumes=True, own_event_times=True),
        example={"interval": "1s"},
        shown_by=ShownBy(
            source="tests/connectors/test_source_kills.py::test_each_number_is_stored_once_and_in_order_although_the_worker_is_killed",
        ),
    )

    async def run(self, host: Host) -> None:
        stream = await host.open_stream(f"every {self._interval_us} µs", resume=True)
        host.connected()
        last = stream.last_id
        while await ready_or_draining(stream, host):
            tick = self._tick(time.time())
            if tick > last:
                await stream.put([self._value(tick)], ids=[tick], event_times_us=[self._due_us(tick)])
                last = tick
            if await until_draining(host, self._due_us(last + 1) / 1e6 - time.time()):
                break
        await stream.cut_off("the connector is drained")

    def _tick(self, now: float) -> int:
        return int(now * 1e6) // self._interval_us

    def _due_us(self, tick: int) -> int:
        return tick * self._interval_us

    @property
    def _interval_us(self) -> int:
        return max(1, round(self.options.interval * 1e6))

    def _value(self, tick: int) -> bytes:
        return json.dumps({"tick": tick, "at_us": self._due_us(tick)}).encode()
