"""One side of a connection of the connector protocol, frame by frame, for tests."""

import socket
from typing import TypeVar

from penstock.protocol.connector import Decoder, Frame, Role, Session, Use

F = TypeVar("F", bound=Frame)


class Cut(Exception):
    """The other side closed, or we cut the connection."""


class ScriptedPeer:
    """What the other side sends goes through the session machine, so that what is illegal fails the test."""

    def __init__(self, connected: socket.socket, use: Use, role: Role) -> None:
        self._socket = connected
        self._decoder = Decoder(use)
        self._frames: list[Frame] = []
        self.session = Session(use, role)

    def next(self) -> Frame:
        """The next frame. Cut when there is none any more."""
        while not self._frames:
            self._frames = list(self._decoder.feed(self._received()))
        frame = self._frames.pop(0)
        self.session.receive(frame)
        return frame

    def expect(self, kind: type[F]) -> F:
        frame = self.next()
        assert isinstance(frame, kind), f"{kind.__name__} expected: {frame}"
        return frame

    def expect_close(self) -> None:
        try:
            frame = self.next()
        except Cut:
            return
        raise AssertionError(f"a close expected: {frame}")

    def send_bytes(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            raise Cut from None

    def _received(self, size: int = 65536) -> bytes:
        """Some bytes. Cut if there are none any more."""
        try:
            data = self._socket.recv(size) if size else b""
        except ConnectionError:
            data = b""
        if not data:
            raise Cut
        return data
