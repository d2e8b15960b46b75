"""Programs that queue a frame for every credit, and lose what a partial send did not take."""

import asyncio
import socket
from contextlib import suppress

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
from tests.ingest.conftest import Connect, RunningGateway, Serve

STREAM = 7
MESSAGES = 5000


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * 1000


class NaiveProgram:
    """On a non-blocking socket. It runs in the gateway's own loop, so nothing is read while it sends: what does not fit
    into the buffers of the socket is lost for certain.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
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
            self._send(encode(Message(STREAM, self._sent, 0, b"", payload(self._sent))))

    def _send(self, data: bytes) -> None:
        with suppress(BlockingIOError):
            self._socket.send(data)


async def test_what_a_naive_program_sends_is_stored_exactly(running: RunningGateway) -> None:
    async with asyncio.timeout(120):
        await NaiveProgram(running.port).run()
    stored = {event.event_id: bytes(event.payload) for event in running.events()}
    assert stored == {number: payload(number) for number in range(1, MESSAGES + 1)}


async def credits_of(connect: Connect, running: RunningGateway, program: str, source: str = "source") -> int:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", program, source))
    answer = await peer.frame()
    assert isinstance(answer, Ok)
    return answer.credits


async def test_a_program_starts_with_64_credits_unless_it_announces_a_larger_window(
    running: RunningGateway, connect: Connect
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


async def test_the_window_of_a_source_is_an_option(serve: Serve, connect: Connect) -> None:
    running = await serve(
        source=SourceSettings(window_bytes=4096 * 8), sources={"fast": SourceSettings(window_bytes=1 << 20)}
    )
    assert await credits_of(connect, running, "program") == 8
    assert await credits_of(connect, running, "program", "fast") == 256


async def test_a_frame_larger_than_the_window_is_stored_and_leaves_one_credit(
    running: RunningGateway, connect: Connect
) -> None:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "program", "source"))
    await peer.frame()
    await peer.open(STREAM)
    peer.send(Message(STREAM, 1, 0, b"", bytes(1 << 20)))
    while not (isinstance(frame := await peer.frame(), Ack) and frame.acked):
        pass
    assert await credits_of(connect, running, "program") == 1
