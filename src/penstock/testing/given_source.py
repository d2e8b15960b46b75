"""A source whose events a test provides: a connector like any other, run by the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Options, Stream
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.ingest.out_ports.host import SourceHost
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.stored.event import NO_TIME

if TYPE_CHECKING:
    from penstock.testing.events import StoredForm
    from penstock.worker.worker import Worker


class _Given(Connector[Options]):
    """Sends nothing by itself."""

    about = About(
        "given",
        "Events of a test.",
        Options,
        Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=True),
    )


class GivenSource:
    """Everything is called in the worker's event loop. What a call has stored is durable when it returns."""

    def __init__(self, worker: Worker, name: str, max_disorder_us: int, spec: ConnectorSpec | None = None) -> None:
        """`spec`: of the connector in whose place it is. Its watermark settings and quota apply."""
        self.name = name
        plain = ConnectorSpec(name=name, id=name, instance="01", type="given")
        # One segment: rows of a pipeline without a shuffle come out in the order of the events.
        spec = replace(
            spec or plain, name=name, type="given", config={}, segments=1, interceptors_in=(), interceptors_out=()
        )
        spec = replace(spec, max_disorder_us=max(max_disorder_us, spec.max_disorder_us), event_time_ingest=False)
        self._worker = worker
        self._host = SourceHost(spec, _Given(Options()), worker.sources)
        self._streams: dict[str, Stream] = {}

    async def start(self) -> None:
        self._host.start()

    async def stop(self) -> None:
        await self._host.stop()

    async def open(self, stream: str) -> Stream:
        if stream not in self._streams:
            self._streams[stream] = await self._host.open_stream(stream, resume=True)
        return self._streams[stream]

    async def send(self, events: Sequence[StoredForm]) -> None:
        """In this order. A stream is opened by its first event. Raises RequestError, before anything is stored, for an
        event time beside the data of a connector that finds it in a field of them.
        """
        self._check_times(events)
        for name, run in groupby(events, lambda event: event.stream):
            given = [*run]
            stream = await self.open(name)
            await stream.put(
                [event.value for event in given],
                event_times_us=[event.time_us for event in given],
                keys=[event.key for event in given],
                metadata=[event.metadata for event in given],
            )
        await self._worker.sources.durability.caught_up()

    def _check_times(self, events: Sequence[StoredForm]) -> None:
        field = self._host.spec.event_time
        if field is not None and any(event.time_us != NO_TIME for event in events):
            raise RequestError(
                f"an event of {self.name!r} has an event time, but this connector takes it from the field "
                f"{field.field!r} of the data",
                f"Write it there, in the format {field.format!r}; a document with a field `event_time` is "
                "Event(data={…}).",
            )

    async def declare_watermark(self, time_us: int) -> None:
        """For all open streams."""
        await self._worker.declarations().watermark(self.name, time_us)

    async def end(self) -> None:
        """For good."""
        await self._worker.declarations().end(self.name)
