"""What is held of streams leaves when they are open again: first, and in order."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import NoRoom, PenstockError
from penstock.delivery.outbox.giving import Refused, give
from penstock.delivery.outbox.held import HeldRecord
from penstock.delivery.outbox.host import SinkHost
from penstock.delivery.outbox.joining import Leaving, Waiting, bad_rows, through
from penstock.delivery.outbox.rows import WANTED, Row, rows_of
from penstock.delivery.outbox.storage import Storage
from penstock.protocol.stored.bulk import decode
from penstock.protocol.stored.names import Kind

if TYPE_CHECKING:
    from penstock.delivery.outbox.outflow import Outflow

log = logging.getLogger(__name__)

NO_ROOM_SECONDS = 1.0
"""Until dead letters that found no room are written again."""


class Draining:
    """Of one outflow, in a task of its own while there is something to do."""

    def __init__(self, outflow: "Outflow", storage: Storage) -> None:
        self._outflow = outflow
        self._storage = storage
        self._task: asyncio.Task[None] | None = None
        self._due: dict[StreamRef, None] = {}
        """Streams that may be open, and were not."""

    def start(self, stream: StreamRef | None) -> None:
        """It may be open, and was closed; None: any of them."""
        self._due |= dict.fromkeys(self._outflow.held.streams if stream is None else [stream])
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        outflow = self._outflow
        while self._due:
            due, self._due = self._due, {}
            await asyncio.sleep(0)  # whatever comes of it, others have their turn
            try:
                await self._drain_all(due)
            except NoRoom:
                self._due = due | self._due
                await asyncio.sleep(NO_ROOM_SECONDS)
            except PenstockError as error:  # of the whole connector: it goes on when that opens
                log.debug("connector %s: %s", outflow.connector, error)
            if not self._due and outflow.host is not None:
                outflow.host.probe_again()

    async def _drain_all(self, streams: Iterable[StreamRef]) -> None:
        outflow = self._outflow
        for stream in streams:
            host = outflow.host
            if host is not None and host.breakers.admits(host.name, stream):
                async with outflow.lock:
                    await self.drain(host, stream)

    async def drain(self, host: SinkHost, stream: StreamRef) -> None:
        """As far as the connector takes it. With the outflow's lock. Raises SinkLost, NoRoom."""
        held = self._outflow.held
        has_moved = False
        while (record := held.first(stream)) is not None and host.breakers.admits(host.name, stream):
            if not await self._drain_record(host, stream, record):
                break
            has_moved = True
        if has_moved:
            self._outflow.wake()  # there is room for more
        if stream not in held:
            host.signals.close_if_over(host.name, stream)

    async def _drain_record(self, host: SinkHost, stream: StreamRef, record: HeldRecord) -> bool:
        """Whether it has left, or is a dead letter."""
        held = self._outflow.held
        rows = await self._read(record)
        leaving, bad = _ready(host, record.epoch, rows)
        refused = None if leaving is None else await give(host, stream, leaving)
        if refused is not None and not refused.is_gone:
            return False
        buried = bad
        if refused is not None and leaving is not None:
            gone = {one.row for one in leaving.rows_at(refused.places)}
            buried = [row for row in rows if row in gone or row in bad]
        if buried:
            held.bury_held(stream, record, buried, (refused or _NEVER).reason)
            host.letters += len(buried)
        else:
            held.left(stream, record)
        return True

    async def _read(self, record: HeldRecord) -> list[Row]:
        await self._storage.durable(record.position)
        data = b""
        while len(data) < record.end - record.start:
            at = record.start + len(data)
            data += await self._storage.records.data(self._outflow.held.segment, at, record.end - at)
        return rows_of(decode(data, record.start, Kind.STORED, WANTED), record.first)


def _ready(host: SinkHost, epoch: str, rows: list[Row]) -> tuple[Leaving | None, list[Row]]:
    """What leaves of them, and those that no interceptor lets out."""
    try:
        return through(host.chain, epoch, rows), []
    except BadBytes:
        assert host.chain is not None
        bad = {one.row for one in bad_rows(host.chain, [Waiting(epoch, row) for row in rows])}
        good = [row for row in rows if row not in bad]
        return through(host.chain, epoch, good) if good else None, [row for row in rows if row in bad]


_NEVER = Refused("the interceptors of the way out cannot write it", is_gone=True)
