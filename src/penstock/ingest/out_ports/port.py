"""A connector's `out` port: its open streams, and whether the gate lets them send.

    open_stream ──▶ STARTED durable ──▶ gate.started ──▶ send … ──▶ close ──▶ ENDED durable ──▶ gate.ended
                             every pipeline is done with its last event ──▶ gate.completed ──▶ forgotten

A stream that resumes is forgotten only when its connector asks for it. One that cannot resume ends with its
connection, its `run` or its worker.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.connectors.api import Pause, Stream, StreamRef, StreamState
from penstock.core.errors import NoRoom, PenstockError, RequestError
from penstock.ingest.batch import VALUE_BYTES_MAX, Batch, Placed, one_each, packed, record_slices
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.gate import Gate
from penstock.ingest.known_streams import STREAM_NAME_MAX, Standing, started
from penstock.ingest.out_ports.storage import PortCounters, SourceStorage, StoredTogether
from penstock.ingest.out_ports.stream import OutStream
from penstock.ingest.owners import StreamKey
from penstock.protocol.connector import stream_id_of

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long a stop waits for room and for unfinished calls; the next start ends the remaining streams."""


class OutPort:
    """A StreamOwner. Owned by its connector's host."""

    def __init__(
        self,
        name: str,
        sources: SourceCatalog,
        storage: SourceStorage,
        counters: PortCounters,
        gate: Gate,
        pauses: Pause,
    ) -> None:
        self.name = name
        self.storage = storage
        self.streams: dict[int, OutStream] = {}
        self._sources = sources
        self._log = storage.log
        self._ended_streams = sources.ended(name)
        self._counters = counters
        self._gate = gate
        self._pauses_whole = pauses is Pause.WHOLE
        self._closed_one = asyncio.Event()
        self._stored_before = dict(enumerate(map(sources.store.length, self._log.segments)))
        """By route: what earlier processes have stored."""
        self._ending: set[int] = set()
        """Streams whose end is not durable yet."""
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unsubscribe = self._gate.subscribe(self._gate_changed)

    # Opening.

    async def open_stream(self, name: str, resume: bool, metadata: Mapping[str, Any] | None) -> OutStream:
        """Like `connectors.api.Host.open_stream`. A stream that cannot start leaves no trace, or is ended at the next
        start.
        """
        if self.storage.draining.is_set():
            raise RequestError(f"connector {self.name!r} is draining", "It is being drained.")
        self._sources.reserve(self.name)
        name = name if resume else name[: STREAM_NAME_MAX - 1]
        stream_id = stream_id_of(name) if resume else await self.storage.ids.next_id()
        stream = self._claim(stream_id, name, resume, metadata)
        try:
            await self._begin(stream)
        except BaseException:
            stream.abandon()
            with suppress(PenstockError):  # else the next start does
                self._ended_streams.recover()
            raise
        return stream

    def _claim(self, stream_id: int, name: str, resume: bool, metadata: Mapping[str, Any] | None) -> OutStream:
        """Raises NoRoom, and RequestError if it is open already, or metadata cannot be stored."""
        limit = self._sources.settings.streams_per_source_max
        if len(self._log.streams) >= limit and stream_id not in self._log.streams:
            raise NoRoom(f"source {self.name!r} has {limit} streams already (streams_per_source_max)")
        packed(metadata)
        ref = StreamRef(self.name, stream_id)
        if not self._sources.registry.claim(StreamKey(self.name, stream_id), self):
            raise RequestError(f"stream {name!r} of connector {self.name!r} is open already", "Close it first.")
        known = self._log.find(stream_id, name[:STREAM_NAME_MAX])
        stream = OutStream(
            self.storage, ref, name, known, metadata, resumes=resume, left=self._left, ended=self._has_ended
        )
        self.streams[stream_id] = stream
        self.storage.has_many_streams = len(self.streams) > 1
        return stream

    async def _begin(self, stream: OutStream) -> None:
        known = self._log.streams[stream.ref.stream_id]
        (placed,) = self._log.append([Batch(known.route, [started(stream.ref.stream_id, known)])])
        stream.continues(placed)
        await self.storage.durable(placed.position)
        if stream.closed.is_set():  # its end must not be reported before its start
            raise RequestError(f"stream {stream.name!r} of connector {self.name!r} was closed before it started")
        self._counters.streams += 1
        self._sources.counters.streams_opened += 1
        self._gate.started(stream.ref)
        may_send = self._gate.may_send(stream.ref)
        self._sources.guarded.remember(stream.ref, may_send=may_send)
        self._gate_changed(stream.ref, may_send)

    # Many streams at once.

    def store_together(self, events: Sequence[tuple[Stream, bytes, bytes]]) -> StoredTogether:
        """Like `connectors.api.Host.store_together`."""
        together = StoredTogether(self.storage, len(events))
        has_room = self.storage.has_room  # also for all of these: one call may exceed the window
        if not has_room or self.storage.has_interceptors or self._log.times.extraction is not None:
            return together
        by_route: dict[int, list[tuple[int, OutStream, bytes, bytes]]] = {}
        for place, (given, value, metadata) in enumerate(events):
            stream = self.streams.get(given.ref.stream_id)
            if stream is not None and stream.takes_now and len(value) <= VALUE_BYTES_MAX:
                by_route.setdefault(stream.route, []).append((place, stream, value, metadata))
        for route, found in by_route.items():
            for rows in record_slices([len(value) + len(metadata) for _, _, value, metadata in found]):
                if not self._stored_in_one(together, route, found[rows]):
                    return together
        return together

    def _stored_in_one(
        self, together: StoredTogether, route: int, events: Sequence[tuple[int, OutStream, bytes, bytes]]
    ) -> bool:
        """False if there is no room: nothing is stored. No clock mark may come between the events' time of arrival and
        their position in the journal.
        """
        times, streams = self._log.times, [stream for _, stream, _, _ in events]
        times.record(own_times=False)
        ids = [stream.last_id + 1 for stream in streams]
        batch = one_each(
            route,
            [stream.ref.stream_id for stream in streams],
            ids,
            [event[2:] for event in events],
            [mark for stream in streams for mark in stream.waking()],
            times.clock.now(),
        )
        try:
            (placed,) = self._log.append([batch])
        except NoRoom:
            return False
        for (place, stream, _, _), event_id in zip(events, ids, strict=True):
            stream.placed(event_id, placed)
            together.ids[place] = event_id
        together.placed(route, placed)
        self.storage.stored(batch.events, len(batch.data), placed.position)
        return True

    # Streams that resume, by their names.

    def names(self) -> list[str]:
        streams = self._log.streams
        return [stream.name for stream_id, stream in streams.items() if not streams.is_ephemeral(stream_id)]

    def state_of(self, name: str) -> StreamState:
        """What ended with an earlier process is complete when everything is that was stored then."""
        stream_id = stream_id_of(name)
        known = self._log.streams.get(stream_id)
        if known is None:
            return StreamState.UNKNOWN
        if stream_id in self.streams or known.standing is not Standing.ENDED:
            return StreamState.STARTED
        is_waiting = stream_id in self._ending or stream_id in self._ended_streams
        if is_waiting or self.storage.completed(known.route) < self._stored_before.get(known.route, 0):
            return StreamState.ENDED
        return StreamState.COMPLETE

    def forget(self, name: str) -> bool:
        is_complete = self.state_of(name) is StreamState.COMPLETE
        if is_complete:
            self._log.forget(stream_id_of(name))
        return is_complete

    # The gate.

    def _gate_changed(self, ref: StreamRef, may_send: bool) -> None:
        stream = self.streams.get(ref.stream_id) if ref.connector == self.name else None
        if stream is None:
            return
        if not self._pauses_whole:
            stream.gate_changed(may_send)
            return
        may_all = may_send and all(self._gate.may_send(one.ref) for one in self.streams.values())
        for one in self.streams.values():
            one.gate_changed(may_all)

    def why_blocked(self, stream: OutStream) -> str:
        return self._gate.why(stream.ref)

    # Implements `owners.StreamOwner`.

    def acknowledge(self, stream_ids: "array[int]", last_ids: "array[int]") -> None:
        """Do nothing: connectors wait with `Stream.complete`."""

    def gate_changed(self, stream_id: int, may_send: bool) -> None:
        if may_send:
            self._log.streams.detached(stream_id)
        else:
            self._log.streams.away.remove(stream_id)

    def touch(self, stream_id: int) -> None:
        self._log.streams.detached(stream_id)

    def stored_id(self, stream_id: int) -> int:
        return self._log.streams[stream_id].last_id

    # The end.

    def _left(self, stream: OutStream) -> None:
        stream_id = stream.ref.stream_id
        self.streams.pop(stream_id, None)
        self.storage.has_many_streams = len(self.streams) > 1
        self._sources.registry.release(StreamKey(self.name, stream_id), self)
        self._log.streams.detached(stream_id)
        self._closed_one.set()
        if self._pauses_whole and self.streams:
            other = next(iter(self.streams.values())).ref
            self._gate_changed(other, self._gate.may_send(other))

    def _has_ended(self, stream: OutStream, placed: Placed) -> None:
        self._sources.counters.streams_ended += 1
        self._ending.add(stream.ref.stream_id)
        self._sources.durability.after(placed.position, partial(self._end_is_durable, stream.ref, placed))

    def _end_is_durable(self, ref: StreamRef, placed: Placed) -> None:
        self._ending.discard(ref.stream_id)
        if ref.stream_id in self._log.streams and ref.stream_id not in self.streams:
            self._gate.ended(ref)
            self._ended_streams.add(ref.stream_id, placed.before)

    async def end_abandoned(self) -> None:
        """End streams of an earlier process, or of a `run` that failed when there was no room to end them."""
        while True:
            try:
                self._ended_streams.recover()
                return
            except NoRoom:
                await self.storage.room.wait()

    def begin_drain(self) -> None:
        for stream in self.streams.values():
            stream.drain()

    async def drain(self, seconds: float) -> None:
        """Return when all streams are closed: by the connector within this time, then by the port."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.streams:
                    self._closed_one.clear()
                    await self._closed_one.wait()
        for stream in [*self.streams.values()]:
            await stream.close()

    async def close_streams(self) -> None:
        """Close all streams: nothing more can be sent on them."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for stream in [*self.streams.values()]:
                    await stream.close()
        except (TimeoutError, PenstockError) as error:
            reason = str(error) or type(error).__name__
            log.warning(
                "connector %r: its streams could not be closed; the next start closes them: %s", self.name, reason
            )
        finally:
            for stream in [*self.streams.values()]:
                stream.abandon()

    def close(self) -> None:
        self._unsubscribe()
        self.storage.close()
        self._sources.release(self.name)
