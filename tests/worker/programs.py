"""A program on the connector protocol, frame by frame."""

import socket

from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Use,
    announce_window,
    encode,
)
from tests.support.waiting import SECONDS_MAX
from tests.worker.bucket_moves import SOURCE


class Program:
    """A raw socket: version 0.0.1, one stream, as it was before there was MIGRATE."""

    def __init__(self, port: int, program: str = "old", version: str = "0.0.1", source: str = SOURCE) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._socket.settimeout(SECONDS_MAX)
        self._decoder = Decoder(Use.SOURCE)
        self._frames: list[Frame] = []
        self.send(Hello(version, b"", announce_window(program), source))

    def send(self, *frames: Frame) -> None:
        self._socket.sendall(b"".join(map(encode, frames)))

    def next(self) -> Frame | None:
        """None: the worker has closed."""
        while not self._frames:
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def until(self, kind: type[Frame]) -> Frame:
        while not isinstance(frame := self.next(), kind):
            assert frame is not None, f"closed before {kind.__name__}"
        return frame

    def open(self) -> int:
        """The last stored id, or -1."""
        self.send(Notify(1, "one"))
        answer = self.until(NotifyAck)
        assert isinstance(answer, NotifyAck)
        assert answer.success
        return -1 if answer.point_of_reference == NOTHING_YET else answer.point_of_reference

    def send_until_acked(self, first: int, last: int) -> None:
        self.send(*(Message(1, number, 0, b"", b"%d" % number) for number in range(first, last + 1)))
        while not isinstance(frame := self.until(Ack), Ack) or (1, last) not in frame.acked:
            pass

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
