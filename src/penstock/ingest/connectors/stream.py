"""A hosted stream: what its connector sends goes through the interceptors into the store, as fast as it may.

open ──bad bytes, close after finish, or of one that cannot resume──▶ ended
open ──close without finish, of one that resumes──▶ left: opened again at its position, with nothing lost
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import NoRoom, RequestError
from penstock.core.types import Buffer
from penstock.ingest.connector import Batch, Placed, active_again, ended
from penstock.ingest.connectors.admission import VALUE_BYTES_MAX, new_only, packed, record_slices, rows_of, sizes_of
from penstock.ingest.connectors.numbering import CUT_BITS, counted, going_on, position, reaching, since
from penstock.ingest.connectors.places import Place, Places
from penstock.ingest.settings import AckMode
from penstock.ingest.stored_batch import Values, columns, stored_batch
from penstock.ingest.stream_log import KnownStream
from penstock.protocol.connector import NOTHING_YET
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import Mark

if TYPE_CHECKING:
    from penstock.ingest.connectors.host import SourceHost

SEND_BYTES = 1 << 19
"""Raw bytes that interceptors are given at once: with a record for each byte they are still fewer than SINCE_MAX."""

ON_ARRIVAL = NO_TIME
"""In the place of event times: they are those of the moment in which the events are stored."""


class HostedStream:
    """As `connectors.api.Stream`. Owned by its host. One call at a time goes on; others wait for their turn."""

    def __init__(
        self,
        host: "SourceHost",
        ref: StreamRef,
        name: str,
        known: KnownStream,
        metadata: Mapping[str, Any] | None,
        *,
        resumes: bool,
    ) -> None:
        self.ref = ref
        self.name = name
        self.resumes = resumes
        self._host = host
        self._connector = host.connector
        self._known = known
        self._told = dict(metadata or {})
        self._packed = self._packed_last = packed(metadata)
        """Of all its events, and of those of the last `send`: what interceptors hold came with that."""
        self._skip = since(self.last_id) if resumes else 0
        self._chain = host.chains.incoming(resumes=resumes, position=self.position if resumes else 0)
        self._places = Places()
        self._turn = asyncio.Lock()
        self._is_finished = self._is_closing = False
        self.closed = asyncio.Event()
        self._opened = asyncio.Event()

    @property
    def last_id(self) -> int:
        return 0 if self._known.last_id == NOTHING_YET else self._known.last_id

    @property
    def position(self) -> int:
        return position(self.last_id)

    # Whether it may send.

    def let_send(self, may_send: bool) -> None:
        """The gate has decided."""
        if may_send:
            self._opened.set()
            self._connector.stays_away(self.ref.stream_id)
        elif not self._is_closing and not self._host.is_draining:
            self._opened.clear()
            self._connector.away.remove(self.ref.stream_id)

    @property
    def is_let(self) -> bool:
        return self._opened.is_set()

    @property
    def may_send(self) -> bool:
        host = self._host
        is_let = self._opened.is_set() and not self._is_closing and not host.is_draining
        return is_let and host.ground.window.is_open and host.ground.room.there

    async def ready(self) -> None:
        while not self.may_send:
            self._check_open()
            if self._host.is_draining:
                await self.closed.wait()
            elif not self._opened.is_set():
                await self._opened.wait()
            else:
                await self._wait_for_room()

    async def _admitted(self) -> None:
        """What was read before a drain is stored all the same, whoever has closed the stream, and beyond the quota: it
        is no more than one call's, and nobody may ever make room.
        """
        while True:
            self._check_open()
            has_room = self._host.is_draining or self._host.ground.room.there
            if not self._opened.is_set():
                await self._opened.wait()
            elif self._host.ground.window.is_open and has_room:
                return
            else:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        if not self._host.ground.window.is_open:
            await self._host.ground.window.wait()
            return
        waiting = [asyncio.ensure_future(self._host.ground.room.wait()), asyncio.ensure_future(self._host.draining())]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for task in done:
            task.result()

    def _check_open(self) -> None:
        if self._is_closing:
            raise RequestError(f"stream {self.name!r} of {self.ref.connector!r} is closed", "Open another one.")

    def drain(self) -> None:
        """Nothing more is read of it."""
        self._opened.set()

    # Sending.

    async def send(self, data: Buffer, *, metadata: Mapping[str, Any] | None = None) -> int:
        told = packed({**self._told, **metadata}) if metadata else self._packed
        async with self._turn:
            for piece in self._pieces(data):
                await self._admitted()
                await self._feed(piece, told)
        return self.last_id

    def _pieces(self, data: Buffer) -> Iterator[bytes]:
        if not self._host.has_interceptors or len(data) <= SEND_BYTES:
            if data:
                yield bytes(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            yield bytes(view[start : start + SEND_BYTES])

    async def _feed(self, data: bytes, told: bytes) -> None:
        self._is_finished, self._packed_last = False, told
        try:
            await self._keep(_checked(self._chain.feed(data)), told)
        except BadBytes as bad:
            await self._letter(bad.data, str(bad))
            await self._keep(bad.records, told)
            await self._pass_over()
            await self._end()
            raise

    async def put(
        self,
        values: Sequence[bytes],
        *,
        ids: Sequence[int] | None = None,
        event_times_us: Sequence[int] | None = None,
        keys: Sequence[bytes] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        told = self._packed if metadata is None else [packed({**self._told, **one}) for one in metadata]
        async with self._turn:
            await self._admitted()
            numbers = counted(self.last_id, len(values)) if ids is None else ids
            times = ON_ARRIVAL if event_times_us is None else event_times_us
            given = Values(values, numbers, times, keys, told)
            if values:
                await self._put(given if ids is None else new_only(given, self.last_id), len(values))
        return self.last_id

    async def _put(self, values: Values, count: int) -> None:
        self._host.count_duplicates(count - len(values.values))
        if values.values:
            for rows in record_slices(sizes_of(values)):
                await self._append(rows_of(values, rows))

    async def finish(self) -> int:
        async with self._turn:
            self._check_open()
            await self._finish()
        return self.last_id

    async def _finish(self) -> None:
        try:
            await self._keep(_checked(self._chain.finish()), self._packed_last)
        except BadBytes as bad:
            await self._letter(bad.data, str(bad))
            await self._keep(bad.records, self._packed_last)
            await self._pass_over()
        self._is_finished = True

    async def cut_off(self, reason: str) -> None:
        async with self._turn:
            if not self._is_closing:
                data = self._chain.cut_off()
                if data and not self.resumes:
                    await self._letter(data, reason)
                await self._close(is_over=not self.resumes)

    # Storing.

    async def _keep(self, records: Sequence[bytes], told: bytes) -> None:
        """Those of a stream that resumes go up to the cut where the interceptors are."""
        if self._skip and records:
            skipped = min(self._skip, len(records))
            self._skip -= skipped
            self._host.count_duplicates(skipped)
            records = records[skipped:]
        if not records:
            return
        slices = [*record_slices([len(record) + len(told) for record in records])]
        for rows in slices:
            part = records[rows]
            ids = self._ids(len(part), is_last=rows is slices[-1])
            await self._append(Values(part, ids, ON_ARRIVAL, metadata=told))

    def _ids(self, count: int, *, is_last: bool) -> range:
        if not self.resumes:
            return counted(self.last_id, count)
        return reaching(self.last_id, count, self._chain.consumed) if is_last else going_on(self.last_id, count)

    async def _append(self, values: Values) -> None:
        batch, placed = await self._stored(partial(self._batch, values))
        self._known.last_id = values.ids[-1]
        self._connector.stays_away(self.ref.stream_id)
        self._places.add(Place(values.ids[-1], placed.position, placed.end))
        self._places.prune(self._host.gateway.store.journal.durable, self._completed)
        self._host.stored(batch.events, len(batch.data), placed.position)

    @property
    def _completed(self) -> float:
        return self._host.completed(self._known.route)

    def _batch(self, values: Values) -> Batch:
        """To be stored at once: no mark of the clock may come between an event's time of arrival and its place in the
        journal.
        """
        if isinstance(values.times_us, int):  # ON_ARRIVAL
            self._connector.brings_no_times()
            values = replace(values, times_us=self._connector.clock.now())
        else:
            self._connector.brings_own_times()
        return stored_batch(self._known.route, self.ref.stream_id, values)

    async def _stored(self, make: Callable[[], Batch]) -> tuple[Batch, Placed]:
        """Waits for room. What cannot be stored before a stream that resumes is left is read again."""
        while True:
            waking = [active_again(self.ref.stream_id)] if self.ref.stream_id in self._connector.idle else []
            try:
                batch = make()
                return batch, self._connector.append([batch._replace(marks=[*waking, *batch.marks])])[0]
            except NoRoom:
                await self._hold()

    async def _hold(self) -> None:
        """What is in hand, until there is room."""
        try:
            await self._host.ground.room.wait()
        except asyncio.CancelledError:
            if self.resumes:  # the interceptors are ahead of what is stored
                self._leave()
            raise

    async def _pass_over(self) -> None:
        """What is a letter is not read again by a stream that resumes: that is stored without an event."""
        end = self._chain.consumed << CUT_BITS
        if self.resumes and end > self.last_id:
            await self._stored(partial(self._told_batch, [], end))
            self._known.last_id = end

    def _told_batch(self, marks: Sequence[Mark], last_id: int | None = None) -> Batch:
        batch = Batch(self._known.route, marks)
        return batch if last_id is None else batch._replace(streams=columns(self.ref.stream_id, last_id, NO_TIME))

    async def _letter(self, data: bytes, reason: str) -> None:
        await self._host.letters.write(data, reason, self.ref, self.name, self._told)

    # Waiting for what was sent.

    async def durable(self, event_id: int) -> None:
        place = self._places.find(event_id)
        if place is not None:
            await self._host.durable(place.position)

    async def complete(self, event_id: int) -> None:
        place = self._places.find(event_id)
        if place is None:
            return
        await self._host.durable(place.position)
        if self._connector.settings.ack is AckMode.CHECKPOINT:
            await self._host.ground.completing.reached(self._known.route, place.end)

    # The end.

    async def close(self) -> None:
        async with self._turn:
            if self._is_closing:
                return
            if not self.resumes and not self._is_finished:
                await self._finish()
            await self._close(is_over=not self.resumes or self._is_finished)

    async def _close(self, *, is_over: bool) -> None:
        if is_over:
            await self._end()
        else:
            self._leave()

    async def _end(self) -> None:
        _, placed = await self._stored(partial(self._told_batch, [ended(self.ref.stream_id)]))
        self._leave()
        self._host.ended(self, placed)

    def _leave(self) -> None:
        """It is closed here, and goes on where it is opened again."""
        if not self._is_closing:
            self._is_closing = True
            self._opened.set()
            self.closed.set()
            self._host.left(self)

    def abandon(self) -> None:
        """At once, whatever waits: what has not been stored is not."""
        self._leave()


def _checked(records: list[bytes]) -> list[bytes]:
    """Raises BadBytes for one that is too large to be an event."""
    row = next((row for row, record in enumerate(records) if len(record) > VALUE_BYTES_MAX), None)
    if row is None:
        return records
    text = f"a record of {len(records[row]):,} bytes is too large for an event; the limit is {VALUE_BYTES_MAX:,}"
    raise BadBytes(text, b"".join(records[row:]), records[:row])
