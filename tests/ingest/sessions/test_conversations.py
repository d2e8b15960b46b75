"""Scripted conversations with a source, over a real socket, frame by frame."""

import pytest

from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Error,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    announce_window,
)
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support.waiting import eventually


async def acked(peer: Peer, stream_id: int, last_id: int) -> int:
    """Wait for this acknowledgement. Returns the credits in the frames that were read."""
    granted = 0
    while True:
        frame = await peer.frame()
        assert isinstance(frame, Ack), frame
        granted += frame.credits
        if Acked(stream_id, last_id) in frame.acked:
            return granted


async def test_the_happy_path_byte_for_byte(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running, hello=False)
    peer.send(bytes.fromhex("0000001a 00 0005 302e302e31 0000 0004 70726f67 0008 696e7374616e6365".replace(" ", "")))
    raw = await peer.reader.readexactly(9)
    assert raw[:5] == bytes.fromhex("0000000501")
    peer.send(bytes.fromhex("00000018 03 bd29af3b35fbe79a 0005 6b65795f30 0000000000000000".replace(" ", "")))
    assert await peer.reader.readexactly(22) == bytes.fromhex("00000012 04 01 bd29af3b35fbe79a ffffffffffffffff")
    assert await peer.frame() == Ack(1), "the NOTIFY's credit comes back with its answer"
    message = Message(0xBD29AF3B35FBE79A, 1, 0, b"key_0", b"thirteen byte")
    peer.send(message)
    assert await acked(peer, 0xBD29AF3B35FBE79A, 1) == 1
    assert b"thirteen byte" in running.stored("instance")
    assert b"key_0" in running.stored("instance")


async def test_credits_are_the_window_in_frames_of_at_least_4_kib(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", announce_window("test"), "source"))
    assert await peer.frame() == Ok(8 * 2**20 // 4096)


async def test_a_source_resumes_after_its_last_stored_message(serve: Serve, connect: Connect) -> None:
    running = await serve()
    first = await connect(running)
    assert await first.open(7) == NOTHING_YET
    first.send(Message(7, 10, 0, b"", b"ten"), Message(7, 20, 0, b"", b"twenty"))
    await acked(first, 7, 20)
    await first.close()
    again = await connect(running)
    assert await again.open(7) == 20
    again.send(Message(7, 10, 0, b"", b"ten"), Message(7, 20, 0, b"", b"twenty"), Message(7, 30, 0, b"", b"thirty"))
    await acked(again, 7, 30)
    assert running.stored("source").count(b"twenty") == 1
    assert running.sources.counters.duplicates == 2
    after_restart = await connect(await serve())
    assert await after_restart.open(7) == 30


async def test_message_id_zero_is_a_message(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    assert await peer.open(7) == NOTHING_YET
    peer.send(Message(7, 0, 0, b"", b"the first"))
    await acked(peer, 7, 0)
    await peer.close()
    assert await (await connect(running)).open(7) == 0


async def test_a_stream_in_use_elsewhere_is_refused_and_free_when_that_session_ends(
    running: RunningServer, connect: Connect
) -> None:
    holder, other = await connect(running), await connect(running)
    await holder.open(7)
    other.send(Notify(7, "stream"))
    assert await other.frame() == NotifyAck(False, 7, 0)
    assert await other.frame() == Ack(1), "existing clients retry on the next ACK"
    await holder.close()
    await eventually(lambda: not any(running.sources.registry.counts().values()))
    assert await other.open(7) == NOTHING_YET


async def test_the_same_stream_of_another_source_is_another_stream(running: RunningServer, connect: Connect) -> None:
    first, second = await connect(running, "first"), await connect(running, "second")
    await first.open(7)
    first.send(Message(7, 1, 0, b"", b"x"))
    await acked(first, 7, 1)
    assert await second.open(7) == NOTHING_YET


async def test_eos_is_acknowledged_with_the_last_id_and_the_stream_may_be_opened_again(
    running: RunningServer, connect: Connect
) -> None:
    peer = await connect(running)
    await peer.open(7)
    peer.send(Message(7, 5, 0, b"", b"x"), EndOfStream(7))
    await acked(peer, 7, 5)
    await acked(peer, 7, 5)
    assert await peer.open(7) == 5
    peer.send(EndOfStream(7))
    await acked(peer, 7, 5)


async def test_an_empty_stream_may_end(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    await peer.open(7)
    peer.send(EndOfStream(7))
    await eventually(lambda: not any(running.sources.registry.counts().values()))
    assert await peer.open(7) == NOTHING_YET


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([Hello("0.0.2", b"", "p", "i")], "version '0.0.2'"),
        ([Hello("v0.0.1", b"", "p", "i")], "version"),
        ([Hello("0.0.1", b"", "p", "a/b")], "not a valid source name"),
        ([Notify(1, "s")], "NOTIFY is not legal in state Connected"),
        ([Message(1, 1, 0, b"", b"x")], "MESSAGE is not legal in state Connected"),
        ([Hello("0.0.1", b"", "p", "i"), Hello("0.0.1", b"", "p", "i")], "HELLO is not legal in state Streaming"),
        ([Hello("0.0.1", b"", "p", "i"), Message(1, 1, 0, b"", b"x")], "stream 1: it is not open in this session"),
        ([Hello("0.0.1", b"", "p", "i"), EndOfStream(1)], "stream 1: it is not open in this session"),
        ([Hello("0.0.1", b"", "p", "i"), Ok(1)], "OK is not for the initiator"),
        ([b"\xff\xff\xff\xff"], "4294967295"),
        ([b"\x00\x00\x00\x01\x63"], "99"),
    ],
)
async def test_a_protocol_error_ends_the_session_with_its_reason(
    running: RunningServer, connect: Connect, sent: list[Hello | bytes], said: str
) -> None:
    good = await connect(running, "good")
    await good.open(1)
    peer = await connect(running, hello=False)
    peer.send(*sent)
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error), frames
    assert said in frames[-1].text
    good.send(Message(1, 1, 0, b"", b"x"))
    await acked(good, 1, 1)


async def test_the_cookie_is_checked_and_never_disclosed(serve: Serve, connect: Connect) -> None:
    running = await serve(cookie=b"Dragons-Love-Tacos")
    wrong = await connect(running, hello=False)
    wrong.send(Hello("0.0.1", b"wrong", "p", "i"))
    (error,) = await wrong.frames_until_closed()
    assert isinstance(error, Error)
    assert "cookie" in error.text
    assert "Dragons" not in error.text
    right = await connect(running, hello=False)
    right.send(Hello("0.0.1", b"Dragons-Love-Tacos", "p", "i"))
    assert isinstance(await right.frame(), Ok)


async def test_without_a_cookie_any_cookie_is_accepted_and_a_warning_is_logged_once(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = await serve()
    for cookie in (b"", b"Dragons-Love-Tacos", b"\xff\x00"):
        peer = await connect(running, hello=False)
        peer.send(Hello("0.0.1", cookie, "p", "i"))
        assert isinstance(await peer.frame(), Ok)
    assert sum("no cookie is set" in message for message in caplog.messages) == 1


async def test_without_auto_create_an_unknown_source_is_refused(serve: Serve, connect: Connect) -> None:
    await (await connect(await serve(), "known")).open(1)
    running = await serve(auto_create=False)
    assert isinstance(await connect(running, "known"), Peer)
    stranger = await connect(running, hello=False)
    stranger.send(Hello("0.0.1", b"", "p", "stranger"))
    (error,) = await stranger.frames_until_closed()
    assert isinstance(error, Error)
    assert "stranger" in error.text


async def test_a_message_without_credit_is_an_error(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 3)
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "p", "i"))
    assert await peer.frame() == Ok(3)
    await peer.open(1)
    peer.send(b"".join(_messages(1, range(10))))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "credit" in frames[-1].text


def _messages(stream_id: int, ids: range) -> list[bytes]:
    from penstock.protocol.connector import encode

    return [encode(Message(stream_id, number, 0, b"", b"x")) for number in ids]


async def test_a_handshake_that_takes_too_long_is_ended(serve: Serve, connect: Connect) -> None:
    peer = await connect(await serve(handshake_seconds=0.1), hello=False)
    (error,) = await peer.frames_until_closed()
    assert isinstance(error, Error)
    assert "HELLO" in error.text


async def test_too_many_streams_or_sessions_are_refused(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=1, streams_per_session_max=2)
    peer = await connect(running)
    await peer.open(1, "a")
    other = await connect(running, hello=False)
    assert await other.frames_until_closed() == [], "a plain close: the source tries again"
    assert running.sources.counters.sessions_refused == 1
    peer.send(Notify(2, "b"), Notify(3, "c"))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "streams_per_session_max" in frames[-1].text


async def test_an_error_of_the_source_is_shown_in_the_status(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    peer.send(Error("my disk is gone"))
    assert await peer.frames_until_closed() == []
    assert running.programs.sessions.errors[0].error == "my disk is gone"


async def test_restart_names_another_worker(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    running.programs.restart("127.0.0.1:7777")
    assert await peer.frames_until_closed() == [Restart("127.0.0.1:7777")]


async def test_at_its_quota_a_source_gets_no_credits_until_there_is_room(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 4, source=SourceSettings(segments=1, quota_bytes=500))
    peer = await connect(running)
    await peer.open(1)
    while await peer.frame() != Ack(1):
        pass
    peer.send(Message(1, 1, 0, b"", bytes(600)))
    assert await acked(peer, 1, 1) == 0
    peer.send(Message(1, 2, 0, b"", b"x"), Message(1, 3, 0, b"", b"x"), Message(1, 4, 0, b"", b"x"))
    assert await acked(peer, 1, 4) == 0, "what had credit is stored, and nothing more is granted"
    segment = running.sources.log("source").segments[0]
    running.store.truncate(segment, running.store.length(segment))
    assert await peer.frame() == Ack(4)


async def test_truncating_a_segment_does_not_forget_its_streams(serve: Serve, connect: Connect) -> None:
    running = await serve()
    peer = await connect(running)
    await peer.open(1)
    peer.send(Message(1, 77, 0, b"", b"x"))
    await acked(peer, 1, 77)
    for segment in running.sources.log("source").segments:
        running.store.truncate(segment, running.store.length(segment))
    await peer.close()
    await running.crash()
    again = await connect(await serve())
    assert await again.open(1) == 77
