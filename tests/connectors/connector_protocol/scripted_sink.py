"""A scripted sink: a real socket, and the frames of the acceptor."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.protocol.connector import (
    NOTHING_YET,
    OUTPUT_STREAM,
    Decoder,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Role,
    Round,
    Session,
    Use,
    encode,
)
from penstock.protocol.connector.two_phase import TwoPhase

F = TypeVar("F", bound=Frame)
T = TypeVar("T")

SECONDS_MAX = 30.0

INSTANCE = "p/out"


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, SECONDS_MAX)


class Peer:
    """One connection. Frames of the worker go through the state machines, so an illegal one fails the test. Frames of
    the test do so only if they are legal: a test may send anything.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = Decoder(Use.SINK)
        self._frames: list[Frame] = []
        self._session = Session(Use.SINK, Role.ACCEPTOR)
        self._round = Round()

    async def next(self) -> Frame | None:
        """The next frame; None if the worker has closed."""
        while not self._frames:
            try:
                data = await soon(self.reader.read(65536))
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames = list(self._decoder.feed(data))
        frame = self._frames.pop(0)
        self._session.receive(frame)
        if isinstance(frame, TwoPhase | Message):
            self._round.receive(frame)
        return frame

    async def expect(self, kind: type[F]) -> F:
        frame = await self.next()
        assert isinstance(frame, kind), f"{kind.__name__} expected: {frame}"
        return frame

    async def expect_close(self) -> None:
        frame = await self.next()
        assert frame is None, f"a close expected: {frame}"

    async def messages(self, count: int) -> list[Message]:
        return [await self.expect(Message) for _ in range(count)]

    async def send(self, *frames: Frame) -> None:
        for frame in frames:
            if isinstance(frame, Ok):
                self._session.send(frame)
            if isinstance(frame, Reply | ReplyUncommitted):
                self._round.send(frame)
        await self.send_bytes(b"".join(map(encode, frames)))

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await soon(self.writer.drain())

    async def receive_hello(self) -> tuple[Hello, int]:
        """Receive everything that a worker sends first. Returns the HELLO and the list's rtag."""
        hello = await self.expect(Hello)
        notify = await self.expect(Notify)
        assert notify.stream_id == OUTPUT_STREAM
        return hello, (await self.expect(ListUncommitted)).rtag

    async def greet(self, *uncommitted: bytes, point: int = NOTHING_YET) -> Hello:
        hello, rtag = await self.receive_hello()
        await self.send(Ok(0), NotifyAck(True, OUTPUT_STREAM, point), ReplyUncommitted(rtag, uncommitted))
        return hello

    async def vote(self, commit: bool = True) -> Phase1:
        phase1 = await self.expect(Phase1)
        await self.send(Reply(phase1.txn_id, commit))
        return phase1

    async def decision(self) -> tuple[bytes, bool]:
        phase2 = await self.expect(Phase2)
        return phase2.txn_id, phase2.commit

    def close(self) -> None:
        self.writer.transport.abort()


class ScriptedSink:
    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self.all: list[Peer] = []

    async def listen(self, tls: ssl.SSLContext | None = None) -> None:
        """On the same port as before, if there was one."""
        self._server = await asyncio.start_server(self.welcome, "127.0.0.1", self.port, ssl=tls, limit=64 * 1024)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        peer = Peer(reader, writer)
        self.all.append(peer)
        self._peers.put_nowait(peer)

    async def accept(self) -> Peer:
        return await soon(self._peers.get())

    def sink(self, **options: Any) -> ConnectorSink:
        return ConnectorSink(ConnectorProtocolOptions(host="127.0.0.1", port=self.port, **options), INSTANCE)

    async def opened(self, *uncommitted: bytes, decided: bytes = b"", **options: Any) -> tuple[ConnectorSink, Peer]:
        """A sink of delivery, and this end of its first connection, after the handshake."""
        sink = self.sink(**options)
        opening = asyncio.create_task(sink.open(decided))
        peer = await self.accept()
        await peer.greet(*uncommitted)
        await soon(opening)
        return sink, peer


@asynccontextmanager
async def scripted_sink(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedSink]:
    scripted = ScriptedSink()
    await scripted.listen(tls)
    try:
        yield scripted
    finally:
        scripted.stop_listening()
        for peer in scripted.all:
            peer.close()
