"""Sources and a real worker, which is killed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Message, Refused
from penstock.protocol.connector import stream_id_of
from tests.client.source.conftest import KINDS
from tests.client.source.stored import stored_messages
from tests.client.source.test_streams import MakeSource, numbers
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

KILLS, PORTION = 4, 6_000
COUNT = (KILLS + 1) * PORTION


def connector(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['connector']}"


def test_messages_are_stored_once_with_time_and_key(make_source: MakeSource, worker: RunningWorker) -> None:
    for last, sent in ((3000, 3000), (3000, 0), (5000, 2000)):
        source = make_source(connector(worker), source="numbers")
        stream = source.stream("s", numbers(last))
        other = source.stream("t", lambda after: [Message(0, b"first", 12, b"key")])
        source.run()
        assert (stream.sent, stream.acknowledged, other.acknowledged) == (sent, last, 0)
    found = stored_messages(worker.address, "numbers")
    assert [(m.id, m.payload) for m in found[stream_id_of("s")]] == [(n, b"message %d" % n) for n in range(1, 5001)]
    assert found[stream_id_of("t")] == [(0, 12_000, b"key", b"first")]


def test_many_streams_go_through_one_connection(make_source: MakeSource, worker: RunningWorker) -> None:
    source = make_source(connector(worker), source="many")
    streams = [source.stream(f"stream {n}", numbers(n)) for n in range(200)]
    source.run()
    assert all(stream.is_done for stream in streams)
    found = stored_messages(worker.address, "many")
    for n in range(200):
        assert [m.id for m in found[stream_id_of(f"stream {n}")]] == list(range(1, n + 1))


def test_the_worker_s_error_is_raised(make_source: MakeSource, worker: RunningWorker) -> None:
    source = make_source(connector(worker), source="no/name")
    source.stream("s", numbers(1))
    with pytest.raises(Refused, match="not a valid source name"):
        source.run()


def test_a_second_connector_waits_until_the_stream_is_free(make_source: MakeSource, worker: RunningWorker) -> None:
    release = threading.Event()

    def held(after: int | None) -> Iterator[Any]:
        yield 1, b"one"
        while not release.is_set():
            yield None

    first, second = (make_source(connector(worker), source="shared") for _ in range(2))
    opened = first.stream("s", held)
    thread = threading.Thread(target=first.run)
    thread.start()
    while opened.acknowledged is None:
        time.sleep(0.01)
    waiting = second.stream("s", numbers(3))
    threading.Timer(0.5, release.set).start()
    second.run()
    thread.join()
    assert (waiting.first_stored, waiting.sent) == (1, 2)


class Sending:
    """A source of one kind in a thread: a portion of the numbers, and the next one when it may."""

    def __init__(self, kind: str, address: str) -> None:
        self.name = kind.replace(" ", "-")
        self.allowed = PORTION
        self.acks: dict[str, list[int]] = {"a": [], "b": []}
        source = KINDS[kind](address, source=self.name, retry_seconds=60.0, poll_seconds=0.01, on_ack=self._on_ack)
        for name in self.acks:
            source.stream(name, self._numbers)
        self.thread = threading.Thread(target=source.run)
        self.thread.start()

    def _on_ack(self, name: str, last: int) -> None:
        self.acks[name].append(last)

    def _numbers(self, after: int | None) -> Iterator[Any]:
        for message in numbers(COUNT)(after):
            while message.id > self.allowed:
                yield None
            yield message

    def is_in_the_middle(self) -> bool:
        return all(told and told[-1] > self.allowed - PORTION for told in self.acks.values())


@pytest.mark.process
def test_nothing_is_lost_or_repeated_when_the_worker_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        all_kinds = [Sending(kind, f"127.0.0.1:{worker.connector_port}") for kind in KINDS]
        for _ in range(KILLS):
            until(lambda: all(sending.is_in_the_middle() for sending in all_kinds))
            worker.kill()
            for sending in all_kinds:
                sending.allowed += PORTION
            worker.start()
        for sending in all_kinds:
            sending.thread.join(120)
            assert not sending.thread.is_alive()
            found = stored_messages(worker.address, sending.name)
            for name, told in sending.acks.items():
                assert told[-1] == COUNT
                assert told == sorted(set(told))
                assert [m.id for m in found[stream_id_of(name)]] == list(range(1, COUNT + 1))
    assert "trying again" in caplog.text


@pytest.mark.process
def test_what_was_acknowledged_is_there_after_the_worker_was_killed(make_source: MakeSource, tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        source = make_source(f"127.0.0.1:{worker.connector_port}", source="acked", retry_seconds=0.0)

        def on_ack(name: str, last: int) -> None:
            if last > 20_000:
                worker.kill()

        source._on_ack = on_ack
        stream = source.stream("s", numbers(10_000_000))
        with pytest.raises(Exception, match="worker at"):
            source.run()
        acknowledged = stream.acknowledged
        worker.start()
        found = [m.id for m in stored_messages(worker.address, "acked")[stream_id_of("s")]]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= acknowledged > 20_000
