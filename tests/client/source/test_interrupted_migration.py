"""A migration is interrupted after each of its steps, at either worker or at both: the source finds the worker that has
its stream, which gets every message once, and nothing that was acknowledged is sent again.
"""

import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from penstock.client import Message as SentMessage
from penstock.client.source import connections, session
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
)
from tests.client.source.conftest import KINDS
from tests.client.source.scripted_worker import SECONDS_MAX, Peer, ScriptedWorker

STORED, SENT, ALL = 4, 6, 10
"""How many messages are stored before the move, how many are sent, and how many there are."""


class Step(Enum):
    EOS = "the old worker has the end of the stream"
    ACKED = "it has acknowledged something"
    ALL_ACKED = "it has acknowledged what it could"
    OK = "the new worker has answered"
    MIGRATED = "the old one knows that"
    NOTIFIED = "the new one is asked to open the stream"


class Kind(Enum):
    OLD_GONE = "old gone"
    NEW_GONE = "new gone"
    BOTH_RESET = "both reset"
    OLD_SILENT = "old silent"


class Cluster:
    """Two workers. The shard moves to the new one, unless that is gone."""

    def __init__(self, step: Step, kind: Kind) -> None:
        self._step, self._kind = step, kind
        self._peers: dict[ScriptedWorker, Peer] = {}
        self.old, self.new = ScriptedWorker(self._moving, self._talk), ScriptedWorker(self._talk)
        self._owner = self.new
        self.stored: list[int] = []
        self.is_moving, self.is_over, self.was_interrupted = threading.Event(), threading.Event(), False

    def _after(self, step: Step) -> None:
        if step is not self._step or self.was_interrupted:
            return
        self.was_interrupted = True
        match self._kind:
            case Kind.OLD_GONE:
                self._leave(self.old)
            case Kind.NEW_GONE:
                self._owner = self.old
                self._leave(self.new)
            case Kind.BOTH_RESET:
                for peer in list(self._peers.values()):  # another thread adds those that come back
                    peer.reset()
            case Kind.OLD_SILENT if step in (Step.EOS, Step.ACKED, Step.ALL_ACKED, Step.MIGRATED):
                self.is_over.wait(SECONDS_MAX)

    def _leave(self, worker: ScriptedWorker) -> None:
        worker.leave()
        if worker in self._peers:
            self._peers[worker].reset()

    def _moving(self, peer: Peer) -> None:
        """The old worker, from the start."""
        self._peers[self.old] = peer
        peer.greet(100)
        stream_id = peer.expect(Notify).stream_id
        peer.send(NotifyAck(True, stream_id, NOTHING_YET))
        assert [peer.expect(Message).message_id for _ in range(SENT)] == [*range(SENT)]
        self.stored += range(STORED)
        peer.send(Migrate("127.0.0.1", self.new.port))
        peer.expect(EndOfStream)
        self.is_moving.set()
        self._after(Step.EOS)
        peer.send(Ack(0, (Acked(stream_id, 1),)))
        self._after(Step.ACKED)
        peer.send(Ack(0))
        self._after(Step.ALL_ACKED)
        peer.expect(MigrateAck)
        self._after(Step.MIGRATED)
        if self._kind is Kind.OLD_SILENT:
            self.is_over.wait(SECONDS_MAX)

    def _talk(self, peer: Peer) -> None:
        """Either worker, later: the owner of the shard takes the stream, the other one knows where it is."""
        here = self.new if peer.port == self.new.port else self.old
        self._peers[here] = peer
        peer.expect(Hello)
        if here is not self._owner:
            peer.send(Migrate("127.0.0.1", self._owner.port))
            peer.expect(MigrateAck)
            return
        if self._kind is Kind.OLD_GONE:
            self._after(Step.OK)  # before OK: MIGRATE_ACK follows it at once
        peer.send(Ok(100))
        self._after(Step.OK)
        stream_id = peer.expect(Notify).stream_id
        self._after(Step.NOTIFIED)
        peer.send(NotifyAck(True, stream_id, self.stored[-1]))
        while isinstance(frame := peer.next(), Message):
            assert frame.message_id == self.stored[-1] + 1
            self.stored.append(frame.message_id)
        assert frame == EndOfStream(stream_id)
        peer.send(Ack(0, (Acked(stream_id, self.stored[-1]),)))
        peer.expect_close()

    def numbers(self, after: int | None) -> Iterator[SentMessage | None]:
        for number in range(0 if after is None else after + 1, ALL):
            while number == SENT and not self.is_moving.is_set():
                yield None
            yield SentMessage(number, b"%d" % number)


@pytest.mark.parametrize("make", [KINDS["blocking"], KINDS["asyncio"]], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("step", Step, ids=lambda step: step.name)
def test_an_interrupted_migration_loses_nothing_and_repeats_nothing(
    step: Step, kind: Kind, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is Kind.OLD_SILENT:
        monkeypatch.setattr(session, "MIGRATE_SECONDS_MAX", 0.1)
        monkeypatch.setattr(connections, "FAREWELL_SECONDS", 0.1)
    cluster = Cluster(step, kind)
    with cluster.new, cluster.old:
        source = make(cluster.old.address, source="test", retry_seconds=SECONDS_MAX, poll_seconds=0.01)
        stream = source.stream("one", cluster.numbers)
        try:
            source.run()
        finally:
            cluster.is_over.set()
    assert cluster.was_interrupted
    assert cluster.stored == [*range(ALL)]
    assert stream.is_done
    assert stream.acknowledged == ALL - 1
