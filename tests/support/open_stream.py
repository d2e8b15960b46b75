"""A source that opens one stream, keeps it open, and sends what it is told to."""

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.protocol.connector import (
    Ack,
    Decoder,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Use,
    encode,
    stream_id_of,
)

RECEIVE_BYTES = 65536


class OpenStream:
    """On a plain socket."""

    def __init__(self, port: int, source: str, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._decoder = Decoder(Use.SOURCE)
        self._frames: list[Frame] = []
        self.stream_id = stream_id_of(name)
        self._socket.sendall(encode(Hello("0.0.1", b"", "test", source)) + encode(Notify(self.stream_id, name)))
        while not isinstance(answer := self._frame(), NotifyAck):
            pass
        assert answer.success
        self.point_of_reference = answer.point_of_reference
        self._acked = 0

    def _frame(self) -> Frame:
        while not self._frames:
            data = self._socket.recv(RECEIVE_BYTES)
            assert data, "the worker has closed"
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def send(self, message_id: int, event_time_ms: int) -> None:
        self._socket.sendall(encode(Message(self.stream_id, message_id, event_time_ms, b"", b"payload")))

    def acked(self) -> int:
        """The last acknowledged id, with what has arrived until now."""
        while select.select([self._socket], [], [], 0)[0] and (data := self._socket.recv(RECEIVE_BYTES)):
            self._frames.extend(self._decoder.feed(data))
        for frame in self._frames:
            if isinstance(frame, Ack):
                self._acked = max([self._acked, *(last_id for _, last_id in frame.acked)])
        self._frames.clear()
        return self._acked

    def acked_until_closed(self) -> int:
        """The last acknowledged id when the worker has closed the connection, or its process has ended."""
        with suppress(ConnectionResetError):
            while data := self._socket.recv(RECEIVE_BYTES):
                self._frames.extend(self._decoder.feed(data))
        with suppress(ConnectionResetError):
            self.acked()
        return self._acked

    def close(self) -> None:
        self._socket.close()


@contextmanager
def open_stream(port: int, source: str, name: str) -> Iterator[OpenStream]:
    stream = OpenStream(port, source, name)
    try:
        yield stream
    finally:
        stream.close()
