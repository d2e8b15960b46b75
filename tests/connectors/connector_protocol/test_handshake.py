"""How a session with a sink starts, and what is settled before anything else is sent."""

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.connectors.connector_protocol import sink as connector_sink
from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.connectors.sink_api import YES, SinkLost
from penstock.delivery.sink_slot import SinkSlot
from penstock.protocol.connector import (
    NOTHING_YET,
    OUTPUT_STREAM,
    SINK_VERSION,
    Ack,
    Acked,
    Error,
    Hello,
    Message,
    NotifyAck,
    Ok,
    Reply,
    ReplyUncommitted,
    Restart,
)
from tests.connectors.connector_protocol.scripted_sink import ScriptedSink, soon
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.waiting import eventually


async def test_hello_notify_and_the_list_are_sent_back_to_back(scripted: ScriptedSink, tmp_path: Path) -> None:
    (tmp_path / "cookie").write_bytes(b"s3cret\n")
    sink = scripted.sink(cookie_file=tmp_path / "cookie")
    opening = asyncio.create_task(sink.open(b""))
    peer = await scripted.accept()
    hello, rtag = await peer.receive_hello()  # nothing was answered yet
    assert (hello.version, hello.cookie, hello.program, hello.instance) == (
        SINK_VERSION,
        b"s3cret",
        "penstock",
        "p/out",
    )
    assert not sink.is_open
    await peer.send(Ok(0), ReplyUncommitted(rtag), NotifyAck(True, OUTPUT_STREAM, NOTHING_YET))
    await soon(opening)
    await eventually(lambda: sink.is_open)
    await sink.close()


async def test_program_and_instance_can_be_chosen(scripted: ScriptedSink) -> None:
    opening = asyncio.create_task(scripted.sink(program="shop", instance="orders").open(b""))
    hello = await (await scripted.accept()).greet()
    assert (hello.cookie, hello.program, hello.instance) == (b"", "shop", "orders")
    await soon(opening)


async def test_a_listed_transaction_is_committed_only_if_it_was_decided(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened(b"p:1:1", b"p:2:2", b"p:3:3", b"", decided=b"p:2:2")
    decisions = [await peer.decision() for _ in range(4)]
    assert decisions == [(b"p:1:1", False), (b"p:2:2", True), (b"p:3:3", False), (b"", False)]
    await sink.close()


async def test_without_any_decision_everything_listed_is_aborted(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened(b"p:1:1", b"", decided=b"")
    assert [await peer.decision() for _ in range(2)] == [(b"p:1:1", False), (b"", False)]
    await sink.close()


async def test_what_is_listed_is_decided_before_any_message(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened(b"p:1:1", decided=b"p:1:1")
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"new"], start=9, number=2, attempt=2)))
    assert await peer.decision() == (b"p:1:1", True)
    assert (await peer.expect(Message)).message_id == 9
    await peer.send(Reply(b"p:1:1", True))  # an answer to PHASE2
    await peer.vote()
    assert await soon(preparing) == YES
    await sink.close()


@pytest.mark.parametrize("point", [0, 5, 2**40, NOTHING_YET])
async def test_the_offset_of_the_ledger_counts_and_not_that_of_the_sink(scripted: ScriptedSink, point: int) -> None:
    sink = scripted.sink()
    opening = asyncio.create_task(sink.open(b""))
    peer = await scripted.accept()
    await peer.greet(point=point)
    await soon(opening)
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab", b"c"], start=100)))
    assert [message.message_id for message in await peer.messages(2)] == [100, 102]
    await peer.vote()
    assert await soon(preparing) == YES
    await sink.close()


async def test_acks_and_credits_have_no_effect(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await peer.send(Ack(0), Ack(1000, (Acked(OUTPUT_STREAM, 77), Acked(5, 6))))
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"])))
    await peer.messages(1)
    await peer.send(Ack(3, (Acked(OUTPUT_STREAM, 0),)))
    await peer.vote()
    assert await soon(preparing) == YES
    assert sink.is_open
    await sink.close()


async def lost_by(scripted: ScriptedSink, *frames: object, **options: object) -> SinkLost:
    """What `open` raises if the sink answers with these frames."""
    sink = scripted.sink(**options)
    opening = asyncio.create_task(sink.open(b""))
    peer = await scripted.accept()
    await peer.receive_hello()
    await peer.send(*frames)  # type: ignore[arg-type]
    with pytest.raises(SinkLost) as caught:
        await soon(opening)
    assert not sink.is_open
    return caught.value


async def test_a_refused_stream_is_retried_later(scripted: ScriptedSink) -> None:
    lost = await lost_by(scripted, Ok(0), NotifyAck(False, OUTPUT_STREAM, 0))
    assert str(lost) == f"the sink at 127.0.0.1:{scripted.port} is not accepting output now (it refused NOTIFY)"


async def test_the_text_of_an_error_of_the_sink_is_reported(scripted: ScriptedSink) -> None:
    lost = await lost_by(scripted, Error("the disk is being exchanged"))
    assert str(lost) == f"the sink at 127.0.0.1:{scripted.port} reports: the disk is being exchanged"


async def test_what_the_sink_reported_last_stays_in_its_status_while_it_is_gone(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    slot = SinkSlot("p", "out", "connector://", sink, lambda: None)
    await peer.send(Error("no space left on device"))
    peer.writer.close()
    await eventually(lambda: sink.lost is not None)
    scripted.stop_listening()
    for _ in range(2):
        with pytest.raises(SinkLost):
            await slot.open(b"")
        assert f"the sink at 127.0.0.1:{scripted.port} cannot be reached: " in slot.status.reason
        assert slot.status.reason.endswith("; before that it reported: no space left on device")
    await scripted.listen()
    opening = asyncio.create_task(slot.open(b""))
    await (await scripted.accept()).greet()
    await soon(opening)
    scripted.stop_listening()
    scripted.all[-1].close()
    await eventually(lambda: sink.lost is not None)
    with pytest.raises(SinkLost):
        await slot.open(b"")
    assert "no space left" not in slot.status.reason


async def test_a_long_error_is_truncated(scripted: ScriptedSink) -> None:
    assert len(str(await lost_by(scripted, Error("x" * 60_000)))) < 600


async def test_the_cookie_is_not_shown_even_if_the_sink_repeats_it(scripted: ScriptedSink, tmp_path: Path) -> None:
    (tmp_path / "cookie").write_bytes(b"s3cret")
    file = tmp_path / "cookie"
    lost = await lost_by(scripted, Error("'s3cret' is not the cookie"), cookie_file=file)
    assert str(lost).endswith("reports: '(cookie)' is not the cookie")
    assert "s3cret" not in repr(scripted.sink(cookie_file=file)) + repr(Hello(SINK_VERSION, b"s3cret", "", ""))


@pytest.mark.parametrize("address", ["", "other:7200"])
async def test_a_restart_is_a_loss_that_names_the_new_address(scripted: ScriptedSink, address: str) -> None:
    text = str(await lost_by(scripted, Ok(0), Restart(address)))
    assert "asks the worker to connect again" in text
    assert ("at 'other:7200'" in text) == bool(address)


async def test_a_violation_of_the_protocol_is_reported_to_both_sides(scripted: ScriptedSink) -> None:
    sink = scripted.sink()
    opening = asyncio.create_task(sink.open(b""))
    peer = await scripted.accept()
    await peer.receive_hello()
    await peer.send(NotifyAck(True, OUTPUT_STREAM, 0))
    assert (await peer.expect(Error)).text == "NOTIFY_ACK is not legal in state Handshake"
    with pytest.raises(SinkLost, match="violates the protocol: NOTIFY_ACK is not legal in state Handshake"):
        await soon(opening)


async def test_an_unknown_frame_is_answered_with_an_error_and_a_close(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await peer.send_bytes(b"\0\0\0\1\x63")
    assert (await peer.expect(Error)).text == "tag 99: unknown frame"
    await peer.expect_close()
    await eventually(lambda: not sink.is_open)
    assert "tag 99" in str(sink.lost)


async def test_a_sink_that_closes_at_once_is_lost(scripted: ScriptedSink) -> None:
    opening = asyncio.create_task(scripted.sink().open(b""))
    (await scripted.accept()).close()
    with pytest.raises(SinkLost, match=r"closed the connection|cannot be reached: Connection reset"):
        await soon(opening)


async def test_a_sink_that_does_not_answer_is_lost(scripted: ScriptedSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_sink, "HANDSHAKE_SECONDS", 0.1)
    sink = scripted.sink()
    with pytest.raises(SinkLost, match=r"has not answered for 0\.1 s"):
        await sink.open(b"")
    peer = await scripted.accept()
    await peer.receive_hello()
    await peer.expect_close()
    assert not sink.is_open


async def test_a_sink_whose_port_is_closed_is_lost() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        options = ConnectorProtocolOptions(host="127.0.0.1", port=unused.getsockname()[1])
        with pytest.raises(SinkLost, match=r"cannot be reached: .*(Connect call failed|Connection refused)"):
            await ConnectorSink(options, "p/out").open(b"")


@pytest.mark.parametrize("content", [None, b"", b"\nsecond", b"x" * 65_536])
async def test_a_cookie_file_without_a_cookie_is_reported(
    scripted: ScriptedSink, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "cookie").write_bytes(content)
    with pytest.raises(SinkLost, match=str(tmp_path / "cookie")):
        await scripted.sink(cookie_file=tmp_path / "cookie").open(b"")
    assert scripted.connections == 0


async def test_a_cancelled_open_leaves_no_connection(scripted: ScriptedSink) -> None:
    opening = asyncio.create_task(scripted.sink().open(b""))
    peer = await scripted.accept()
    await peer.receive_hello()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await peer.expect_close()


async def test_calls_without_a_session_are_errors(scripted: ScriptedSink) -> None:
    sink = scripted.sink()
    assert not sink.is_open
    for call in (sink.prepare(FakeEpoch([b"a"])), sink.abort(b"p:1:1"), sink.end()):
        with pytest.raises(SinkLost, match="no connection"):
            await call
    await sink.close()
    await sink.close()
