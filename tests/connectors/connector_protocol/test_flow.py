"""Delivery obeys TCP backpressure, and still receives a sink's frames. On both event loops that a worker may have."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.connectors.sink_api import YES, SinkLost
from penstock.protocol.connector import (
    OUTPUT_STREAM,
    Decoder,
    Error,
    Frame,
    ListUncommitted,
    Message,
    NotifyAck,
    Ok,
    Phase1,
    ReplyUncommitted,
    Restart,
    Use,
    encode,
)
from tests.connectors.connector_protocol.scripted_sink import Peer, ScriptedSink, scripted_sink, soon
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.waiting import eventually

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

BLOCK_ROWS, ROW_BYTES, BLOCKS = 16, 64 * 1024, 48
"""48 MiB in blocks of 1 MiB: more than all buffers of the kernel together, which are some megabytes."""

on_both = pytest.mark.parametrize("loop", LOOPS)


def large_epoch() -> FakeEpoch:
    rows = [bytes((number % 251,)) * ROW_BYTES for number in range(BLOCK_ROWS * BLOCKS)]
    return FakeEpoch(rows, block_rows=BLOCK_ROWS)


async def stalled(scripted: ScriptedSink) -> tuple[ConnectorSink, Peer, FakeEpoch, "asyncio.Task[object]"]:
    """A worker in the middle of an epoch, with a sink that has stopped reading."""
    sink, peer = await scripted.opened()
    epoch = large_epoch()
    preparing: asyncio.Task[object] = asyncio.create_task(sink.prepare(epoch))
    before = -1
    while before != epoch.taken:
        before = epoch.taken
        await asyncio.sleep(0.2)
    return sink, peer, epoch, preparing


def run(loop: str, test: Callable[[ScriptedSink], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with scripted_sink() as scripted:
            await test(scripted)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@on_both
def test_a_sink_that_does_not_read_stops_the_flow_of_blocks(loop: str) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, peer, epoch, preparing = await stalled(scripted)
        assert 0 < epoch.taken < BLOCKS // 2
        assert not preparing.done()
        received = 0
        while received < len(epoch.rows):
            message = await peer.expect(Message)
            assert message.payload == epoch.rows[received].value
            received += 1
        await peer.vote()
        assert await soon(preparing) == YES
        await sink.commit(epoch.transaction)
        assert await peer.decision() == (epoch.transaction_id, True)

    run(loop, test)


@on_both
@pytest.mark.parametrize("frame", [Error("the disk is on fire"), Restart("elsewhere:1")])
def test_frames_of_a_sink_are_received_while_it_does_not_read(loop: str, frame: Error | Restart) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, peer, _, preparing = await stalled(scripted)
        await peer.send(frame)
        with pytest.raises(SinkLost, match=r"the disk is on fire|elsewhere:1"):
            await soon(preparing)
        await sink.close()

    run(loop, test)


@on_both
def test_the_last_error_of_a_sink_that_has_closed_is_received(loop: str) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, peer, _, preparing = await stalled(scripted)
        await peer.send_bytes(encode(Error("the disk is on fire")))
        peer.close()  # with data unread: a reset follows
        with pytest.raises(SinkLost, match="the disk is on fire"):
            await soon(preparing)
        await sink.close()

    run(loop, test)


@on_both
def test_the_last_error_is_received_even_if_a_write_fails_first(loop: str) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(10.0)
            sink = ConnectorSink(ConnectorProtocolOptions(host="127.0.0.1", port=listener.getsockname()[1]), "p/out")
            greeted = asyncio.create_task(asyncio.to_thread(greet, listener))
            await soon(sink.open(b""))
            with await greeted as connected:
                connected.send(encode(Error("the disk is on fire")))
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # There is a reset, and the event loop does not get a chance to notice it before we write.
            with pytest.raises(SinkLost, match="the disk is on fire"):
                await sink.prepare(FakeEpoch([b"ab"] * 10))
            await sink.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(test())


def greet(listener: socket.socket) -> socket.socket:
    connected, _ = listener.accept()
    decoder, frames = Decoder(Use.SINK), list[Frame]()
    while not (frames and isinstance(frames[-1], ListUncommitted)):
        frames += decoder.feed(connected.recv(65536))
    answers = (Ok(0), NotifyAck(True, OUTPUT_STREAM, 0), ReplyUncommitted(frames[-1].rtag))
    connected.sendall(b"".join(map(encode, answers)))
    return connected


@on_both
def test_a_stalled_epoch_can_be_cancelled_and_sent_again(loop: str) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, _, _, preparing = await stalled(scripted)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        aborting = asyncio.create_task(sink.abort(b"p:1:1"))
        second = await scripted.accept()
        await second.greet()
        await soon(aborting)
        again = asyncio.create_task(sink.prepare(FakeEpoch([b"small"], attempt=2)))
        assert (await second.expect(Message)).payload == b"small"
        await second.vote()
        assert await soon(again) == YES

    run(loop, test)


@on_both
def test_a_sink_that_vanishes_in_the_middle_of_data_is_lost(loop: str) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, peer, _, preparing = await stalled(scripted)
        peer.close()
        with pytest.raises(SinkLost, match=r"closed the connection|cannot be reached"):
            await soon(preparing)
        await eventually(lambda: not sink.is_open)
        await sink.close()

    run(loop, test)


@on_both
def test_a_loss_while_the_attempt_is_journalled_is_noticed_before_phase_1(loop: str) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, peer = await scripted.opened()
        epoch = FakeEpoch([b"ab"], is_journalled=False)
        preparing = asyncio.create_task(sink.prepare(epoch))
        await peer.messages(1)
        await peer.send(Error("gone"))
        await eventually(lambda: not sink.is_open)
        epoch.release()
        with pytest.raises(SinkLost, match="reports: gone"):
            await soon(preparing)
        frame = await peer.next()
        assert not isinstance(frame, Phase1)
        await sink.close()

    run(loop, test)


@on_both
@pytest.mark.parametrize(("vote_seconds", "stall_seconds"), [(1, 60), (300, 300)])
def test_frames_are_sent_at_once_and_keepalive_detects_dead_peers(
    loop: str, vote_seconds: float, stall_seconds: int
) -> None:
    async def test(scripted: ScriptedSink) -> None:
        sink, _ = await scripted.opened(vote=f"{vote_seconds}s")
        assert sink._connection is not None
        assert sink._connection._transport is not None
        connected = sink._connection._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == stall_seconds * 1000

    run(loop, test)
