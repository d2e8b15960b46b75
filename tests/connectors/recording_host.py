"""A host that records what a connector does, for tests of connectors alone."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.connectors.api import (
    Connector,
    NoPipelines,
    OutgoingChain,
    SegmentPort,
    Stream,
    StreamRef,
    StreamState,
    Together,
)
from penstock.connectors.registry import Chains
from penstock.core.types import Buffer
from tests.support.waiting import eventually


class RecordingStream:
    def __init__(self, host: "RecordingHost", number: int, name: str, metadata: Mapping[str, Any]) -> None:
        self.host = host
        self.ref = StreamRef(host.name, number)
        self.name = name
        self.metadata = dict(metadata)
        self.position = self.last_id = 0
        self.last_id = 0
        self.events: list[bytes] = []
        self.ids: list[int] = []
        self.rejected: list[tuple[bytes, str]] = []
        self.cut_off_because: str | None = None
        self.is_closed = False
        self._chain = host.chains.incoming()

    @property
    def may_send(self) -> bool:
        return self.host.gate.is_set() and not self.host.is_draining

    async def ready(self) -> None:
        await self.host.gate.wait()

    async def send(self, data: Buffer, *, metadata: Mapping[str, Any] | None = None) -> int:
        await self.ready()
        return self._keep(self._chain.feed(bytes(data)))

    async def send_all(self, messages: Sequence[bytes]) -> int:
        for message in messages:
            await self.send(message)
        return len(self.events)

    async def put(
        self,
        values: Sequence[bytes],
        *,
        ids: Sequence[int] | None = None,
        event_times_us: Sequence[int] | None = None,
        keys: Sequence[bytes] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        self.ids += ids or range(len(self.events) + 1, len(self.events) + len(values) + 1)
        return self._keep(values)

    def _keep(self, values: Sequence[bytes]) -> int:
        self.events += values
        return len(self.events)

    def encoded(self, metadata: Mapping[str, Any]) -> bytes:
        raise AssertionError(f"{self.name} is not stored with others: {metadata}")

    async def dead_letter(self, data: bytes, reason: str, *, event_id: int | None = None) -> None:
        self.rejected.append((data, reason))
        self.host.reported.append(("dead letter", (data, reason)))

    async def finish(self) -> int:
        return self._keep(self._chain.finish())

    async def cut_off(self, reason: str) -> None:
        self.cut_off_because = reason
        self.is_closed = True

    async def durable(self, event_id: int) -> None: ...

    async def complete(self, event_id: int) -> None: ...

    async def close(self) -> None:
        if not self.is_closed:
            await self.finish()
            self.is_closed = True


class RecordingHost:
    def __init__(
        self, name: str = "tested", *, has_in: bool = True, has_out: bool = True, shares_port: bool = False
    ) -> None:
        self.name = name
        self.shares_port = shares_port
        self.has_in = has_in
        self.has_out = has_out
        self.chains = Chains()
        self.streams: list[RecordingStream] = []
        self.counts: Counter[str] = Counter()
        self.reported: list[tuple[str, Any]] = []
        self.has_finished = False
        self.segment_port = SegmentPort("")
        self.downstream = NoPipelines()
        self.gate = asyncio.Event()
        self.gate.set()
        self._draining = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def has_interceptors(self) -> bool:
        return bool(self.chains.towards_us)

    @property
    def takes_messages(self) -> bool:
        return self.chains.takes_messages

    def drain(self) -> None:
        self._draining.set()

    async def draining(self) -> None:
        await self._draining.wait()

    async def open_stream(
        self, name: str, *, resume: bool = False, metadata: Mapping[str, Any] | None = None
    ) -> RecordingStream:
        stream = RecordingStream(self, len(self.streams) + 1, name, metadata or {})
        self.streams.append(stream)
        return stream

    def store_together(self, events: Sequence[tuple[Stream, bytes, bytes]]) -> Together:
        raise AssertionError(f"{self.name} stores nothing together: {events}")

    def stream_names(self) -> list[str]:
        return [stream.name for stream in self.streams]

    def stream_state(self, name: str) -> StreamState:
        found = [stream for stream in self.streams if stream.name == name]
        ended = StreamState.COMPLETE if found and found[-1].is_closed else StreamState.STARTED
        return ended if found else StreamState.UNKNOWN

    def forget_stream(self, name: str) -> bool:
        return self.stream_state(name) is StreamState.COMPLETE

    def finished(self) -> None:
        self.has_finished = True

    def connected(self) -> None:
        self.reported.append(("connected", None))

    def disconnected(self, reason: str) -> None:
        self.reported.append(("disconnected", reason))

    def opened(self, stream: StreamRef) -> None:
        self.reported.append(("opened", stream))

    def closed(self, stream: StreamRef, reason: str) -> None:
        self.reported.append(("closed", stream))

    def outgoing_chain(self) -> OutgoingChain:
        return self.chains.outgoing()

    def count(self, what: str, amount: int = 1) -> None:
        self.counts[what] += amount


@asynccontextmanager
async def running(connector: Connector[Any], host: RecordingHost) -> AsyncIterator[asyncio.Task[None]]:
    """Its `run`, once it has reported that it is connected."""
    task = asyncio.create_task(connector.run(host))
    try:
        await eventually(lambda: ("connected", None) in host.reported or task.done())
        if task.done():
            task.result()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
