"""A bad session ends alone: a good one next to it is acknowledged all the time, and memory stays bounded."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.api.status import SessionStatus
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Error,
    Hello,
    Message,
    Notify,
    Ok,
    announce_window,
    encode,
)
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support import http
from tests.support.waiting import eventually
from tests.support.worker_process import WorkerProcess

HELLO = encode(Hello("0.0.1", b"", announce_window("hostile"), "source"))
MIB = 1 << 20
TCP_REPAIR = 19


def message(stream_id: int, message_id: int, size: int = 1) -> bytes:
    return encode(Message(stream_id, message_id, 0, b"", bytes(size)))


@asynccontextmanager
async def a_good_source(running: RunningServer, connect: Connect) -> AsyncIterator[None]:
    """Sends one message at a time, each after the acknowledgement of the last, and checks that none was delayed."""
    peer = await connect(running, "good")
    await peer.open(1)
    done = asyncio.Event()

    async def send() -> int:
        number = 0
        while not done.is_set() or number < 3:
            number += 1
            peer.send(Message(1, number, 0, b"", b"good"))
            while True:
                frame = await peer.frame(20)
                assert isinstance(frame, Ack)
                if Acked(1, number) in frame.acked:
                    break
            await asyncio.sleep(0.001)
        return number

    task = asyncio.create_task(send())
    yield
    done.set()
    count = await task
    assert [event.event_id for event in running.events("good")] == list(range(1, count + 1))


class Raw:
    """A peer that reads only when the test wants it to, with a small receive buffer."""

    def __init__(self, running: RunningServer | int) -> None:
        port = running if isinstance(running, int) else running.port
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self._port = port

    async def connect(self, *sent: bytes) -> "Raw":
        await asyncio.get_running_loop().sock_connect(self.socket, ("127.0.0.1", self._port))
        await self.send(*sent)
        return self

    async def send(self, *data: bytes) -> None:
        for part in data:
            await asyncio.get_running_loop().sock_sendall(self.socket, part)

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, 65536)

    def abort(self) -> None:
        """With RST, not FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def shrink_send_buffers(running: RunningServer) -> None:
    """Let the network buffer little of what is not read."""
    for connection in running.connections:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def joined(running: RunningServer, source: str = "source") -> list[SessionStatus]:
    sessions = [session.status() for session in running.programs.sessions]
    return [session for session in sessions if session.source == source]


# Bytes.


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("prefix", [b"", HELLO, HELLO + encode(Notify(5, "s"))])
async def test_garbage_ends_only_its_own_session(
    running: RunningServer, connect: Connect, prefix: bytes, seed: int
) -> None:
    rng = random.Random(seed)
    async with a_good_source(running, connect):
        raw = await Raw(running).connect(prefix)
        with suppress(ConnectionError):
            for _ in range(20):
                tag = rng.randbytes(1) if rng.random() < 0.5 else bytes([rng.choice([0, 3, 5, 8])])
                body = rng.randbytes(rng.randrange(40))
                length = len(body) + 1 if rng.random() < 0.9 else rng.getrandbits(32)
                await raw.send(struct.pack(">I", length) + tag + body)
                await asyncio.sleep(0)
        raw.socket.close()
        await eventually(lambda: len(running.programs.sessions) == 1)
    assert sum(running.sources.registry.counts().values()) == 1


async def test_a_handshake_trickled_byte_by_byte_times_out(serve: Serve, connect: Connect) -> None:
    running = await serve(handshake_seconds=1)
    async with a_good_source(running, connect):
        peer = await connect(running, hello=False)
        for byte in HELLO[:10]:
            peer.send(bytes([byte]))
            await asyncio.sleep(0.12)
        (error,) = await peer.frames_until_closed()
        assert isinstance(error, Error)
        assert "no HELLO within 1 s" in error.text
        assert any("no HELLO" in e.error for e in running.programs.sessions.errors)


async def test_frames_may_arrive_one_byte_at_a_time(running: RunningServer, connect: Connect) -> None:
    async with a_good_source(running, connect):
        peer = await connect(running)
        await peer.open(5)
        for byte in message(5, 1) + message(5, 2):
            peer.send(bytes([byte]))
            await asyncio.sleep(0.001)
        while not (isinstance(frame := await peer.frame(), Ack) and Acked(5, 2) in frame.acked):
            pass


@pytest.mark.parametrize("begun", [message(5, 1, 1000)[:-1], message(5, 1)[:3], message(5, 1, 4 * MIB - 100)[:50]])
async def test_half_a_frame_does_not_delay_other_acks(running: RunningServer, connect: Connect, begun: bytes) -> None:
    async with a_good_source(running, connect):
        peer = await connect(running)
        await peer.open(5)
        peer.send(message(5, 0) + begun)
        while not (isinstance(frame := await peer.frame(), Ack) and Acked(5, 0) in frame.acked):
            pass
        assert len(joined(running)) == 1
        await peer.close()
        again = await connect(running)
        assert await again.open(5) == 0, "half a message is none"


async def test_reset_connections_leave_nothing_behind(running: RunningServer, connect: Connect) -> None:
    openings = [b"", HELLO[:7], HELLO, HELLO + encode(Notify(5, "s")), HELLO + encode(Notify(5, "s")) + message(5, 1)]
    async with a_good_source(running, connect):
        for number in range(100):
            raw = await Raw(running).connect(openings[number % len(openings)])
            if number % 3:
                await asyncio.sleep(0.001)
            raw.abort()
        await eventually(lambda: len(running.programs.sessions) == 1)
        assert sum(running.sources.registry.counts().values()) == 1


async def test_a_frame_over_the_limit_is_refused_by_its_length_alone(running: RunningServer, connect: Connect) -> None:
    async with a_good_source(running, connect):
        peer = await connect(running)
        peer.send(struct.pack(">IB", 4 * MIB + 1, 5))
        (error,) = [f for f in await peer.frames_until_closed() if not isinstance(f, Ack)]
        assert isinstance(error, Error)
        assert str(4 * MIB) in error.text


# Credits, ids, streams.


async def test_messages_beyond_credit_end_the_session_and_store_nothing(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 8)
    async with a_good_source(running, connect):
        peer = await connect(running)
        await peer.open(5)
        peer.send(b"".join(message(5, number) for number in range(100)))
        frames = await peer.frames_until_closed()
        assert isinstance(frames[-1], Error)
        assert "credit" in frames[-1].text
    assert running.events() == []
    assert running.sources.counters.protocol_errors == 1


async def test_frames_larger_than_the_credits_assume_close_the_session_without_an_error(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(window_bytes=64 * 1024)
    async with a_good_source(running, connect):
        peer = await connect(running)
        await peer.open(5)
        running.journal.commit = lambda: False  # type: ignore[method-assign]
        peer.send(*(message(5, number, 30_000) for number in range(10)))
        assert not any(isinstance(frame, Error) for frame in await peer.frames_until_closed())
        assert running.sources.counters.closed_for_room == 1
        del running.journal.commit
        peer = await connect(running, hello=False)
        peer.send(HELLO)
        assert await peer.frame() == Ok(2), "it resumes with fewer credits"
        assert isinstance(await peer.open(5), int)


async def test_ids_that_go_backwards_are_duplicates(running: RunningServer, connect: Connect) -> None:
    async with a_good_source(running, connect):
        peer = await connect(running)
        await peer.open(5)
        peer.send(b"".join(message(5, number) for number in (9, 8, 7, 9, 1, 0, 10, 2)))
        while not (isinstance(frame := await peer.frame(), Ack) and Acked(5, 10) in frame.acked):
            pass
    assert [event.event_id for event in running.events()] == [9, 10]
    assert running.sources.counters.duplicates == 6


async def test_more_streams_than_the_limit_end_the_session_and_release_its_streams(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(streams_per_session_max=1000)
    async with a_good_source(running, connect):
        peer = await connect(running)
        peer.send(b"".join(encode(Notify(number, f"stream {number}")) for number in range(1200)))
        frames = await peer.frames_until_closed()
        assert isinstance(frames[-1], Error)
        assert "streams_per_session_max" in frames[-1].text
        again = await connect(running)
        assert await again.open(3) == NOTHING_YET


# Peers that do not read.


async def test_a_source_that_never_reads_its_acks_gets_no_more_credits(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 64, write_buffer_bytes_max=4096)
    async with a_good_source(running, connect):
        reader = await Raw(running).connect(HELLO + encode(Notify(5, "s")))
        await eventually(lambda: joined(running) and joined(running)[0].streams == 1)
        await eventually(lambda: joined(running)[0].credits == 64)  # the one that NOTIFY used is granted again
        (connection,) = [one for one in running.connections if one._session._program == "hostile"]
        connection.pause_writing()  # as the transport does when its buffer is full
        for number in range(63):
            await reader.send(message(5, number))
            await asyncio.sleep(0)
        await eventually(lambda: len(running.events()) == 63)
        await asyncio.sleep(0.3)
        assert joined(running)[0].credits == 1
        connection.resume_writing()
        assert joined(running)[0].credits == 64
        reader.socket.close()


async def test_a_source_that_reads_no_replies_is_closed_before_they_fill_memory(serve: Serve, connect: Connect) -> None:
    running = await serve(write_buffer_bytes_max=16 * 1024, unread_bytes_max=64 * 1024)
    async with a_good_source(running, connect):
        holder = await connect(running)
        await holder.open(5)
        raw = await Raw(running).connect(HELLO)
        await eventually(lambda: len(joined(running)) == 2)
        shrink_send_buffers(running)
        notify = encode(Notify(5, "in use elsewhere")) * 1000
        with suppress(ConnectionError):
            for _ in range(10_000):
                await raw.send(notify)
        assert running.sources.counters.closed_for_room == 1
        assert len(joined(running)) == 1
        assert running.sources.counters.streams_refused < 20_000
        raw.socket.close()


async def test_a_source_that_keeps_reopening_a_stream_without_reading_replies_is_closed(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(write_buffer_bytes_max=16 * 1024, unread_bytes_max=64 * 1024)
    async with a_good_source(running, connect):
        raw = await Raw(running).connect(HELLO)
        await eventually(lambda: len(joined(running)) == 1)
        shrink_send_buffers(running)

        async def until_opened(count: int) -> None:
            await eventually(lambda: running.sources.counters.streams_opened == count or not joined(running))

        with suppress(ConnectionError):
            for rounds in range(1, 201):
                await raw.send(b"".join(encode(Notify(number, "s")) for number in range(100)))
                await until_opened(1 + 100 * rounds)
                await raw.send(b"".join(encode(EndOfStream(number)) for number in range(100)))
                await eventually(lambda: sum(running.sources.registry.counts().values()) == 1)
        assert joined(running) == []
        assert running.sources.counters.closed_for_room == 1
        assert sum(running.sources.registry.counts().values()) == 1
        raw.socket.close()


async def test_a_failed_session_that_does_not_read_frees_its_streams_at_once(serve: Serve, connect: Connect) -> None:
    running = await serve(write_buffer_bytes_max=MIB, unread_bytes_max=64 * MIB)
    raw = await Raw(running).connect(HELLO + encode(Notify(5, "s")))
    await eventually(lambda: len(joined(running)) == 1)
    shrink_send_buffers(running)
    holder = await connect(running)
    await holder.open(6)
    await raw.send(encode(Notify(6, "in use elsewhere")) * 10_000)  # more answers than the network takes
    await raw.send(b"\xff" * 10)
    await eventually(lambda: running.sources.counters.protocol_errors == 1)
    assert len(running.programs.sessions) == 2, "it has not fetched its ERROR"
    assert await holder.open(5) == NOTHING_YET
    await eventually(lambda: len(running.programs.sessions) == 1)
    raw.socket.close()


# Peers that have gone.


async def test_keepalive_detects_dead_peers(serve: Serve, connect: Connect) -> None:
    running = await serve(dead_peer_seconds=9)
    await connect(running)
    (connection,) = running.connections
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [3, 3, 2, 9000]


async def test_a_source_that_vanished_silently_does_not_lock_out_its_successor(serve: Serve, connect: Connect) -> None:
    running = await serve(dead_peer_seconds=3)
    raw = await Raw(running).connect(HELLO + encode(Notify(5, "s")))
    await eventually(lambda: len(joined(running)) == 1 and joined(running)[0].streams == 1)
    try:
        raw.socket.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)  # its end goes without FIN or RST
    except PermissionError:
        pytest.skip("needs CAP_NET_ADMIN")
    raw.socket.close()
    successor = await connect(running)
    while True:
        with suppress(AssertionError):  # it is refused as long as the other one is taken for alive
            assert await successor.open(5) == NOTHING_YET
            break
    await eventually(lambda: len(joined(running)) == 1)


# Memory, in a process of its own.


def status_of(worker: WorkerProcess) -> dict[str, Any]:
    status: dict[str, Any] = http.get(worker.http_port, "/status")
    return status


def resident_bytes(worker: WorkerProcess) -> int:
    pid = status_of(worker)["pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


async def claim_a_large_frame(port: int) -> Raw:
    return await Raw(port).connect(HELLO + struct.pack(">IB", 4 * MIB, 5))


async def name_streams_at_length(port: int) -> Raw:
    raw = await Raw(port).connect(HELLO)
    notify = struct.pack(">IBQH", 1 + 8 + 2 + 60_000 + 8, 3, random.getrandbits(64), 60_000)
    for _ in range(50):
        stream_id = struct.pack(">Q", random.getrandbits(64))
        await raw.send(notify[:5] + stream_id + notify[13:] + bytes(60_008))
    return raw


async def refuse_to_read(port: int) -> Raw:
    raw = await Raw(port).connect(HELLO + encode(Notify(random.getrandbits(64), "s")))
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(2):
            for number in range(1000):
                await raw.send(encode(Notify(1, "in use elsewhere")) * 500 + message(number, 1))
    return raw


@pytest.mark.process
@pytest.mark.parametrize(
    ("attack", "each"),
    [(claim_a_large_frame, 5 * MIB), (name_streams_at_length, MIB), (refuse_to_read, 2 * MIB)],
)
async def test_fifty_hostile_sessions_stay_within_the_memory_limit(
    tmp_path: Path, attack: Callable[[int], Awaitable[Raw]], each: int
) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.connector_port)
        good = Peer(reader, writer)
        good.send(Hello("0.0.1", b"", "test", "good"))
        assert isinstance(await good.frame(), Ok)
        await good.open(1)
        before = resident_bytes(worker)
        raws = await asyncio.gather(*(attack(worker.connector_port) for _ in range(50)))
        good.send(Message(1, 1, 0, b"", b"x"))
        while not (isinstance(frame := await good.frame(), Ack) and Acked(1, 1) in frame.acked):
            pass
        grown = resident_bytes(worker) - before
        print(f"{attack.__name__}: {grown / MIB:.0f} MiB for {len(raws)} sessions")
        assert grown < 50 * each + 20 * MIB
        for raw in raws:
            raw.socket.close()
        await good.close()
