"""`bench`: events for load tests, and what arrives of them, counted and measured."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing, ShownBy, Stream
from penstock.connectors.streams import DRAINED, ready_or_draining, until_draining
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.sizes import format_size
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_BATCH_EVENTS = 1000
_BATCH_BYTES = 1 << 20
"""Events that are stored in one step, at most."""

_TICK_SECONDS = 0.01
"""Between two batches at a given rate."""

_REPLAYED_BYTES_MAX = 256 << 20
"""A file that is replayed is kept in memory."""

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
"""Upper bounds of the histogram's buckets."""

_BOUNDS_US = np.array(LATENCY_BOUNDS_MS) * 1000
_BUCKETS = (*(f"latency_to_{bound}ms" for bound in LATENCY_BOUNDS_MS), f"latency_over_{LATENCY_BOUNDS_MS[-1]}ms")


class BenchOptions(Options):
    """As a source it sends events of a fixed size, or the lines of a file over and over, at a given rate or as fast as
    they are stored. Their ids are 1, 2, 3 …, and their event times are the times at which they were made. After a
    restart it continues with the next number.

    As a sink it counts events and bytes, and measures the latency of each event, from its event time to its arrival:
    `latency_to_5ms` counts those that took more than 2 ms and at most 5 ms. `penstock status` and the metrics show
    these counts, and the log has a line with the rate and percentiles of each interval. Events without an event time
    have no latency.
    """

    size: Annotated[Size, Field(le=8 << 20)] = 100
    """The bytes of each event, all `x`. As a source, without `path`."""
    path: Path | None = None
    """A file whose lines are sent, over and over. As a source."""
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Events per second, for each stream. By default, as many as can be stored. As a source."""
    count: Annotated[int, Field(ge=1)] | None = None
    """How many events each stream sends. Then the source ends, and all its windows close. As a source."""
    streams: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many streams send at the same time. As a source."""
    report: SomeSeconds = 10.0
    """The interval of the lines in the log. As a sink."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path is not None and "size" in self.model_fields_set:
            raise ValueError("size and path exclude each other: the events are the lines of the file")
        return self


class Bench(Connector[BenchOptions]):
    about = About(
        name="bench",
        text="Sends generated events or a file's lines for load tests; as a sink, counts and measures what arrives.",
        options=BenchOptions,
        capabilities=Capabilities(
            source=Guarantee.EXACTLY_ONCE, sink=Guarantee.AT_LEAST_ONCE, resumes=True, own_event_times=True
        ),
        example={"size": 200, "rate": 5000, "count": 1_000_000},
        shown_by=ShownBy(
            source="tests/connectors/test_source_kills.py::test_each_number_is_stored_once_and_in_order_although_the_worker_is_killed",
            sink="tests/connectors/test_load_test.py::test_a_delivery_that_has_failed_is_counted_again",
        ),
    )

    clock: Callable[[], float] = staticmethod(time.time)

    def __init__(self, options: BenchOptions) -> None:
        super().__init__(options)
        self._arrived = Arrived()

    async def run(self, host: Host) -> None:
        host.connected()
        reporting = asyncio.create_task(self._report_all(host))
        try:
            if host.has_out:
                await self._send_all(await self._values(), host)
            if host.has_in:
                await reporting
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    # The source.

    async def _values(self) -> Sequence[bytes]:
        if self.options.path is None:
            return [b"x" * self.options.size]
        try:
            return await asyncio.to_thread(lines_of, self.options.path)
        except OSError as error:
            raise Lost(f"{self.options.path} cannot be read: {error.strerror or error}") from error

    async def _send_all(self, values: Sequence[bytes], host: Host) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.options.streams):
                stream = await host.open_stream(f"bench {number}", resume=True)
                group.create_task(self._send(stream, values, host))
        if not host.is_draining:
            host.finished()

    async def _send(self, stream: Stream, values: Sequence[bytes], host: Host) -> None:
        batch_max = max(1, min(_BATCH_EVENTS, _BATCH_BYTES // max(map(len, values))))
        sent, began, first = stream.last_id, self.clock(), stream.last_id
        upcoming = islice(cycle(values), sent % len(values), None)
        while await ready_or_draining(stream, host):
            wanted = min(batch_max, self._due(sent - first, self.clock() - began), self._left(sent))
            if wanted > 0:
                now = [int(self.clock() * 1e6)] * wanted
                batch = [*islice(upcoming, wanted)]
                await stream.put(batch, ids=range(sent + 1, sent + wanted + 1), event_times_us=now)
                sent += wanted
            if not self._left(sent):
                await stream.finish()
                await stream.close()
                return
            if wanted < batch_max and await until_draining(host, _TICK_SECONDS):
                break
        await stream.cut_off(DRAINED)

    def _due(self, sent: int, seconds: float) -> int:
        rate = self.options.rate
        return _BATCH_EVENTS if rate is None else max(0, int(seconds * rate) - sent)

    def _left(self, sent: int) -> int:
        return _BATCH_EVENTS if self.options.count is None else max(0, self.options.count - sent)

    # The sink.

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        times = [at for at in outgoing.event_times_us if at is not None]
        buckets = self._arrived.add(len(outgoing.values), sum(map(len, outgoing.values)), times, self.clock())
        host.count("arrived_events", len(outgoing.values))
        host.count("arrived_bytes", sum(map(len, outgoing.values)))
        for place in np.flatnonzero(buckets):
            host.count(_BUCKETS[place], int(buckets[place]))

    async def _report_all(self, host: Host) -> None:
        while not await until_draining(host, self.options.report):
            self._report(host)
        self._report(host)

    def _report(self, host: Host) -> None:
        line = self._arrived.line(self.clock())
        if line:
            log.info("%s: %s", host.name, line)


class Arrived:
    """What has arrived since the last line: its rate, and a histogram of its latency."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._events = self._bytes = 0
        self._buckets = np.zeros(len(_BUCKETS), np.int64)
        self._longest_us = 0

    def add(
        self, events: int, size: int, times_us: Sequence[int], now: float
    ) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Returns how many of them are in each bucket."""
        self._began = now if self._began is None else self._began
        self._events += events
        self._bytes += size
        latencies = np.maximum(int(now * 1e6) - np.array(times_us, np.int64), 0)
        buckets = np.bincount(np.searchsorted(_BOUNDS_US, latencies), minlength=len(_BUCKETS)).astype(np.int64)
        self._buckets += buckets
        self._longest_us = max([self._longest_us, *(latencies.max(keepdims=True).tolist() if len(latencies) else [])])
        return buckets

    def line(self, now: float) -> str:
        """For people; "" if nothing has arrived. It starts from scratch."""
        if not self._events or self._began is None:
            return ""
        seconds = max(now - self._began, 1e-3)
        text = f"{self._events / seconds:,.0f} events/s, {self._bytes / seconds / 1e6:,.2f} MB/s"
        if self._buckets.any():
            p50, p99 = self._percentile(0.5), self._percentile(0.99)
            text += f"; latency p50 {p50}, p99 {p99}, longest {self._longest_us / 1000:,.1f} ms"
        self._began = now
        self._clear()
        return text

    def _percentile(self, share: float) -> str:
        place = int(np.searchsorted(np.cumsum(self._buckets), share * self._buckets.sum()))
        is_last = place >= len(LATENCY_BOUNDS_MS)
        return f"> {LATENCY_BOUNDS_MS[-1]} ms" if is_last else f"≤ {LATENCY_BOUNDS_MS[place]} ms"


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file that is not too large. Raises OSError, and Lost if there are none."""
    if path.stat().st_size > _REPLAYED_BYTES_MAX:
        raise Lost(
            f"{path} has more than {format_size(_REPLAYED_BYTES_MAX)}", "Use a part of it: the file is kept in memory."
        )
    found = [line for line in path.read_bytes().splitlines() if line]
    if not found:
        raise Lost(f"{path} has no lines")
    return found
