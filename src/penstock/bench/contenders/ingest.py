"""Our own worker, driven with raw bytes of the connector protocol, as sources do."""

import json
import socket
import urllib.request
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

from penstock.bench import events
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.contenders import connector_frames as frames
from penstock.bench.contenders.connector_frames import Answers, Batch
from penstock.bench.contenders.penstock import Penstock
from penstock.bench.drive import RECEIVE_BYTES_MAX, SILENCE_SECONDS_MAX
from penstock.bench.process import Server, connect

WINDOW = 4
"""Batches that make up all credits of a session; so one is sent while others are being stored."""

STORED_BYTES = events.HEADER.size + 28 + events.EVENT_BYTES
"""A message in a segment: stream id, event id, time, lengths of key and metadata, payload."""


def spread(number: int) -> int:
    """The id of a stream: in practice they are hashes. The factor is odd, so that no two products are the same."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64


class IngestLink:
    """One session with its streams. A message is counted when its credit comes back: the worker sends it with the
    point of reference, once the message is durable.
    """

    def __init__(self, sock: socket.socket, answers: Answers, batches: list[Batch]) -> None:
        self.sock = sock
        self.acked = answers.receive
        self.events = len(batches[0].data) // (frames.MESSAGE_HEAD.size + events.EVENT_BYTES)
        self._batches = cycle(batches)
        self._number = 0

    def batch(self) -> tuple[bytearray]:
        """A buffer's turn comes again when all of it is acknowledged: there are at least as many as in flight."""
        batch = next(self._batches)
        self._number += 1
        batch.renumber(self._number)
        return (batch.data,)


@dataclass(frozen=True, slots=True)
class IngestTarget:
    """`streams` are shared out among `connections`; each sends to its own, in random order."""

    port: int
    source: str
    streams: int
    connections: int
    one_by_one: bool = False

    def connect(self, index: int) -> IngestLink:
        sock = connect(self.port)
        sock.settimeout(SILENCE_SECONDS_MAX)
        answers = Answers()
        sock.sendall(frames.hello(self.source))
        while not answers.credits:
            receive(sock, answers)
        stream_ids = [spread(number) for number in range(index, self.streams, self.connections)]
        count = 1 if self.one_by_one else min(answers.credits // WINDOW, frames.BATCH_MESSAGES_MAX)
        open_streams(sock, answers, stream_ids)
        return IngestLink(sock, answers, make_batches(stream_ids, count))


def receive(sock: socket.socket, answers: Answers) -> None:
    data = sock.recv(RECEIVE_BYTES_MAX)
    if not data:
        raise BenchmarkFailed("the worker closed a connection before the load")
    answers.receive(data)


def open_streams(sock: socket.socket, answers: Answers, stream_ids: list[int]) -> None:
    """Returns when every NOTIFY is answered, and its credit is back. NOTIFYs may be sent without any."""
    granted = answers.credits
    sock.sendall(b"".join(frames.notify(stream_id, f"stream {stream_id}") for stream_id in stream_ids))
    while answers.opened < len(stream_ids) or answers.credits < granted + len(stream_ids):
        receive(sock, answers)


def make_batches(stream_ids: list[int], count: int) -> list[Batch]:
    """As many batches of `count` messages as all streams need to have their turn, and no fewer than are in flight."""
    Random(len(stream_ids)).shuffle(stream_ids)
    turns, payloads = cycle(stream_ids), events.payloads(count)
    number = max(WINDOW, -(-len(stream_ids) // count))
    return [Batch(list(islice(turns, count)), payloads) for _ in range(number)]


class Ingest(Penstock):
    """Our worker's gateway. All connections are sessions of one source."""

    name = "ingest"

    def __init__(self, connections: int, streams: int) -> None:
        super().__init__(events.STORED_BYTES, WINDOW, connections)
        self._streams = streams

    def load(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return IngestTarget(server.ports["connector"], "load", self._streams, self._connections)

    def probe(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return IngestTarget(server.ports["connector"], "probe", 1, 1, one_by_one=True)

    def stored(self, server: Server) -> int:
        """What the gateway has taken, duplicates apart, if the segments are long enough for it."""
        gateway = status(server)["gateway"]
        held = sum(source["held_bytes"] for source in gateway["sources"].values())
        messages: int = gateway["messages"]
        if held < messages * STORED_BYTES:
            raise BenchmarkFailed(f"{messages} messages need more than the {held} bytes that are stored")
        return messages


class ManyStreams(Ingest):
    name = "many_streams"


def status(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.ports['http']}/status", timeout=SILENCE_SECONDS_MAX
    ) as reply:
        found: dict[str, Any] = json.load(reply)
        return found
