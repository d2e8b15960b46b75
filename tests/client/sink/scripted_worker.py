"""A scripted worker: a real socket to a sink, and the frames of the initiator."""

import socket
import ssl
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from penstock.protocol.connector import (
    OUTPUT_STREAM,
    SINK_VERSION,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    Role,
    Use,
    encode,
    encode_messages,
)
from tests.client.scripted_peer import Cut, ScriptedPeer

SECONDS_MAX = 20.0


class ScriptedWorker(ScriptedPeer):
    """One connection. What we send does not go through the session machine: a test may send anything."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        connected = _connect(host, int(port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connected = tls.wrap_socket(connected, server_hostname=host)
        super().__init__(connected, Use.SINK, Role.INITIATOR)
        self.offset = 0
        """Where the next message goes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            if isinstance(frame, Hello):
                self.session.send(frame)
        self.send_bytes(b"".join(map(encode, frames)))

    def receive_bytes(self, count: int) -> bytes:
        """So many bytes, whatever they are."""
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise Cut
            data += more
        return data

    def expect_error(self) -> str:
        """The text of the ERROR that comes, after which the connection is closed."""
        text = self.expect(Error).text
        self.expect_close()
        return text

    def greet(
        self, *, cookie: bytes = b"", program: str = "penstock", instance: str = "orders", version: str = SINK_VERSION
    ) -> tuple[bytes, ...]:
        """HELLO, NOTIFY and LIST_UNCOMMITTED back to back. Returns what is uncommitted."""
        self.send(Hello(version, cookie, program, instance), Notify(OUTPUT_STREAM, "output"), ListUncommitted(7))
        self.expect(Ok)
        self.offset = self.expect(NotifyAck).point_of_reference
        reply = self.expect(ReplyUncommitted)
        assert reply.rtag == 7
        return reply.txn_ids

    def uncommitted(self) -> tuple[bytes, ...]:
        """Asks for the list: everything that was sent before it is done when it comes."""
        self.send(ListUncommitted(1))
        return self.expect(ReplyUncommitted).txn_ids

    def write(self, payloads: Iterable[bytes], at: int | None = None) -> tuple[int, int]:
        """Messages; returns where they begin and end."""
        start = end = self.offset if at is None else at
        entries = []
        for payload in payloads:
            entries.append((end, 1000 + end, b"key", payload))
            end += len(payload)
        self.send_bytes(encode_messages(OUTPUT_STREAM, entries))
        self.offset = end
        return start, end

    def vote(self, txn_id: bytes, span: tuple[int, int]) -> bool:
        self.send(Phase1(txn_id, (Range(OUTPUT_STREAM, *span),)))
        reply = self.expect(Reply)
        assert reply.txn_id == txn_id
        return reply.commit

    def decide(self, txn_id: bytes, commit: bool) -> None:
        """Returns when it is done."""
        self.send(Phase2(txn_id, commit))
        assert txn_id not in self.uncommitted()

    def deliver(self, txn_id: bytes, payloads: Iterable[bytes]) -> None:
        """A whole epoch, committed."""
        assert self.vote(txn_id, self.write(payloads))
        self.decide(txn_id, True)


def _connect(host: str, port: int) -> socket.socket:
    """A sink that was just started may need a moment."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return socket.create_connection((host, port), SECONDS_MAX)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
