"""Programs that send a frame for every credit at once, and lose what a partial send does not accept."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import (
    Ack,
    Decoder,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Use,
    announce_window,
    encode,
)
from penstock.protocol.connector.credits import WINDOW_BYTES
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.support.waiting import eventually

STREAM = 7
MESSAGES = 5000


ETHERNET_SEGMENT_BYTES = 1448
"""Of an MTU of 1,500."""
SEND_BUFFER_BYTES = 64 * 1024


def payload(number: int, size: int) -> bytes:
    return number.to_bytes(4, "big") * (size // 4)


def loopback() -> socket.socket:
    return socket.socket()


def ethernet() -> socket.socket:
    """Small TCP segments, whose overhead counts in a small buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, ETHERNET_SEGMENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return sock


class NaiveProgram:
    """On a non-blocking socket. It runs in the server's own loop, so nothing is read while it sends: what does not fit
    into the buffers of the socket is lost for certain.
    """

    def __init__(self, port: int, size: int, sock: socket.socket) -> None:
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        self._socket = sock
        self._size = size
        self.lost_bytes = 0
        self._decoder = Decoder(Use.SOURCE)
        self._credits = 0
        self._sent = 0
        self._acked = 0

    async def run(self) -> None:
        with self._socket:
            self._send(encode(Hello("0.0.1", b"", "naive", "source")))
            while self._acked < MESSAGES:
                data = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
                assert data, "the worker has closed"
                for frame in self._decoder.feed(data):
                    self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Ok():
                self._credits += frame.credits - 1
                self._send(encode(Notify(STREAM, "stream")))
            case NotifyAck():
                self._use_credits()
            case Ack():
                self._credits += frame.credits
                self._acked = max([self._acked, *(last for _, last in frame.acked)])
                self._use_credits()
            case _:
                raise AssertionError(frame)

    def _use_credits(self) -> None:
        while self._credits and self._sent < MESSAGES:
            self._credits -= 1
            self._sent += 1
            self._send(encode(Message(STREAM, self._sent, 0, b"", payload(self._sent, self._size))))

    def _send(self, data: bytes) -> None:
        taken = 0
        with suppress(BlockingIOError):
            taken = self._socket.send(data)
        self.lost_bytes += len(data) - taken


@pytest.mark.parametrize(("size", "connection"), [(4000, loopback), (1000, ethernet)])
async def test_what_a_naive_program_sends_is_stored_exactly(
    running: RunningServer, size: int, connection: Callable[[], socket.socket]
) -> None:
    program = NaiveProgram(running.port, size, connection())
    async with asyncio.timeout(120):
        await program.run()
    stored = {event.event_id: bytes(event.payload) for event in running.events()}
    assert stored == {number: payload(number, size) for number in range(1, MESSAGES + 1)}
    assert program.lost_bytes == 0


@pytest.mark.parametrize(("size", "connection"), [(4000, loopback), (1000, ethernet)])
async def test_with_the_larger_window_of_penstock_clients_a_naive_program_stores_a_corrupt_event(
    serve: Serve, size: int, connection: Callable[[], socket.socket]
) -> None:
    """This is why a program gets this window only if it announces it."""
    running = await serve(source=SourceSettings(window_bytes=WINDOW_BYTES))
    program = NaiveProgram(running.port, size, connection())
    task = asyncio.create_task(program.run())

    def is_corrupt() -> bool:
        return any(bytes(event.payload) != payload(event.event_id, size) for event in running.events())

    await eventually(is_corrupt, lambda: task)
    assert program.lost_bytes > 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def credits_of(connect: Connect, running: RunningServer, program: str, source: str = "source") -> int:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", program, source))
    answer = await peer.frame()
    assert isinstance(answer, Ok)
    return answer.credits


async def test_a_program_starts_with_64_credits_unless_it_announces_a_larger_window(
    running: RunningServer, connect: Connect
) -> None:
    assert await credits_of(connect, running, "program") == 64
    assert await credits_of(connect, running, announce_window("program")) == 2048
    assert await credits_of(connect, running, "program;window=1048576") == 256
    assert await credits_of(connect, running, "program;window=4096") == 64  # a smaller one is not "more"
    capped = await credits_of(connect, running, "program;window=99999999999999")
    assert 1024 < capped <= 2048, "all sessions share the budget of what is in flight"
    assert await credits_of(connect, running, "program;window=much") == 64
    programs = {session.status().program for session in running.sessions}
    assert programs == {"program", "program;window=much"}


async def test_the_window_of_a_source_can_be_configured(serve: Serve, connect: Connect) -> None:
    running = await serve(
        source=SourceSettings(window_bytes=4096 * 8), sources={"fast": SourceSettings(window_bytes=1 << 20)}
    )
    assert await credits_of(connect, running, "program") == 8
    assert await credits_of(connect, running, "program", "fast") == 256


async def test_a_frame_larger_than_the_window_is_stored_and_leaves_one_credit(
    running: RunningServer, connect: Connect
) -> None:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "program", "source"))
    await peer.frame()
    await peer.open(STREAM)
    peer.send(Message(STREAM, 1, 0, b"", bytes(1 << 20)))
    while not (isinstance(frame := await peer.frame(), Ack) and frame.acked):
        pass
    assert await credits_of(connect, running, "program") == 1
