"""The bytes that our sources' driver sends, against the protocol's own codec, and how it counts what comes back."""

from pathlib import Path

import pytest

from bench import events
from bench.contenders import ingest as frames
from bench.contenders.ingest import (
    BEGAN_MS,
    KEY_BYTES,
    STORED_BYTES,
    WINDOW,
    Answers,
    Batch,
    Ingest,
    Messages,
    make_batches,
    spread,
    status,
)
from bench.events import EVENT_BYTES
from bench.harness import BenchmarkFailed
from penstock.protocol.connector import (
    Ack,
    Acked,
    Error,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    encode,
)
from penstock.protocol.connector.bulk import StreamTable, rewrite, scan
from penstock.protocol.connector.frames import EventTimeUnit

PAYLOADS = events.payloads(3)


def messages(batch: Batch) -> list[Message]:
    columns = scan(batch.data)
    return [columns.message(index) for index in range(len(columns))]


def test_hello_and_notify() -> None:
    assert frames.hello("load") == encode(Hello("0.0.1", b"", "bench;window=8388608", "load"))
    assert frames.hello("load", announces_window=False) == encode(Hello("0.0.1", b"", "bench", "load"))
    assert frames.notify(7, "stream 7") == encode(Notify(7, "stream 7", 0))


def test_a_batch_is_message_frames_without_keys() -> None:
    found = messages(Batch([7, 8, 7], PAYLOADS))
    assert found == [Message(stream, place, 0, b"", PAYLOADS[place]) for place, stream in enumerate([7, 8, 7])]


@pytest.mark.parametrize("number", [1, 255, 256, 65536, 2**48 - 1])
def test_a_batch_that_is_sent_again_has_other_ids_and_nothing_else_that_changed(number: int) -> None:
    batch = Batch([7, 8, 7], PAYLOADS)
    before = messages(batch)
    batch.renumber(255)
    batch.renumber(number)
    assert [m.message_id for m in messages(batch)] == [number << 16 | place for place in range(3)]
    batch.renumber(0)
    assert messages(batch) == before


def test_a_batch_that_waits_to_be_sent_can_still_be_renumbered() -> None:
    batch = Batch([7], PAYLOADS[:1])
    with memoryview(batch.data):
        batch.renumber(300)
    assert messages(batch)[0].message_id == 300 << 16


def test_all_streams_have_their_turn_before_one_has_its_second() -> None:
    stream_ids = [spread(number) for number in range(1000)]
    batches = make_batches(list(stream_ids), 100)
    assert len(batches) == 10
    sent = [m.stream_id for batch in batches for m in messages(batch)]
    assert sent != stream_ids
    assert sorted(sent) == sorted(stream_ids)


def test_there_are_as_many_batches_as_are_in_flight() -> None:
    assert len(make_batches([spread(0)], 100)) == WINDOW


def test_what_a_message_takes_in_a_segment() -> None:
    columns, table = scan(Batch([7], PAYLOADS[:1]).data), StreamTable(0)
    table.open(7)
    assert len(rewrite(columns, table.admit(columns, EventTimeUnit.MS))[0].data) == STORED_BYTES


def test_credits_are_counted_once_however_they_are_cut() -> None:
    sent = [Ok(2048), NotifyAck(True, 7, 0), Ack(1), Ack(500, (Acked(7, 9), Acked(8, 10))), Ack(0, (Acked(7, 11),))]
    answers = Answers()
    counted = sum(answers.receive(bytes([byte])) for frame in sent for byte in encode(frame))
    assert counted == answers.credits == 2549
    assert answers.opened == 1


@pytest.mark.parametrize("frame", [Error("no"), NotifyAck(False, 7, 0)])
def test_any_other_frame_ends_the_benchmark(frame: Error | NotifyAck) -> None:
    with pytest.raises(BenchmarkFailed, match=f"frame {frame.tag}"):
        Answers().receive(encode(frame))


def test_no_two_payloads_are_the_same_and_ids_and_times_go_up() -> None:
    columns = [scan(batch.tobytes()) for batch in Messages("s", 25, streams=3).batches(10)]
    found = [part.message(index) for part in columns for index in range(len(part))]
    assert len(found) == 25
    assert [message.message_id for message in found] == list(range(25))
    assert [message.event_time for message in found] == [BEGAN_MS + number for number in range(25)]
    assert len({message.stream_id for message in found}) == 3
    assert {(len(message.key), len(message.payload)) for message in found} == {(KEY_BYTES, EVENT_BYTES)}
    assert len({message.payload for message in found}) == 25


@pytest.mark.process
@pytest.mark.parametrize("together", [None, 10])
def test_all_messages_are_stored_when_send_returns(together: int | None, tmp_path: Path) -> None:
    with Ingest(1, 1).start(tmp_path) as server:
        Messages("s", 5005, together=together).send(server.ports["connector"])
        assert status(server)["source_totals"]["messages"] == 5005
