"""One bad peer ends alone: the others do not notice, and memory stays within its limits."""

import asyncio
import random
import socket
import struct
from contextlib import suppress

import pytest

from penstock.client.segments import AsyncSegmentClient, SegmentClient
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AppendSetup,
    BeginAppendBlock,
    CreateSegment,
    DataAppended,
    ErrorMessage,
    Event,
    Hello,
    KeepAlive,
    Part,
    PartialMessage,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
)
from tests.segment_server.conftest import Connect, Peer, Running, Serve, hang_up
from tests.segment_server.test_appending import WRITER, block, set_up
from tests.support.gated_files import GatedFile, GatedFiles
from tests.support.waiting import SECONDS_MAX, eventually, until


async def raw(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">ii", 1, 2**24),
        struct.pack(">ii", 1, -1),
        struct.pack(">ii", 4711, 0),
        VERSIONED.encode(Hello(17, 5)) + VERSIONED.encode(SetupAppend(WRITER, "s"))[:-3] + b"\xff\xff\xff",
        DOCUMENT.encode(Event(b"outside a block")),
        DOCUMENT.encode(PartialMessage(Part.END, b"no begin")),
        DOCUMENT.encode(PartialMessage(Part.BEGIN, b"12")) * 2,
        DOCUMENT.encode(BeginAppendBlock(WRITER, 0, 2**30)),
    ],
)
async def test_what_the_protocol_does_not_allow_closes_that_connection_alone(
    data: bytes, versioned: Peer, running: Running
) -> None:
    await set_up(versioned)
    reader, writer = await raw(running.port)
    writer.write(data)
    async with asyncio.timeout(SECONDS_MAX):
        await reader.read()
    await hang_up(writer)
    versioned.send(block(1))
    assert isinstance(await versioned.reply(), DataAppended)
    assert running.server.counters.protocol_errors == 1


async def test_what_was_right_before_the_mistake_is_still_answered(versioned: Peer) -> None:
    await set_up(versioned)
    versioned.send(block(1), struct.pack(">ii", 7, 0))
    assert isinstance(await versioned.reply(), DataAppended)
    reply = await versioned.reply()
    assert isinstance(reply, ErrorMessage)
    assert "type 7" in reply.message
    assert await versioned.is_closed()


@pytest.mark.parametrize(("high", "low"), [(4, 1), (30, 18)])
async def test_a_client_of_another_version_learns_ours_before_the_end(running: Running, high: int, low: int) -> None:
    reader, writer = await raw(running.port)
    peer = Peer(reader, writer, VERSIONED)
    peer.send(Hello(high, low))
    assert await peer.reply() == Hello(17, 5)
    assert await peer.is_closed()
    await hang_up(writer)


async def test_keep_alive_is_echoed(versioned: Peer, document: Peer) -> None:
    versioned.send(KeepAlive())
    assert await versioned.reply() == KeepAlive()
    document.send(KeepAlive(b"any data"))
    assert await document.reply() == KeepAlive(b"any data")


async def test_a_peer_that_stops_in_the_middle_of_a_message_is_ended(serve: Serve) -> None:
    running = await serve(stall_seconds=0.2)
    stalled, stalled_writer = await raw(running.port)
    stalled_writer.write(VERSIONED.encode(Hello(17, 5)) + struct.pack(">ii", 1, 100) + b"half")
    quiet, quiet_writer = await raw(running.port)
    quiet_writer.write(VERSIONED.encode(Hello(17, 5)))
    await quiet.readexactly(16)
    async with asyncio.timeout(SECONDS_MAX):
        await stalled.read()
    quiet_writer.write(VERSIONED.encode(KeepAlive()))
    await quiet.readexactly(8)
    await hang_up(stalled_writer)
    await hang_up(quiet_writer)


@pytest.mark.parametrize("sent", [b"", struct.pack(">i", -127)])
async def test_a_peer_that_sends_no_whole_request_is_ended(serve: Serve, sent: bytes) -> None:
    running = await serve(handshake_seconds=0.2)
    reader, writer = await raw(running.port)
    for number in range(len(sent)):
        writer.write(sent[number : number + 1])
        await asyncio.sleep(0.1)
    async with asyncio.timeout(SECONDS_MAX):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    await hang_up(writer)


async def test_a_new_connection_replaces_the_longest_idle_one(serve: Serve) -> None:
    running = await serve(connections_max=3, address_connections_max=2)
    first, first_writer = await raw(running.port)
    await eventually(lambda: running.server.status().open_connections == 1)
    second, second_writer = await raw(running.port)
    await eventually(lambda: running.server.status().open_connections == 2)
    third, third_writer = await raw(running.port)
    async with asyncio.timeout(SECONDS_MAX):
        with suppress(ConnectionResetError):
            assert await first.read() == b""
    for reader, writer in [(second, second_writer), (third, third_writer)]:
        writer.write(VERSIONED.encode(Hello(17, 5)))
        await reader.readexactly(16)
    for writer in (first_writer, second_writer, third_writer):
        await hang_up(writer)


async def test_a_connection_is_refused_when_all_others_wait_for_a_reply(serve: Serve) -> None:
    running = await serve(connections_max=2, address_connections_max=2)
    running.store.create("empty")
    waiting = [await raw(running.port) for _ in range(2)]
    for reader, writer in waiting:
        writer.write(VERSIONED.encode(Hello(17, 5)) + VERSIONED.encode(ReadSegment("empty", 0, 100)))
        await reader.readexactly(16)
    await eventually(lambda: running.server.status().tail_reads == 2)
    reader, writer = await raw(running.port)
    async with asyncio.timeout(SECONDS_MAX):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert running.server.counters.connections_refused == 1
    for _, other in [*waiting, (reader, writer)]:
        await hang_up(other)


async def test_an_idle_connection_is_closed_and_the_clients_connect_again(serve: Serve) -> None:
    running = await serve(idle_seconds=0.3)
    address = f"127.0.0.1:{running.port}"
    async with AsyncSegmentClient(address) as client, await client.appender("s", create=True) as appender:
        for number in range(2):
            await appender.append(b"event %d" % number)
            await appender.flush()
            await eventually(lambda: running.server.status().open_connections == 0)
        assert [event.data async for event in client.events("s")] == [b"event 0", b"event 1"]
    await asyncio.to_thread(_append_with_pauses, address, running)


def _append_with_pauses(address: str, running: Running) -> None:
    with SegmentClient(address) as client, client.appender("t", create=True) as appender:
        for number in range(2):
            appender.append(b"event %d" % number)
            appender.flush()
            until(lambda: running.server.status().open_connections == 0)
        assert [event.data for event in client.events("t")] == [b"event 0", b"event 1"]


async def test_a_read_at_the_tail_is_not_idle(serve: Serve) -> None:
    running = await serve(idle_seconds=0.2, tail_wait_seconds=3)
    running.store.create("empty")
    reader, writer = await raw(running.port)
    peer = Peer(reader, writer, VERSIONED)
    peer.send(Hello(17, 5), ReadSegment("empty", 0, 100))
    assert isinstance(await peer.reply(), Hello)
    assert isinstance(await peer.reply(), SegmentRead), "when its time is up, not the connection's"
    await peer.close()


async def test_a_peer_that_never_reads_is_no_longer_read(versioned: Peer, serve: Serve, running: Running) -> None:
    running.store.create("big")
    position = running.store.append("big", [bytes(2_000_000)]).position
    await asyncio.to_thread(running.store.journal.wait, position)
    _, writer = await raw(running.port)
    writer.write(VERSIONED.encode(Hello(17, 5)))
    request = VERSIONED.encode(ReadSegment("big", 0, 2_000_000))
    writer.write(request * 500)
    await eventually(lambda: running.server.status().paused_connections == 1)
    await asyncio.sleep(0.2)
    assert running.server.status().paused_connections == 1
    assert running.server.counters.read_bytes < 40_000_000, "a gigabyte was asked for"
    await set_up(versioned)
    versioned.send(block(1))
    assert isinstance(await versioned.reply(), DataAppended)
    writer.transport.abort()
    await hang_up(writer)


async def test_bytes_that_wait_for_the_disk_are_bounded_and_all_are_acknowledged_in_the_end(serve: Serve) -> None:
    GatedFile.gate.set()
    running = await serve(files=GatedFiles, unacknowledged_bytes_max=1_000_000)
    reader, writer = await raw(running.port)
    peer = Peer(reader, writer, VERSIONED)
    running.store.create("s")
    peer.send(Hello(17, 5), SetupAppend(WRITER, "s"))
    await peer.reply()
    await peer.reply()
    GatedFile.gate.clear()
    for number in range(100):
        peer.send(block(number, bytes(100_000)))
    await eventually(lambda: running.server.status().unacknowledged_bytes > 1_000_000)
    await asyncio.sleep(0.2)
    assert 1_000_000 < running.server.status().unacknowledged_bytes < 1_200_000
    GatedFile.gate.set()
    for _ in range(100):
        assert isinstance(await peer.reply(), DataAppended)
    await hang_up(writer)


async def test_a_good_client_is_served_among_garbage_stalled_and_half_open_connections(
    connect: Connect, running: Running
) -> None:
    seed = random.randrange(2**32)
    noise = random.Random(seed)
    good = await connect()
    await set_up(good)
    bad: list[asyncio.StreamWriter] = []
    for number in range(1, 101):
        _, writer = await raw(running.port)
        bad.append(writer)
        match number % 4:
            case 0:
                writer.write(noise.randbytes(noise.randrange(1, 5000)))
            case 1:
                writer.write(VERSIONED.encode(Hello(17, 5)) + noise.randbytes(noise.randrange(1, 500)))
            case 2:
                writer.write(VERSIONED.encode(CreateSegment(f"half {number}"))[:-2])
            case 3:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        await hang_up(writer)
        good.send(block(number))
        assert isinstance(await good.reply(), DataAppended), f"seed {seed}"
    for writer in bad:
        writer.transport.abort()
        await hang_up(writer)


@pytest.mark.parametrize("count", [4000, 20_000])
async def test_a_peer_that_sends_many_requests_at_once_is_answered_to_the_last(versioned: Peer, count: int) -> None:
    versioned.send(VERSIONED.encode(KeepAlive()) * count)
    for _ in range(count):
        assert await versioned.reply() == KeepAlive()


async def test_a_peer_that_ends_its_side_still_gets_all_its_answers(versioned: Peer) -> None:
    versioned.send(*(CreateSegment(f"s{number}") for number in range(6000)))
    versioned.writer.write_eof()
    for _ in range(6000):
        assert isinstance(await versioned.reply(), SegmentCreated)
    assert await versioned.is_closed()


async def test_writers_on_one_connection_are_limited(serve: Serve) -> None:
    running = await serve(appenders_max=2)
    running.store.create("s")
    reader, writer = await raw(running.port)
    peer = Peer(reader, writer, VERSIONED)
    peer.send(Hello(17, 5), *(SetupAppend(bytes([number] * 16), "s") for number in range(3)))
    kinds = [type(await peer.reply()) for _ in range(4)]
    assert kinds == [Hello, AppendSetup, AppendSetup, ErrorMessage]
    peer.send(SetupAppend(bytes([1] * 16), "s"))
    assert isinstance(await peer.reply(), AppendSetup), "one that the connection has already"
    await hang_up(writer)


async def test_an_idle_peer_of_the_document_s_dialect_gets_a_keep_alive(serve: Serve) -> None:
    running = await serve(keep_alive_seconds=0.0)
    reader, writer = await raw(running.port)
    peer = Peer(reader, writer, DOCUMENT)
    peer.send(KeepAlive(b"first"))
    assert [await peer.reply() for _ in range(3)] == [KeepAlive(b"first"), KeepAlive(), KeepAlive()]
    await hang_up(writer)
