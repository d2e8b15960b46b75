"""Sends rows through a port, retains them in the outbox, or turns them into dead letters; retained rows are
sent later.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.sink_api import SinkLost
from penstock.core.errors import NoRoom, PenstockError
from penstock.core.supervisor import Supervised, Supervisor
from penstock.delivery.outbox.epochs import EpochsInProgress
from penstock.delivery.outbox.in_port import InPort
from penstock.delivery.outbox.outbox import Outbox, OutboxRecord
from penstock.delivery.outbox.rows import (
    EpochRow,
    EpochRows,
    ReadyRows,
    Row,
    Rows,
    StreamBuffer,
    by_epoch,
    flushed,
    rejected_rows,
    size_of,
)

log = logging.getLogger(__name__)

NO_ROOM_SECONDS = 1.0
"""The pause before writing dead letters again for which there was no room."""

_REJECTED = "the outgoing interceptors cannot encode it"


class Sender:
    """The sender of one sink. The rows of a stream are settled in order: first those that were sent, then the others,
    whose outcome is written.
    """

    def __init__(self, outbox: Outbox, epochs: EpochsInProgress) -> None:
        self._outbox = outbox
        self._epochs = epochs

    async def send(self, port: InPort, stream: StreamRef | None, ready: ReadyRows, following: list[EpochRow]) -> bool:
        """Send the rows. Return False if they were retained, together with those `following` them. After SinkLost or
        NoRoom the epoch must be delivered again.
        """
        refused = await port.send(stream, ready)
        if refused is not None and not refused.is_final:
            assert stream is not None, "rows of no stream are refused together with the whole connector"
            self.retain(port, stream, [*ready.rows, *following])
            return False
        if refused is not None:
            self._add_dead_letters(port, stream, dict.fromkeys(ready.rows_at(refused.places), refused.reason))
        self._settle(stream, ready.rows)
        return True

    async def send_valid(self, port: InPort, stream: StreamRef | None, rows: list[EpochRow]) -> None:
        """Turn the rows that the interceptors reject into dead letters, and send the others at once."""
        assert port.chain is not None
        dead_letters = rejected_rows(port.chain, rows)
        ready = _flushed(port, [one for one in rows if one not in dead_letters])
        refused = None if ready is None else await port.send(stream, ready)
        if refused is not None and not refused.is_final:
            assert stream is not None, "rows of no stream are refused together with the whole connector"
            self.retain(port, stream, rows)
            return
        if refused is not None and ready is not None:
            dead_letters |= dict.fromkeys(ready.rows_at(refused.places), refused.reason)
        self._add_dead_letters(port, stream, {one: dead_letters[one] for one in rows if one in dead_letters})
        self._settle(stream, rows)

    def retain(self, port: InPort, stream: StreamRef, rows: list[EpochRow]) -> None:
        """Raises SinkLost if the outbox would exceed its limit, and NoRoom."""
        size, limit = size_of(one.row for one in rows), port.spec.breaker.outbox_bytes_max
        if port.outbox_bytes + size > limit:
            raise SinkLost(
                f"connector {port.name}: {size:,} bytes of tripped streams do not fit into the outbox "
                f"({port.outbox_bytes:,} of {limit:,} bytes used)",
                "It continues when some of these streams pass again; or raise breaker: outbox_max.",
            )
        for epoch, run in by_epoch(rows):
            self._outbox.retain(epoch, stream, run)
        self._settle(stream, rows)

    def _add_dead_letters(self, port: InPort, stream: StreamRef | None, dead_letters: dict[EpochRow, str]) -> None:
        """Write each row with its reason, in order. The rows before them in their stream were sent."""
        for (epoch, reason), run in groupby(dead_letters, key=lambda one: (one.epoch, dead_letters[one])):
            self._outbox.add_dead_letters(epoch, stream, [one.row for one in run], reason)
        port.dead_letters += len(dead_letters)

    def _settle(self, stream: StreamRef | None, rows: Sequence[EpochRow]) -> None:
        for epoch, run in by_epoch(rows):
            self._epochs.settle(epoch, stream, run)


def _flushed(port: InPort, rows: list[EpochRow]) -> ReadyRows | None:
    """Pass all rows through separate interceptors."""
    assert port.chain is not None
    buffer = StreamBuffer(port.chain())
    parts = [buffer.feed(epoch, run, port.clock()) for epoch, run in by_epoch(rows)]
    return ReadyRows.concat([*parts, buffer.flush()])


class OutboxDrain:
    """Sends retained rows of streams that pass again, in order and before newer rows. Runs in its own task while there
    is something to do.

    It takes `lock` while it handles one stream, and calls `freed` when there is room for more.
    """

    def __init__(
        self, outbox: Outbox, lock: asyncio.Lock, freed: Callable[[], None], supervisor: Supervisor, name: str
    ) -> None:
        """`name` is that of the task."""
        self._outbox = outbox
        self._lock = lock
        self._freed = freed
        self._supervisor = supervisor
        self._name = name
        self._task: Supervised | None = None
        self._due: dict[StreamRef, None] = {}
        """Streams that may pass again."""

    def start(self, port: InPort, stream: StreamRef | None) -> None:
        """The stream may pass again; None: any of them. Call `stop` before the port changes."""
        self._due |= dict.fromkeys(self._outbox.streams if stream is None else [stream])
        if self._due and (self._task is None or self._task.has_returned or self._task.finished.is_set()):
            self._task = self._supervisor.run(self._name, lambda: self._run(port))

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _run(self, port: InPort) -> None:
        while self._due:
            due, self._due = self._due, {}
            await asyncio.sleep(0)  # yield to other tasks in any case
            try:
                await self._drain_all(port, due)
            except NoRoom:
                self._due = due | self._due
                await asyncio.sleep(NO_ROOM_SECONDS)
            except PenstockError as error:  # the whole connector is lost: the drain continues when it passes again
                log.debug("connector %s: %s", port.name, error)
            except Exception:  # the next run sends the same
                self._due = due | self._due
                raise
            if not self._due:
                port.probe_again()

    async def _drain_all(self, port: InPort, streams: Iterable[StreamRef]) -> None:
        for stream in streams:
            if port.breakers.admits(port.name, stream):
                async with self._lock:
                    await self.drain(port, stream)

    async def drain(self, port: InPort, stream: StreamRef) -> None:
        """Send as much as the connector accepts. The caller has the lock. Raises SinkLost, NoRoom."""
        has_sent = False
        while (record := self._outbox.first(stream)) is not None and port.breakers.admits(port.name, stream):
            if not await self._send(port, stream, record):
                break
            has_sent = True
        if has_sent:
            self._freed()
        if stream not in self._outbox:
            port.signals.close_if_ended(port.name, stream)

    async def _send(self, port: InPort, stream: StreamRef, record: OutboxRecord) -> bool:
        """Return whether the record is done: sent, or turned into dead letters."""
        rows = await self._outbox.read(record)
        ready, rejected = _valid(port, record.epoch, rows)
        refused = None if ready is None else await port.send(stream, ready)
        if refused is not None and not refused.is_final:
            return False
        dead_letters = rejected
        if refused is not None and ready is not None:
            gone = {one.row for one in ready.rows_at(refused.places)}
            dead_letters = [row for row in rows if row in gone or row in rejected]
        if dead_letters:
            self._outbox.drop_first(stream, record, dead_letters, _REJECTED if refused is None else refused.reason)
            port.dead_letters += len(dead_letters)
        else:
            self._outbox.remove_first(stream, record)
        return True


def _valid(port: InPort, epoch: str, rows: Rows) -> tuple[ReadyRows | None, list[Row]]:
    """What can be sent of the rows, and those that the interceptors reject."""
    try:
        return flushed(port.chain, epoch, rows), []
    except BadBytes:
        assert port.chain is not None
        bad = {one.row for one in rejected_rows(port.chain, EpochRows(epoch, rows))}
        good = Rows.of([row for row in rows if row not in bad])
        return flushed(port.chain, epoch, good) if good else None, [row for row in rows if row in bad]
