"""A source that opens one stream, keeps it open, and sends what it is told to."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.protocol.connector import Decoder, Frame, Hello, Message, Notify, NotifyAck, Use, encode, stream_id_of

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

    def _frame(self) -> Frame:
        while not self._frames:
            data = self._socket.recv(RECEIVE_BYTES)
            assert data, "the worker has closed"
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def send(self, message_id: int, event_time_ms: int) -> None:
        self._socket.sendall(encode(Message(self.stream_id, message_id, event_time_ms, b"", b"payload")))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def open_stream(port: int, source: str, name: str) -> Iterator[OpenStream]:
    stream = OpenStream(port, source, name)
    try:
        yield stream
    finally:
        stream.close()
