"""A connector at work: its `run` under supervision, its streams into the store, its drain.

    host = SourceHost(spec, connector, gateway, gate=gate, chains=make_chains(spec.interceptors_in, …))
    host.start()                 # configures the gateway's connector of this name, raises the incarnation, calls `run`
    await host.drain()           # reads no more; everything that was read is stored; all streams are closed
    await host.stop()            # at once; also after `drain`

`gateway` is a Gateway on a real store; it need not listen. Without `gate` every stream may send. `contraflow` hears
what the connector says of its port `in`: the sink side. Its streams:

    open_stream ──▶ STARTED durable ──▶ gate.started ──▶ send … ──▶ close ──▶ ENDED durable ──▶ gate.ended
                                    every pipeline is done with its last event ──▶ gate.completed ──▶ forgotten

Only a stream that resumes is never forgotten. One that cannot has ended with its connection, its `run` or its worker.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from penstock.config.deployment import ConnectorSpec
from penstock.connectors.api import Connector, Downstream, NoPipelines, OutgoingChain, Pause, StreamRef
from penstock.connectors.making import Chains
from penstock.core.errors import NoRoom, PenstockError, RequestError
from penstock.core.types import Position
from penstock.ingest.connector import Connector as GatewayConnector
from penstock.ingest.connector import Placed
from penstock.ingest.connectors.contraflow import Contraflow, NoContraflow
from penstock.ingest.connectors.ground import Ground
from penstock.ingest.connectors.letters import SourceLetters
from penstock.ingest.connectors.opening import open_stream
from penstock.ingest.connectors.room import Room
from penstock.ingest.connectors.settings import settings_of
from penstock.ingest.connectors.status import SourceCounters, SourceStatus, State
from penstock.ingest.connectors.stream import HostedStream
from penstock.ingest.connectors.supervision import Supervision, text_of
from penstock.ingest.counters import ConnectorCounters
from penstock.ingest.gate import Gate, OpenGate
from penstock.ingest.gateway import Gateway
from penstock.ingest.registry import StreamKey
from penstock.ingest.settings import AckMode

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long a connector may take to close its streams in a drain; then the host closes them."""

STOP_SECONDS = 5.0
"""How long a stop waits for room and for what streams still do; the next start ends what is left."""

END_SECONDS = 2 * STOP_SECONDS
"""For `run` to end when it is cancelled: whoever waits for it must not wait for ever."""

_KEPT_BACK_SHOWN = 20


class SourceHost:
    """As `connectors.api.Host`. In the worker's event loop; owned by whoever has deployed the connector."""

    def __init__(
        self,
        spec: ConnectorSpec,
        connector: Connector[Any],
        gateway: Gateway,
        *,
        gate: Gate | None = None,
        contraflow: Contraflow | None = None,
        chains: Chains | None = None,
        has_in: bool = False,
        has_out: bool = True,
        segment_address: str = "",
        downstream: Downstream | None = None,
    ) -> None:
        """`has_in` and `has_out` may be set anew when links change, and `contraflow` before the start. Raises Damaged
        where the connector's table of streams cannot be read.
        """
        self.spec = spec
        self.name = spec.name
        self.gateway = gateway
        self.has_in = has_in
        self.has_out = has_out
        self.segment_address = segment_address
        self._downstream = downstream or NoPipelines()
        self.contraflow: Contraflow = contraflow or NoContraflow()
        self.chains = chains or Chains()
        self.gate: Gate = gate or OpenGate()
        self.counters = SourceCounters()
        self.counts: dict[str, int] = {}
        self.letters = SourceLetters(gateway, spec.name)
        self.streams: dict[int, HostedStream] = {}
        self.is_draining = False
        self._made = connector
        self._capabilities = connector.capabilities(connector.options)
        self._supervision = Supervision(spec.name, spec.reconnect, self._failed)
        self._state, self._reason = State.STARTING, ""
        self._draining = asyncio.Event()
        self._closed_one = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        own_times = self._capabilities.own_event_times
        self._ground = Ground(spec, gateway, own_event_times=own_times) if self._has_source() else None

    def _has_source(self) -> bool:
        """Whether pipelines read a source of this connector's name."""
        elsewhere = self._made.source_name(self._made.options, self.name)
        return self._capabilities.source is not None and elsewhere in (None, self.name)

    @property
    def ground(self) -> Ground:
        """Raises RequestError where there is no such source."""
        if self._ground is None:
            raise RequestError(f"connector {self.name!r} has no source of its own", "It cannot open streams.")
        return self._ground

    @property
    def connector(self) -> GatewayConnector:
        return self.ground.connector

    @property
    def room(self) -> Room:
        return self.ground.room

    @property
    def downstream(self) -> Downstream:
        return NoPipelines() if self.spec.ack == AckMode.DURABLE.value else self._downstream

    @property
    def has_interceptors(self) -> bool:
        return bool(self.chains.towards_us)

    # For whoever has deployed it.

    def start(self) -> None:
        self.gateway.system_streams.enable()
        self._unsubscribe = self.gate.subscribe(self.gate_changed)
        self._task = asyncio.create_task(self._run(), name=f"connector {self.name}")

    def configure(self, spec: ConnectorSpec) -> None:
        """Another quota, acknowledgement, disorder or timeout; nothing is interrupted."""
        self.spec = spec
        if self._ground is not None:
            own_times = self._capabilities.own_event_times
            self.gateway.configure(self.name, settings_of(spec, own_event_times=own_times))

    async def drain(self) -> None:
        """Return when nothing more is read, and all that was is durable; `run` may hold its connections until `stop`.
        What interceptors hold is stored, or read again if the stream resumes.
        """
        self._begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._all_closed()
        for stream in [*self.streams.values()]:
            await stream.close()
        await self.gateway.durability.caught_up()

    def _begin_drain(self) -> None:
        self.is_draining = True
        self._draining.set()
        if self._state not in (State.ENDED, State.FAILED, State.STOPPED):
            self._state = State.DRAINING
        for stream in self.streams.values():
            stream.drain()

    async def _all_closed(self) -> None:
        while self.streams:
            self._closed_one.clear()
            await self._closed_one.wait()

    async def stop(self) -> None:
        """End `run`, close all streams. Those that resume are left where they are. Idempotent."""
        if self._state is State.STOPPED:
            return
        self._begin_drain()
        if self._task is not None:
            self._task.cancel()
            _, late = await asyncio.wait([self._task], timeout=END_SECONDS)
            if late:
                log.error("connector %r does not end when it is cancelled; it is left behind", self.name)
        self.contraflow = NoContraflow()  # of whoever comes after it
        await self._close_streams()
        self._unsubscribe()
        if self._ground is not None:
            self._ground.close()
            self.gateway.left_alone(self.name)
        self._state = State.STOPPED

    def status(self) -> SourceStatus:
        there, counters = self._ground, self.connector.counters if self._ground is not None else ConnectorCounters()
        kept = [stream for stream in self.streams.values() if not stream.is_let]
        return SourceStatus(
            name=self.name,
            type=self.spec.type,
            state=self._state.value,
            reason=self._reason,
            streams=len(self.streams),
            kept_back={s.ref.stream_id: self.gate.why(s.ref) for s in islice(kept, _KEPT_BACK_SHOWN)},
            kept_back_count=len(kept),
            has_room=there is None or there.room.there,
            events=counters.messages,
            bytes=counters.message_bytes,
            duplicates=counters.duplicates,
            streams_opened=self.counters.streams,
            failures=self.counters.failures,
            letters=self.letters.count,
            counts=dict(self.counts),
        )

    # The connector's `run`.

    async def _run(self) -> None:
        try:
            await self._prepare()
            await self._supervision.run(self._run_once)
        except Exception as error:
            self._failed(text_of(error), None)
            log.error("connector %r is given up: %s", self.name, self._reason)
            self._ended_with(State.FAILED, self._reason)
        else:
            self._ended_with(State.ENDED, "")

    def _ended_with(self, state: State, reason: str) -> None:
        """Unless it was left behind."""
        if self._state is not State.STOPPED:
            self._state, self._reason = state, reason

    async def _prepare(self) -> None:
        """Ids begin anew."""
        if self._ground is not None:
            await self._ground.incarnation.begin()

    async def _end_abandoned(self) -> None:
        """Streams of an earlier process, or of a `run` that failed when there was no room to say so, have ended."""
        while self._ground is not None:
            try:
                self.gateway.endings.recover(self.connector)
                return
            except NoRoom:
                await self.room.wait()

    async def _run_once(self) -> None:
        await self._end_abandoned()
        try:
            await self._made.run(self)
        finally:
            await self._close_streams()

    async def _close_streams(self) -> None:
        """Nobody sends on them any more."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for stream in [*self.streams.values()]:
                    await stream.close()
        except (TimeoutError, PenstockError) as error:
            log.warning("streams of %r are not ended: %s; the next start does", self.name, text_of(error))
        finally:
            for stream in [*self.streams.values()]:
                stream.abandon()

    def _failed(self, reason: str, seconds: float | None) -> None:
        if self._state is State.STOPPED:
            return
        self.counters.failures += 1
        again = "" if seconds is None else f"; next try in {seconds:.1f} s"
        self._state, self._reason = State.DISCONNECTED, reason + again
        self.contraflow.disconnected(reason)
        log.warning("connector %r: %s%s", self.name, reason, again)

    # For the connector: `connectors.api.Host`.

    async def draining(self) -> None:
        await self._draining.wait()

    async def open_stream(
        self, name: str, *, resume: bool = False, metadata: Mapping[str, Any] | None = None
    ) -> HostedStream:
        return await open_stream(self, name, resume, metadata)

    def finished(self) -> None:
        if not self.connector.has_finished:
            self.connector.finish()

    def connected(self) -> None:
        self._supervision.succeeded()
        if not self.is_draining:
            self._state, self._reason = State.CONNECTED, ""
        self.contraflow.connected()

    def disconnected(self, reason: str) -> None:
        if not self.is_draining:
            self._state, self._reason = State.DISCONNECTED, reason
        self.contraflow.disconnected(reason)

    def opened(self, stream: StreamRef) -> None:
        self.contraflow.opened(stream)

    def closed(self, stream: StreamRef, reason: str) -> None:
        self.contraflow.closed(stream, reason)

    def outgoing_chain(self) -> OutgoingChain:
        return self.chains.outgoing()

    def count(self, what: str, amount: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + amount

    # For its streams.

    def gate_changed(self, ref: StreamRef, may_send: bool) -> None:
        stream = self.streams.get(ref.stream_id) if ref.connector == self.name else None
        if stream is None:
            return
        if self._capabilities.pauses is not Pause.WHOLE:
            stream.let_send(may_send)
            return
        may_all = may_send and all(self.gate.may_send(one.ref) for one in self.streams.values())
        for one in self.streams.values():
            one.let_send(may_all)

    def stored(self, events: int, size: int, position: Position) -> None:
        self.ground.window.sent(position, size)
        self.counters.events += events
        self.counters.bytes += size
        for counters in (self.gateway.counters, self.connector.counters):
            counters.messages += events
            counters.message_bytes += size
        self.connector.snapshot_if_due()

    def count_duplicates(self, count: int) -> None:
        self.counters.duplicates += count
        self.gateway.counters.duplicates += count
        self.connector.counters.duplicates += count

    def completed(self, route: int) -> float:
        """Up to where every pipeline is done with the segment."""
        return self.gateway.completion(self.name).completed(route)

    async def durable(self, position: Position) -> None:
        done = asyncio.Event()
        self.gateway.durability.after(position, done.set)
        await done.wait()

    def left(self, stream: HostedStream) -> None:
        """It is closed here."""
        self.streams.pop(stream.ref.stream_id, None)
        self.gateway.registry.release(StreamKey(self.name, stream.ref.stream_id), self)
        self.connector.stays_away(stream.ref.stream_id)
        self._closed_one.set()
        if self._capabilities.pauses is Pause.WHOLE and self.streams:
            other = next(iter(self.streams.values())).ref
            self.gate_changed(other, self.gate.may_send(other))

    def ended(self, stream: HostedStream, placed: Placed) -> None:
        self.gateway.counters.streams_ended += 1
        self.gateway.durability.after(placed.position, partial(self._ended, stream.ref, placed))

    def _ended(self, ref: StreamRef, placed: Placed) -> None:
        if ref.stream_id in self.connector.streams and ref.stream_id not in self.streams:
            self.gate.ended(ref)
            self.gateway.endings.add(self.connector, ref.stream_id, placed.before)
