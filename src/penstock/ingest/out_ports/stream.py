"""A stream of an `out` port: what its connector sends goes through the interceptors into the source log.

open ──bad bytes, or `close`, of a stream that cannot resume or is finished──▶ ended
open ──`close` without `finish`, of a stream that resumes──▶ left: opened again at its position, with nothing lost
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import NoRoom, PenstockError, RequestError
from penstock.core.types import Buffer
from penstock.ingest.batch import VALUE_BYTES_MAX, Batch, Placed, Values, columns, columns_of, packed, stored_batch
from penstock.ingest.extraction import Extraction, Times
from penstock.ingest.known_streams import KnownStream, active_again, ended
from penstock.ingest.out_ports.event_ids import (
    CUT_BITS,
    PLACES_MAX,
    Place,
    Places,
    counted,
    going_on,
    position,
    reaching,
    since,
)
from penstock.ingest.out_ports.storage import Record, SourceStorage
from penstock.ingest.settings import AckMode
from penstock.ingest.worker_sources import Untimed
from penstock.protocol.connector import NOTHING_YET
from penstock.protocol.stored.bulk import Bytes
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import NO_COLUMNS, Mark

log = logging.getLogger(__name__)

METADATA_BYTES_MAX = 256 << 20
"""What the metadata of the events of one call may take, since each carries it: bounds what a small message that becomes
very many events can fill.
"""

ON_ARRIVAL = NO_TIME
"""Instead of event times: events get the time at which they are stored."""


class OutStream:
    """Implements `connectors.api.Stream`. Owned by its port. Calls are handled one at a time, in order.

    `left` is called when it is closed here; then, if it has ended, `ended` with the position of that mark.
    """

    def __init__(
        self,
        storage: SourceStorage,
        ref: StreamRef,
        name: str,
        known: KnownStream,
        metadata: Mapping[str, Any] | None,
        *,
        resumes: bool,
        left: Callable[["OutStream"], None],
        ended: Callable[["OutStream", Placed], None],
    ) -> None:
        self.ref = ref
        self.name = name
        self.resumes = resumes
        self._storage = storage
        self._log = storage.log
        self._known = known
        self._on_left, self._on_ended = left, ended
        self._metadata = dict(metadata or {})
        self._packed = self._packed_last = packed(metadata)
        """Metadata of all its events, and of those of the last `send`, with which the interceptors' buffered data
        arrived.
        """
        self._skip = since(self.last_id) if resumes else 0
        self._chain = storage.chains.incoming(resumes=resumes, position=position(self.last_id) if resumes else 0)
        self._places = Places()
        self._turn = asyncio.Lock()
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._is_finished = self._is_closing = False
        self.closed = asyncio.Event()
        self._unblocked = asyncio.Event()

    @property
    def last_id(self) -> int:
        return 0 if self._known.last_id == NOTHING_YET else self._known.last_id

    @property
    def position(self) -> int:
        """Where its connector continues to read: what only makes sense from its beginning is read again from there."""
        return 0 if self._chain.is_transformed else position(self.last_id)

    def continues(self, start: Placed) -> None:
        """It was opened again, and its start is stored there. What it had sent before is complete when everything
        before that is.
        """
        if self.resumes and self.last_id:
            self._places.add(Place(self.last_id, start.position, start.before))

    # Whether it may send.

    def gate_changed(self, may_send: bool) -> None:
        if may_send:
            self._unblocked.set()
            self._log.streams.detached(self.ref.stream_id)
        elif not self._is_closing and not self._is_draining:
            self._unblocked.clear()
            self._log.streams.away.remove(self.ref.stream_id)

    @property
    def _is_draining(self) -> bool:
        return self._storage.draining.is_set()

    @property
    def is_blocked(self) -> bool:
        """Whether the gate blocks it."""
        return not self._unblocked.is_set()

    @property
    def may_send(self) -> bool:
        is_open = not self.is_blocked and not self._is_closing and not self._is_draining
        return is_open and self._storage.has_room

    async def ready(self) -> None:
        while not self.may_send:
            self._check_open()
            if self._is_draining:
                await self.closed.wait()
            elif self.is_blocked:
                await self._unblocked.wait()
            else:
                await self._storage.wait_for_room()

    async def _admitted(self) -> None:
        """Wait until the stream may send. What was read before a drain is always stored, even on a stream that a sink
        has closed, and beyond the quota: it is at most the data of one call, and there may never be room.
        """
        while True:
            self._check_open()
            if self.is_blocked:
                await self._unblocked.wait()
            elif self._storage.has_room or (self._is_draining and self._storage.window.is_open):
                return
            else:
                await self._storage.wait_for_room()

    def _check_open(self) -> None:
        if self._is_closing:
            raise RequestError(
                f"stream {self.name!r} of connector {self.ref.connector!r} is closed", "Open another one."
            )

    def drain(self) -> None:
        """Stop reading for this stream."""
        self._unblocked.set()

    # Sending.

    async def send(self, data: Buffer, *, metadata: Mapping[str, Any] | None = None) -> int:
        with_metadata = packed({**self._metadata, **metadata}) if metadata else self._packed
        async with self._turn:
            for piece in self._pieces(data):
                await self._admitted()
                await self._feed([piece], with_metadata)
        return self.last_id

    async def send_all(self, messages: Sequence[bytes]) -> int:
        async with self._turn:
            await self._admitted()
            if any(messages):
                await self._feed([message for message in messages if message], self._packed)
        return self.last_id

    def _pieces(self, data: Buffer) -> Iterator[bytes]:
        step = self._chain.feed_bytes
        if not self._storage.chains.towards_us or self._storage.chains.takes_messages or len(data) <= step:
            if data:
                yield bytes(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), step):
            yield bytes(view[start : start + step])

    async def _feed(self, pieces: Sequence[bytes], metadata: bytes) -> None:
        self._is_finished, self._packed_last = False, metadata
        records: list[bytes] = []
        try:
            cut = self._chain.feed_columns(pieces[0]) if len(pieces) == 1 else None
            if cut is None:
                for piece in pieces:
                    records += _checked(self._chain.feed(piece), metadata)
            else:
                cut = _checked_columns(cut, metadata)
            is_rejected = await self._reject()
            found = records if cut is None else cut
            await self._store(found, metadata)
            if is_rejected and not found:
                await self._advance()
            if self._chain.is_timed:
                self._watch()
        except BadBytes as bad:
            bad.records = [*records, *bad.records]
            await self._bury(bad)
            await self._end()
            raise

    # What waits in interceptors for more data, which may never come.

    def _watch(self) -> None:
        if self._expiry is None and self._expiring is None and not self._is_closing:
            wait = self._chain.wait_seconds()
            if wait is not None:
                self._expiry = asyncio.get_running_loop().call_later(wait, self._begin_expiry)

    def _begin_expiry(self) -> None:
        self._expiry, self._expiring = None, asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        try:
            async with self._turn:
                if not self._is_closing:
                    self._chain.expire()
                    await self._reject()
        except PenstockError as error:
            log.warning("stream %r of %s: a dead letter cannot be stored: %s", self.name, self.ref.connector, error)
        finally:
            self._expiring = None
        self._watch()

    async def put(
        self,
        values: Sequence[bytes],
        *,
        ids: Sequence[int] | None = None,
        event_times_us: Sequence[int] | None = None,
        keys: Sequence[bytes] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        each = self._packed if metadata is None else self._packed_each(metadata)
        async with self._turn:
            await self._admitted()
            numbers = counted(self.last_id, len(values)) if ids is None else ids
            times = ON_ARRIVAL if event_times_us is None else event_times_us
            events = Values(values, numbers, times, keys, each)
            if values:
                await self._put(events if ids is None else events.after(self.last_id), len(values))
        return self.last_id

    def _packed_each(self, metadata: Sequence[Mapping[str, Any]]) -> Sequence[bytes] | bytes:
        """Events that share a mapping, such as those of one peer, share what is stored of it."""
        found = {key: self.encoded(one) for key, one in {id(one): one for one in metadata}.items()}
        return next(iter(found.values())) if len(found) == 1 else [found[id(one)] for one in metadata]

    async def _put(self, values: Values, count: int) -> None:
        self._storage.skipped(count - len(values.values))
        if values.values:
            for rows in values.slices():
                await self._append(values[rows])

    def encoded(self, metadata: Mapping[str, Any]) -> bytes:
        return packed({**self._metadata, **metadata})

    @property
    def route(self) -> int:
        return self._known.route

    @property
    def takes_now(self) -> bool:
        """Whether an event can be stored in this step, if there is room: no other call is in progress."""
        is_open = self._unblocked.is_set() and not self._is_closing and not self._storage.draining.is_set()
        return is_open and not self.resumes and not self._turn.locked()

    async def dead_letter(self, data: bytes, reason: str, *, event_id: int | None = None) -> None:
        async with self._turn:
            self._check_open()
            if event_id is not None and event_id <= self.last_id:
                return
            await self._dead_letter(data, reason)
            if event_id is not None:
                await self._skip_to(event_id)

    async def finish(self) -> int:
        async with self._turn:
            self._check_open()
            await self._finish()
        return self.last_id

    async def _finish(self) -> None:
        try:
            records = _checked(self._chain.finish(), self._packed_last)
            await self._reject()
            await self._store(records, self._packed_last)
        except BadBytes as bad:
            await self._bury(bad)
        self._is_finished = True

    async def cut_off(self, reason: str) -> None:
        async with self._turn:
            if not self._is_closing:
                records, data = self._chain.cut_off()
                if not self.resumes:
                    await self._reject()
                    await self._store(records, self._packed_last)
                if data and not self.resumes:
                    await self._dead_letter(data, reason)
                await self._close(is_over=not self.resumes)

    # Storing.

    async def _store(self, records: Sequence[bytes] | Bytes, metadata: bytes) -> None:
        """Store events. Those of a stream that resumes extend up to the interceptors' current cut."""
        if self._skip and records:
            skipped = min(self._skip, len(records))
            self._skip -= skipped
            self._storage.skipped(skipped)
            records = records[skipped:]
        if not records:
            return
        slices = [*Values(records, (), ON_ARRIVAL, metadata=metadata).slices()]
        for rows in slices:
            part = records[rows]
            ids = self._ids(len(part), is_last=rows is slices[-1])
            await self._append(Values(part, ids, ON_ARRIVAL, metadata=metadata))

    def _ids(self, count: int, *, is_last: bool) -> range:
        if not self.resumes:
            return counted(self.last_id, count)
        return reaching(self.last_id, count, self._chain.consumed) if is_last else going_on(self.last_id, count)

    async def _append(self, values: Values) -> None:
        # A stream that resumes must not be cancelled while its interceptors are ahead of what is stored.
        if self._storage.has_many_streams and not self.resumes and self._log.times.extraction is None:
            await self._append_shared(values)
        else:
            await self._stored(partial(self._record, values), partial(self._appended, values.ids[-1]))

    async def _append_shared(self, values: Values) -> None:
        """Store, waiting for room, in a record with other streams."""
        placed = partial(self.placed, values.ids[-1])
        while True:
            try:
                await self._storage.records.append(self._known.route, self.ref.stream_id, values, self.waking, placed)
                return
            except NoRoom:
                await self._await_room()

    def _appended(self, last_id: int, record: Record, placed: Placed) -> None:
        batch = record.batch
        self.placed(last_id, placed)
        self._storage.stored(batch.events, len(batch.data), placed.position, record.beside)
        if record.untimed:
            self._log.count_untimed(record.untimed, record.reason)

    def placed(self, last_id: int, placed: Placed) -> None:
        """Its events up to this id are stored there."""
        self._known.last_id = last_id
        self._log.streams.detached(self.ref.stream_id)
        self._places.add(Place(last_id, placed.position, placed.end))
        if len(self._places) > PLACES_MAX:
            self._places.prune(self._storage.durable_position, self._storage.completed(self._known.route))

    def waking(self) -> list[Mark]:
        """The mark of a stream that was idle."""
        return [active_again(self.ref.stream_id)] if self.ref.stream_id in self._log.streams.idle else []

    def _record(self, values: Values) -> Record:
        """Events to store at once: no clock mark may come between an event's time of arrival and its position in the
        journal.
        """
        times = self._log.times
        if times.extraction is not None:
            return self._extracted(values, times.extraction)
        if isinstance(values.times_us, int):  # ON_ARRIVAL
            times.record(own_times=False)
            values = replace(values, times_us=times.clock.now())
        else:
            times.record(own_times=True)
        return Record(stored_batch(self._known.route, self.ref.stream_id, values))

    def _extracted(self, values: Values, extraction: Extraction) -> Record:
        """With the times in the events' data. The others get their time of arrival, which the watermark does not
        follow, or are dead letters.
        """
        times = self._log.times
        times.record(own_times=True)
        found = extraction.of_values(columns_of(values.values), values.metadata)
        if found.untimed and extraction.spec.is_dead_letter:
            return self._without_untimed(values, found)
        highest, untimed = int(found.times.max()), found.untimed
        found.times[untimed] = times.clock.now()
        timed = replace(values, times_us=found.times.tolist())
        batch = stored_batch(self._known.route, self.ref.stream_id, timed, highest_us=highest)
        return Record(batch, untimed=len(untimed), reason=found.why(untimed[0]) if untimed else "")

    def _without_untimed(self, values: Values, found: Times) -> Record:
        """The last id of the stream also counts those that become dead letters: it does not read them again."""
        untimed = {row: found.why(row) for row in found.untimed}
        beside = self._storage.dead_letters.beside([self._untimed(values, *one) for one in untimed.items()])
        batch = Batch(self._known.route, ())
        if rows := [row for row in range(len(values.values)) if row not in untimed]:
            timed = replace(values, times_us=found.times.tolist()).rows(rows)
            batch = stored_batch(self._known.route, self.ref.stream_id, timed)
        head = columns(self.ref.stream_id, values.ids[-1], int(found.times.max()))
        return Record(batch._replace(streams=head), beside, len(untimed), next(iter(untimed.values())))

    def _untimed(self, values: Values, row: int, reason: str) -> Untimed:
        key = b"" if values.keys is None else values.keys[row]
        metadata = values.metadata if isinstance(values.metadata, bytes) else values.metadata[row]
        return Untimed(self.ref.stream_id, self.name, values.ids[row], key, values.values[row], metadata, reason)

    async def _stored(self, make: Callable[[], Record], stored: Callable[[Record, Placed], None]) -> None:
        """Store, waiting for room; `stored` is called in the same step. If a stream that resumes is closed before that,
        the data are read again.
        """
        while True:
            try:
                record = make()
                batch = record.batch._replace(marks=[*self.waking(), *record.batch.marks])
                stored(record, self._log.append([batch], record.beside)[0])
                return
            except NoRoom:
                await self._await_room()

    async def _await_room(self) -> None:
        try:
            await self._storage.room.wait()
        except asyncio.CancelledError:
            if self.resumes:  # the interceptors are ahead of what is stored
                self._leave()
            raise

    async def _bury(self, bad: BadBytes) -> None:
        """Store the valid part of the bytes; the rest becomes a dead letter. A stream that resumes does not read it
        again: its position advances without an event.
        """
        await self._reject()
        await self._dead_letter(bad.data, str(bad))
        await self._store(bad.records, self._packed_last)
        await self._advance()

    async def _reject(self) -> bool:
        """Store the records that an interceptor could not convert as dead letters. The stream continues. Returns
        whether there were some.
        """
        rejected = self._chain.take_rejected()
        for one in rejected:
            await self._dead_letter(one.data, one.reason)
        return bool(rejected)

    async def _advance(self) -> None:
        end = self._chain.consumed << CUT_BITS
        if self.resumes and end > self.last_id:
            await self._skip_to(end)

    async def _skip_to(self, event_id: int) -> None:
        """The last id advances without an event."""
        await self._stored(partial(self._marks, [], event_id), lambda _, placed: self._advanced(event_id, placed))

    def _advanced(self, last_id: int, placed: Placed) -> None:
        """What was stored before it is complete when it was: this record has no events of its own."""
        self._known.last_id = last_id
        self._places.advance(last_id, placed.position)

    def _marks(self, marks: Sequence[Mark], last_id: int | None = None) -> Record:
        streams = NO_COLUMNS if last_id is None else columns(self.ref.stream_id, last_id, NO_TIME)
        return Record(Batch(self._known.route, marks, streams=streams))

    async def _dead_letter(self, data: bytes, reason: str) -> None:
        await self._storage.dead_letter(data, reason, self.ref, self.name, self._metadata)
        self._places.extend(self.last_id, self._storage.end_position)

    # Waiting for what was sent.

    async def durable(self, event_id: int) -> None:
        place = self._places.find(event_id)
        if place is not None:
            await self._storage.durable(place.position)

    async def complete(self, event_id: int) -> None:
        place = self._places.find(event_id)
        if place is None:
            return
        await self._storage.durable(place.position)
        if self._log.settings.ack is AckMode.CHECKPOINT:
            await self._storage.completed_offsets.reached(self._known.route, place.end)

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
        await self._stored(partial(self._marks, [ended(self.ref.stream_id)]), self._has_ended)

    def _has_ended(self, _: Record, placed: Placed) -> None:
        self._leave()
        self._on_ended(self, placed)

    def _leave(self) -> None:
        """Close it here; it continues when it is opened again."""
        if not self._is_closing:
            self._is_closing = True
            for waiting in (self._expiry, self._expiring):
                if waiting is not None:
                    waiting.cancel()
            self._unblocked.set()
            self.closed.set()
            self._on_left(self)

    def abandon(self) -> None:
        """Close at once. What is not stored yet is lost."""
        self._leave()


def _checked_columns(records: Bytes, metadata: bytes) -> Bytes:
    """Raises like `_checked`."""
    if len(records) * len(metadata) > METADATA_BYTES_MAX or records.sizes().max(initial=0) > VALUE_BYTES_MAX:
        _checked(records.rows(), metadata)
    return records


def _checked(records: list[bytes], metadata: bytes) -> list[bytes]:
    """Raises BadBytes for a record that is too large for an event, and for too many of them."""
    if len(records) * len(metadata) > METADATA_BYTES_MAX:
        text = f"{len(records):,} records at once, each with {len(metadata):,} bytes of metadata, are too many"
        raise BadBytes(text, b"".join(records))
    if max(map(len, records), default=0) <= VALUE_BYTES_MAX:
        return records
    row = next(row for row, record in enumerate(records) if len(record) > VALUE_BYTES_MAX)
    text = f"a record of {len(records[row]):,} bytes is too large for an event; the limit is {VALUE_BYTES_MAX:,}"
    raise BadBytes(text, b"".join(records[row:]), records[:row])
