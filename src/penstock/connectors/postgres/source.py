"""The mode `changes` of `postgres`: a session of replication, its events in the stream, and acknowledgements back."""

import asyncio

from penstock.connectors.api import Host, Stream
from penstock.connectors.postgres.changes import Batch, Safe
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.replication import REPORT_SECONDS, Session
from penstock.connectors.streams import first_of, ready_or_draining
from penstock.connectors.threaded import OneThread


class Acknowledgement:
    """How far the server may forget: what has become complete, by the stream's events."""

    def __init__(self, stream: Stream) -> None:
        self.lsn = 0
        self._stream = stream
        self._offered: Safe | None = None
        self._is_offered = asyncio.Event()

    def offer(self, safe: Safe) -> None:
        # Before the first change of this session, everything that is stored must be complete.
        self._offered = safe if safe.id else Safe(self._stream.last_id, safe.lsn)
        self._is_offered.set()

    @property
    def is_up_to_date(self) -> bool:
        return self._offered is None

    async def run(self) -> None:
        """Always waits for the latest offer: the next one has it included."""
        while True:
            await self._is_offered.wait()
            self._is_offered.clear()
            offered = self._offered
            assert offered is not None
            await self._stream.complete(offered.id)
            self.lsn = max(self.lsn, offered.lsn)
            if self._offered is offered:
                self._offered = None


class ChangesSource:
    """One life of the connection."""

    def __init__(self, options: PostgresOptions, host: Host, confirmed: int = 0) -> None:
        """`confirmed`: that of the life before, or 0."""
        self._options = options
        self._host = host
        self._session = Session(options, host.name, confirmed)
        self._thread = OneThread(f"{host.name} (slot {options.slot})")

    @property
    def confirmed(self) -> int:
        """The highest position that the slot can have, unless it is not the same one; 0 if it is not known."""
        return self._session.confirmed

    async def run(self) -> None:
        """Until the connector is drained. Raises Lost."""
        stream = await self._host.open_stream(f"slot {self._options.slot}", resume=True)
        try:
            has_snapshot = await self._thread.call(self._session.open, stream.last_id)
            if not has_snapshot or await self._snapshot(stream):
                await self._thread.call(self._session.start)
                self._host.connected()
                await self._acknowledged(stream)
        finally:
            self._thread.stop(self._session.close)
            await stream.close()

    async def _snapshot(self, stream: Stream) -> bool:
        """False: it was drained in the middle. The next one starts over."""
        self._host.connected()
        while await ready_or_draining(stream, self._host):
            batch = await self._thread.call(self._session.read_snapshot)
            if batch is None:
                await stream.durable(stream.last_id)
                await self._thread.call(self._session.end_snapshot)
                return True
            await _put(stream, batch)
        return False

    async def _acknowledged(self, stream: Stream) -> None:
        acknowledgement = Acknowledgement(stream)
        completing = asyncio.create_task(acknowledgement.run())
        try:
            await self._follow(stream, acknowledgement)
            # A drain waits for the stream, not for this: what pipelines still complete is not sent again.
            await stream.close()
            while not acknowledgement.is_up_to_date:
                await self._report(acknowledgement)
                await asyncio.sleep(_LAST_SECONDS)
            await self._report(acknowledgement)
        finally:
            completing.cancel()
            await asyncio.gather(completing, return_exceptions=True)

    async def _follow(self, stream: Stream, acknowledgement: Acknowledgement) -> None:
        while not self._host.is_draining:
            if not stream.may_send:
                await first_of(ready_or_draining(stream, self._host), asyncio.sleep(REPORT_SECONDS))
                await self._report(acknowledgement)
                continue
            batch = await self._thread.call(self._session.read, acknowledgement.lsn)
            await _put(stream, batch)
            if batch.safe is not None:
                acknowledgement.offer(batch.safe)

    async def _report(self, acknowledgement: Acknowledgement) -> None:
        await self._thread.call(self._session.report, acknowledgement.lsn)


_LAST_SECONDS = 0.2
"""Between two looks at what pipelines have completed, in a drain."""


async def _put(stream: Stream, batch: Batch) -> None:
    if batch.values:
        await stream.put(batch.values, ids=batch.ids, event_times_us=batch.times_us, keys=batch.keys)
