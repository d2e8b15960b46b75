"""Epochs are sent, voted on and decided, and nothing of an aborted one remains."""

import asyncio

import pytest

from penstock.connectors.connector_protocol import sink as connector_connection
from penstock.connectors.connector_protocol import sink as connector_sink
from penstock.connectors.sink_api import YES, SinkLost, Transaction
from penstock.protocol.connector import (
    OUTPUT_STREAM,
    Ack,
    Acked,
    EndOfStream,
    Error,
    Message,
    Phase1,
    Range,
    Reply,
    Restart,
    encode,
)
from tests.connectors.connector_protocol.scripted_sink import Peer, ScriptedSink, soon
from tests.delivery.fake_epoch import FakeEpoch, Row
from tests.support.waiting import eventually


async def test_an_epoch_is_sent_voted_on_and_committed(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    epoch = FakeEpoch([Row(b"ab", b"k", 1_500_000), Row(b""), Row(b"cde", b"", -1), Row(b"", b"l", 0)], start=10)
    preparing = asyncio.create_task(sink.prepare(epoch))
    assert await peer.messages(4) == [
        Message(OUTPUT_STREAM, 10, 1500, b"k", b"ab"),
        Message(OUTPUT_STREAM, 12, 0, b"", b""),
        Message(OUTPUT_STREAM, 12, -1, b"", b"cde"),
        Message(OUTPUT_STREAM, 15, 0, b"l", b""),
    ]
    assert await peer.vote() == Phase1(b"p:1:1", (Range(OUTPUT_STREAM, 10, 15),))
    assert await soon(preparing) == YES
    await sink.commit(epoch.transaction)
    assert await peer.decision() == (b"p:1:1", True)
    await sink.close()


@pytest.mark.parametrize(("unit", "expected"), [("s", [1, -2]), ("ms", [1500, -1001]), ("us", [1_500_000, -1_000_001])])
async def test_event_times_are_sent_in_the_unit_of_the_sink(
    scripted: ScriptedSink, unit: str, expected: list[int]
) -> None:
    sink, peer = await scripted.opened(event_time_unit=unit)
    rows = [Row(b"a", time_us=1_500_000), Row(b"b", time_us=-1_000_001)]
    preparing = asyncio.create_task(sink.prepare(FakeEpoch(rows)))
    assert [message.event_time for message in await peer.messages(2)] == expected
    await peer.vote()
    await soon(preparing)
    await sink.close()


async def test_phase_1_is_not_sent_before_the_attempt_is_journalled(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    epoch = FakeEpoch([b"ab"], is_journalled=False)
    preparing = asyncio.create_task(sink.prepare(epoch))
    await peer.messages(1)
    asked = asyncio.create_task(peer.expect(Phase1))
    await asyncio.sleep(0.1)
    assert not asked.done()
    epoch.release()
    await soon(asked)
    await peer.send(Reply(b"p:1:1", True))
    assert await soon(preparing) == YES
    await sink.close()


async def test_an_epoch_of_empty_payloads_is_sent_and_has_an_empty_range(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b""] * 5, start=3)))
    assert [message.message_id for message in await peer.messages(5)] == [3] * 5
    assert (await peer.vote()).ranges == (Range(OUTPUT_STREAM, 3, 3),)
    assert await soon(preparing) == YES
    await sink.close()


async def test_after_a_vote_of_no_the_epoch_is_aborted_and_sent_again_in_the_same_session(
    scripted: ScriptedSink,
) -> None:
    sink, peer = await scripted.opened()
    for attempt in (1, 2):
        epoch = FakeEpoch([b"ab", b"c"], attempt=attempt)
        preparing = asyncio.create_task(sink.prepare(epoch))
        assert [message.message_id for message in await peer.messages(2)] == [0, 2]
        await peer.vote(False)
        vote = await soon(preparing)
        assert (vote.yes, vote.reason) == (False, f"the sink at 127.0.0.1:{scripted.port} votes no")
        await sink.abort(epoch.transaction_id)
        assert await peer.decision() == (b"p:1:%d" % attempt, False)
    assert scripted.connections == 1
    await sink.close()


async def test_an_epoch_can_be_aborted_after_a_vote_of_yes(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"])))
    await peer.messages(1)
    await peer.vote()
    await soon(preparing)
    await sink.abort(b"p:1:1")
    assert await peer.decision() == (b"p:1:1", False)
    assert scripted.connections == 1
    await sink.close()


async def test_an_abort_does_not_wait_for_the_vote_and_ignores_a_later_one(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"])))
    await peer.messages(1)
    await peer.expect(Phase1)
    await cancel(preparing)
    await sink.abort(b"p:1:1")
    assert await peer.decision() == (b"p:1:1", False)
    await peer.send(Reply(b"p:1:1", True))
    again = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"], attempt=2)))
    await peer.messages(1)
    await peer.expect(Phase1)
    await peer.send(Reply(b"p:1:1", True))  # and once more
    await asyncio.sleep(0.05)
    assert not again.done()
    await peer.send(Reply(b"p:1:2", False))
    assert not (await soon(again)).yes
    assert scripted.connections == 1
    await sink.close()


async def cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_messages_sent_without_phase_1_are_discarded_by_reconnecting(scripted: ScriptedSink) -> None:
    sink, first = await scripted.opened(decided=b"p:1:1")
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"], number=2, attempt=2, is_journalled=False)))
    await first.messages(1)
    await cancel(preparing)
    aborting = asyncio.create_task(sink.abort(b"p:2:2"))
    second = await scripted.accept()
    await second.greet(b"p:1:1")  # its PHASE2 has not arrived
    await soon(aborting)
    await first.expect_close()
    assert await second.decision() == (b"p:1:1", True)
    await deliver(sink, second, FakeEpoch([b"ab"], number=2, attempt=3))
    await sink.close()


async def deliver(sink: connector_sink.ConnectorSink, peer: Peer, epoch: FakeEpoch) -> None:
    preparing = asyncio.create_task(sink.prepare(epoch))
    await peer.messages(len(epoch.rows))
    await peer.vote()
    assert await soon(preparing) == YES
    await sink.commit(epoch.transaction)
    assert await peer.decision() == (epoch.transaction_id, True)


async def test_after_a_commit_a_new_connection_knows_the_decision(scripted: ScriptedSink) -> None:
    sink, first = await scripted.opened()
    await deliver(sink, first, FakeEpoch([b"ab"]))
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"c"], start=2, number=2, attempt=2, is_journalled=False)))
    await first.messages(1)
    await cancel(preparing)
    aborting = asyncio.create_task(sink.abort(b"p:2:2"))
    second = await scripted.accept()
    await second.greet(b"p:1:1")
    await soon(aborting)
    assert await second.decision() == (b"p:1:1", True)
    await sink.close()


async def test_an_epoch_cancelled_before_its_first_byte_needs_no_new_connection(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await sink.abort(b"p:1:1")
    assert sink.is_open
    await deliver(sink, peer, FakeEpoch([b"ab"], attempt=2))
    assert scripted.connections == 1
    await sink.close()


async def test_a_commit_that_was_settled_in_the_handshake_is_not_repeated(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened(b"p:1:1", decided=b"p:1:1")
    assert await peer.decision() == (b"p:1:1", True)
    await sink.commit(Transaction(b"p:1:1", 1, 0, 2))
    await deliver(sink, peer, FakeEpoch([b"c"], start=2, number=2, attempt=2))
    await sink.close()


async def test_a_message_over_the_frame_limit_is_a_vote_of_no_that_names_it(scripted: ScriptedSink) -> None:
    sink, first = await scripted.opened(frame_size_max=1000)
    epoch = FakeEpoch([b"ab", b"c" * 1000], block_rows=1)
    vote = await sink.prepare(epoch)
    assert (vote.yes, vote.reason) == (False, "message 2: its frame of 1027 bytes is over the limit of 1000")
    await first.messages(1)
    aborting = asyncio.create_task(sink.abort(epoch.transaction_id))
    second = await scripted.accept()
    await second.greet()
    await soon(aborting)
    await first.expect_close()
    await deliver(sink, second, FakeEpoch([b"ab"], attempt=2))
    await sink.close()


async def test_a_sink_that_does_not_vote_in_time_is_lost(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened(vote="100ms")
    with pytest.raises(SinkLost, match=r"has not voted for 0\.1 s"):
        await sink.prepare(FakeEpoch([b"ab"]))
    assert not sink.is_open
    assert "has not voted" in str(sink.lost)
    await peer.messages(1)
    await peer.expect(Phase1)
    await peer.expect_close()
    with pytest.raises(SinkLost):
        await sink.abort(b"p:1:1")
    await sink.close()


@pytest.mark.parametrize(("frame", "text"), [(Error("no more"), "reports: no more"), (Restart("b:1"), "at 'b:1'")])
async def test_an_undecided_round_is_lost_with_its_sink(
    scripted: ScriptedSink, frame: Error | Restart, text: str
) -> None:
    sink, peer = await scripted.opened()
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"])))
    await peer.messages(1)
    await peer.expect(Phase1)
    await peer.send(frame)
    with pytest.raises(SinkLost, match=text):
        await soon(preparing)
    for call in (sink.abort(b"p:1:1"), sink.prepare(FakeEpoch([b"ab"])), sink.end()):
        with pytest.raises(SinkLost, match=text):
            await call
    await sink.close()


async def test_a_commit_to_a_sink_that_is_gone_is_repeated_after_the_next_open(scripted: ScriptedSink) -> None:
    sink, first = await scripted.opened()
    epoch = FakeEpoch([b"ab"])
    preparing = asyncio.create_task(sink.prepare(epoch))
    await first.messages(1)
    await first.vote()
    await soon(preparing)
    first.close()
    await eventually(lambda: not sink.is_open)
    with pytest.raises(SinkLost, match=r"closed the connection|cannot be reached"):
        await sink.commit(epoch.transaction)
    await sink.close()
    opening = asyncio.create_task(sink.open(epoch.transaction_id))
    second = await scripted.accept()
    await second.greet(epoch.transaction_id)
    await soon(opening)
    assert await second.decision() == (epoch.transaction_id, True)
    await sink.close()


async def test_a_changed_vote_ends_the_session(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"ab"])))
    await peer.messages(1)
    await peer.vote()
    assert await soon(preparing) == YES
    await peer.send_bytes(encode(Reply(b"p:1:1", False)))
    assert "REPLY is not legal in state Voted" in (await peer.expect(Error)).text
    await eventually(lambda: not sink.is_open)
    await sink.close()


async def test_a_lost_connection_is_noticed_between_rounds(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await peer.send(Error("maintenance"))
    await eventually(lambda: not sink.is_open)
    assert str(sink.lost) == f"the sink at 127.0.0.1:{scripted.port} reports: maintenance"
    await peer.expect_close()
    await sink.close()


async def test_the_end_of_the_stream_is_sent_and_its_ack_awaited(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await deliver(sink, peer, FakeEpoch([b"ab", b"c"]))
    ending = asyncio.create_task(sink.end())
    assert await peer.expect(EndOfStream) == EndOfStream(OUTPUT_STREAM)
    await peer.send(Ack(0, (Acked(OUTPUT_STREAM, 1),)))
    await asyncio.sleep(0.05)
    assert not ending.done()
    await peer.send(Ack(0, (Acked(OUTPUT_STREAM, 2),)))
    await soon(ending)
    assert sink.is_open
    await sink.end()
    await sink.close()
    await peer.expect_close()


async def test_a_vote_counts_only_for_its_own_round(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    await deliver(sink, peer, FakeEpoch([b"ab"]))
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"c"], start=2, number=2, attempt=2)))
    await peer.messages(1)
    await peer.expect(Phase1)
    await asyncio.sleep(0.05)
    assert not preparing.done()
    await peer.send(Reply(b"p:2:2", False))
    assert not (await soon(preparing)).yes
    await sink.close()


async def test_the_end_is_acknowledged_at_the_offset_of_our_messages_whatever_the_sink_reported_at_first(
    scripted: ScriptedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_sink, "END_SECONDS", 60.0)
    sink = scripted.sink()
    opening = asyncio.create_task(sink.open(b""))
    peer = await scripted.accept()
    await peer.greet(point=2**40)
    await soon(opening)
    await deliver(sink, peer, FakeEpoch([b"ab", b"c"]))
    ending = asyncio.create_task(sink.end())
    await peer.expect(EndOfStream)
    await peer.send(Ack(0, (Acked(OUTPUT_STREAM, 2),)))
    await soon(ending)
    await sink.close()


async def test_a_sink_that_does_not_acknowledge_the_end_of_the_stream_is_tolerated(
    scripted: ScriptedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_sink, "END_SECONDS", 0.1)
    sink, peer = await scripted.opened()
    await sink.end()
    await peer.expect(EndOfStream)
    await sink.close()


async def test_a_sink_that_closes_at_the_end_of_the_stream_is_tolerated(scripted: ScriptedSink) -> None:
    sink, peer = await scripted.opened()
    ending = asyncio.create_task(sink.end())
    await peer.expect(EndOfStream)
    peer.close()
    await soon(ending)
    assert not sink.is_open
    await sink.close()


async def test_after_the_end_of_the_stream_an_epoch_is_sent_in_a_new_session(scripted: ScriptedSink) -> None:
    sink, first = await scripted.opened()
    await deliver(sink, first, FakeEpoch([b"ab"]))
    ending = asyncio.create_task(sink.end())
    await first.expect(EndOfStream)
    await first.send(Ack(0, (Acked(OUTPUT_STREAM, 0),)))
    await soon(ending)
    preparing = asyncio.create_task(sink.prepare(FakeEpoch([b"c"], start=2, number=2, attempt=2)))
    second = await scripted.accept()
    await second.greet()
    assert (await second.expect(Message)).message_id == 2
    await second.vote()
    assert await soon(preparing) == YES
    await sink.close()


async def test_a_close_lets_the_last_decision_arrive(scripted: ScriptedSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_connection, "FAREWELL_SECONDS", 10.0)
    sink, peer = await scripted.opened()
    epoch = FakeEpoch([b"ab"])
    preparing = asyncio.create_task(sink.prepare(epoch))
    await peer.messages(1)
    await peer.vote()
    await soon(preparing)
    await sink.commit(epoch.transaction)
    closing = asyncio.create_task(sink.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    assert await peer.decision() == (b"p:1:1", True)
    await peer.expect_close()
    peer.writer.close()
    await soon(closing)
