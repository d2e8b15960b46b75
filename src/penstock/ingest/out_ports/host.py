"""A running connector: supervises its `run`, owns its `out` port, and drains it.

    host = SourceHost(spec, connector, sources, gate=gate, chains=make_chains(spec.interceptors_in, …))
    host.start()                 # configures the source of this name, raises its incarnation, calls `run`
    await host.drain()           # stops reading; everything that was read is stored; all streams are closed
    await host.stop()            # at once; also after `drain`

Without `gate` every stream may send. `contraflow` gets what the connector reports about its `in` port: the sink side.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from penstock.connectors.api import (
    Connector,
    Downstream,
    NoPipelines,
    OutgoingChain,
    SegmentPort,
    Stream,
    StreamRef,
    StreamState,
)
from penstock.connectors.registry import Chains
from penstock.core.errors import PenstockError, RequestError
from penstock.core.logs import one_line
from penstock.core.retry import RetryPolicy
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.gate import Gate, OpenGate
from penstock.ingest.out_ports.port import STOP_SECONDS, OutPort
from penstock.ingest.out_ports.storage import PortCounters, Room, SourceStorage, StoredTogether
from penstock.ingest.out_ports.stream import OutStream
from penstock.ingest.settings import AckMode, SourceSettings, settings_of
from penstock.ingest.source_log import SourceCounters, SourceLog
from penstock.protocol.api.deployment import ConnectorSpec, ReconnectSpec

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long a connector may take to close its streams in a drain; then the host closes them."""

END_SECONDS = 2 * STOP_SECONDS
"""How long `run` may take to end when it is cancelled: callers must not wait forever."""

_BLOCKED_SHOWN = 20


class State(Enum):
    STARTING = "starting"
    CONNECTED = "connected"
    """It listens, or is connected."""
    DISCONNECTED = "disconnected"
    """It will be retried."""
    ENDED = "ended"
    """`run` has returned: a bounded source, or one that was drained."""
    FAILED = "failed"
    """It has used up its attempts: an operator must act."""
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """A connector's source side, for /status."""

    name: str
    type: str
    state: str
    reason: str = ""
    """Why it is not connected, and when it is tried again."""
    streams: int = 0
    """Open streams."""
    blocked: dict[int, str] = field(default_factory=dict)
    """Streams that may not send, and what blocks them; some of them, if there are many."""
    blocked_count: int = 0
    has_room: bool = True
    events: int = 0
    """Of the source since the worker started, including what programs send to it."""
    bytes: int = 0
    duplicates: int = 0
    streams_opened: int = 0
    failures: int = 0
    dead_letters: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """What the connector itself counts."""


class Contraflow(Protocol):
    """What a connector reports about its `in` port, through its host."""

    def connected(self) -> None:
        """It is open for all streams."""
        ...

    def disconnected(self, reason: str) -> None:
        """It is closed for all streams, until `connected`."""
        ...

    def opened(self, stream: StreamRef) -> None: ...

    def closed(self, stream: StreamRef, reason: str) -> None: ...


class NoContraflow:
    """For a connector whose `in` port is not linked: reports are ignored."""

    def connected(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...

    def opened(self, stream: StreamRef) -> None: ...

    def closed(self, stream: StreamRef, reason: str) -> None: ...


class Supervision:
    """Restarts a connector's `run` after a back-off whenever it fails. `failed` gets the reason of each failure and the
    seconds until the next attempt.
    """

    def __init__(
        self,
        name: str,
        spec: ReconnectSpec,
        failed: Callable[[str, float], None],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._name = name
        self._tries_max = spec.tries
        self._policy = RetryPolicy(spec.first_seconds, spec.max_seconds, spec.factor)
        self._failed = failed
        self._uniform = uniform
        self.failures = 0
        """In a row."""

    def succeeded(self) -> None:
        """It is connected: the back-off starts again from its first pause."""
        self.failures = 0

    async def run(self, once: Callable[[], Awaitable[None]]) -> None:
        """Run it until it returns. Raises the last error when all attempts are used up."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(self._has_failed),
            wait=self._pause,
            stop=self._is_enough,
            before_sleep=self._report,
            reraise=True,
        ):
            with attempt:
                await once()

    def _has_failed(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failures += 1
        if not isinstance(error, (PenstockError, OSError)):
            log.error("connector %r failed", self._name, exc_info=error)
        return True

    def _is_enough(self, _: RetryCallState) -> bool:
        return self._tries_max is not None and self.failures >= self._tries_max

    def _pause(self, _: RetryCallState) -> float:
        return self._policy.pause(self.failures, self._uniform)

    def _report(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        seconds = state.next_action.sleep if state.next_action is not None else 0.0
        self._failed(text_of(error), seconds)


def text_of(error: BaseException | None) -> str:
    """Never empty: some errors have no text, and get their type's name."""
    return str(error) or type(error).__name__


class SourceHost:
    """Implements `connectors.api.Host`. Runs in the worker's event loop; owned by the code that deploys the
    connector.
    """

    def __init__(
        self,
        spec: ConnectorSpec,
        connector: Connector[Any],
        sources: SourceCatalog,
        *,
        gate: Gate | None = None,
        contraflow: Contraflow | None = None,
        chains: Chains | None = None,
        has_in: bool = False,
        has_out: bool = True,
        segment_port: SegmentPort = SegmentPort(""),  # noqa: B008  frozen
        downstream: Downstream | None = None,
        is_elsewhere: bool = False,
    ) -> None:
        """`has_in` and `has_out` may change with links, and `contraflow` before the start. `is_elsewhere`: another
        shard has the source, and its settings. Raises Damaged if the source's table of streams cannot be read.
        """
        self.spec = spec
        self.name = spec.name
        self.sources = sources
        self.has_in = has_in
        self.has_out = has_out
        self.segment_port = segment_port
        self.contraflow: Contraflow = contraflow or NoContraflow()
        self.chains = chains or Chains()
        self.counters = PortCounters()
        self.counts: dict[str, int] = {}
        self.dead_letters = sources.dead_letters(spec.name)
        self._downstream = downstream or NoPipelines()
        self._connector = connector
        self._capabilities = connector.capabilities(connector.options)
        self._supervision = Supervision(spec.name, spec.reconnect, self._failed)
        self._state, self._reason = State.STARTING, ""
        self._draining = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._port = self._open_port(gate or OpenGate()) if self._has_source() and not is_elsewhere else None

    def _has_source(self) -> bool:
        """Whether pipelines read a source of this connector's name."""
        elsewhere = self._connector.source_name(self._connector.options, self.name)
        return self._capabilities.source is not None and elsewhere in (None, self.name)

    def _open_port(self, gate: Gate) -> OutPort:
        self.sources.configure(self.name, self._settings())
        storage = SourceStorage(self.sources, self.name, self.chains, self.counters, self.dead_letters, self._draining)
        return OutPort(self.name, self.sources, storage, self.counters, gate, self._capabilities.pauses)

    def _settings(self) -> SourceSettings:
        quota = self.sources.settings.source.quota_bytes
        return settings_of(self.spec, own_event_times=self._capabilities.own_event_times, quota_bytes=quota)

    @property
    def port(self) -> OutPort:
        """Raises RequestError if the connector has no source of its own."""
        if self._port is None:
            raise RequestError(f"connector {self.name!r} has no source of its own", "It cannot open streams.")
        return self._port

    @property
    def log(self) -> SourceLog:
        return self.port.storage.log

    @property
    def room(self) -> Room:
        return self.port.storage.room

    @property
    def streams(self) -> Mapping[int, OutStream]:
        """The open streams, by id."""
        return self._port.streams if self._port is not None else {}

    @property
    def has_interceptors(self) -> bool:
        return bool(self.chains.towards_us)

    @property
    def takes_messages(self) -> bool:
        return self.chains.takes_messages

    @property
    def shares_port(self) -> bool:
        return self.spec.listen == "every-worker"

    @property
    def downstream(self) -> Downstream:
        return NoPipelines() if self.spec.ack == AckMode.DURABLE.value else self._downstream

    # For its owner.

    def start(self) -> None:
        self.sources.system_streams.enable()
        if self._port is not None:
            self._port.start()
        self._task = asyncio.create_task(self._run(), name=f"connector {self.name}")

    def configure(self, spec: ConnectorSpec) -> None:
        """Change quota, acknowledgement, disorder or timeout, without interrupting anything."""
        self.spec = spec
        if self._port is not None:
            self.sources.configure(self.name, self._settings())

    async def drain(self) -> None:
        """Stop reading, and return when everything that was read is durable. `run` may keep its connections until
        `stop`. What interceptors buffer is stored, or read again if the stream resumes.
        """
        self._begin_drain()
        if self._port is not None:
            await self._port.drain(DRAIN_SECONDS)
        await self.sources.durability.caught_up()

    def _begin_drain(self) -> None:
        self._draining.set()
        if self._state not in (State.ENDED, State.FAILED, State.STOPPED):
            self._state = State.DRAINING
        if self._port is not None:
            self._port.begin_drain()

    async def stop(self) -> None:
        """End `run` and close all streams. Streams that resume keep their position. Idempotent."""
        if self._state is State.STOPPED:
            return
        self._begin_drain()
        if self._task is not None:
            self._task.cancel()
            _, late = await asyncio.wait([self._task], timeout=END_SECONDS)
            if late:
                log.error("connector %r does not end when it is cancelled; it is abandoned", self.name)
        self.contraflow = NoContraflow()  # the next host of this name reports from now on
        if self._port is not None:
            await self._port.close_streams()
            self._port.close()
        self._state = State.STOPPED

    def status(self) -> SourceStatus:
        counters = self.log.counters if self._port is not None else SourceCounters()
        blocked = [stream for stream in self.streams.values() if stream.is_blocked]
        return SourceStatus(
            name=self.name,
            type=self.spec.type,
            state=self._state.value,
            reason=self._reason,
            streams=len(self.streams),
            blocked={s.ref.stream_id: self.port.why_blocked(s) for s in islice(blocked, _BLOCKED_SHOWN)},
            blocked_count=len(blocked),
            has_room=self._port is None or self.room.there,
            events=counters.messages,
            bytes=counters.message_bytes,
            duplicates=counters.duplicates,
            streams_opened=self.counters.streams,
            failures=self.counters.failures,
            dead_letters=self.dead_letters.count,
            counts=dict(self.counts),
        )

    # The connector's `run`.

    async def _run(self) -> None:
        try:
            if self._port is not None:
                await self._port.storage.ids.begin()
            await self._supervision.run(self._run_once)
        except Exception as error:
            self._failed(text_of(error), None)
            log.error("connector %r has failed for good: %s", self.name, one_line(self._reason))
            self._ended_with(State.FAILED, self._reason)
        else:
            self._ended_with(State.ENDED, "")

    def _ended_with(self, state: State, reason: str) -> None:
        """Record the end of `run`, unless the host has been stopped."""
        if self._state is not State.STOPPED:
            self._state, self._reason = state, reason

    async def _run_once(self) -> None:
        if self._port is not None:
            await self._port.end_abandoned()
        try:
            with self._connector.mask.errors():
                await self._connector.run(self)
        finally:
            if self._port is not None:
                await self._port.close_streams()

    def _failed(self, reason: str, seconds: float | None) -> None:
        if self._state is State.STOPPED:
            return
        self.counters.failures += 1
        again = "" if seconds is None else f"; next attempt in {seconds:.1f} s"
        self._state, self._reason = State.DISCONNECTED, reason + again
        self.contraflow.disconnected(reason)
        log.warning("connector %r: %s%s", self.name, one_line(reason), again)

    # For the connector: `connectors.api.Host`.

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    async def draining(self) -> None:
        await self._draining.wait()

    async def open_stream(
        self, name: str, *, resume: bool = False, metadata: Mapping[str, Any] | None = None
    ) -> OutStream:
        return await self.port.open_stream(name, resume, metadata)

    def store_together(self, events: Sequence[tuple[Stream, bytes, bytes]]) -> StoredTogether:
        return self.port.store_together(events)

    def stream_names(self) -> list[str]:
        return self.port.names()

    def stream_state(self, name: str) -> StreamState:
        return self.port.state_of(name)

    def forget_stream(self, name: str) -> bool:
        return self.port.forget(name)

    def finished(self) -> None:
        if not self.log.has_finished:
            self.log.finish()

    def connected(self) -> None:
        self._supervision.succeeded()
        if not self.is_draining:
            self._state, self._reason = State.CONNECTED, ""
        self.contraflow.connected()

    def disconnected(self, reason: str) -> None:
        reason = self._connector.mask.text(reason)
        if not self.is_draining:
            self._state, self._reason = State.DISCONNECTED, reason
        self.contraflow.disconnected(reason)

    def opened(self, stream: StreamRef) -> None:
        self.contraflow.opened(stream)

    def closed(self, stream: StreamRef, reason: str) -> None:
        self.contraflow.closed(stream, self._connector.mask.text(reason))

    def outgoing_chain(self) -> OutgoingChain:
        return self.chains.outgoing()

    def count(self, what: str, amount: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + amount
