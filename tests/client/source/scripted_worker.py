"""A scripted worker: real sockets, and for each connection a function that reads and writes."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.protocol.connector import Frame, Hello, Ok, Role, Use
from tests.client.scripted_peer import Cut, ScriptedPeer

SECONDS_MAX = 20.0


class Peer(ScriptedPeer):
    """One connection. What we send goes through the session machine, too."""

    def __init__(self, connected: socket.socket, receive_bytes: int = 65536) -> None:
        super().__init__(connected, Use.SOURCE, Role.ACCEPTOR)
        self._socket.settimeout(SECONDS_MAX)
        self.port: int = connected.getsockname()[1]
        """The worker's."""
        self._receive_bytes = receive_bytes
        self.cut_after: int | None = None
        """Bytes to receive before the connection is cut."""

    def reset(self) -> None:
        """Ends the connection, also for the thread that reads it."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.shutdown(socket.SHUT_RDWR)

    def greet(self, credit: int) -> Hello:
        hello = self.expect(Hello)
        self.send(Ok(credit))
        return hello

    def send(self, *frames: Frame, piece_bytes: int | None = None) -> None:
        data = b"".join(self.session.send(frame) for frame in frames)
        for at in range(0, len(data), piece_bytes or len(data) or 1):
            self.send_bytes(data[at : at + (piece_bytes or len(data))])

    def has_more(self) -> bool:
        """Whether something arrives within a short time."""
        if self._frames:
            return True
        self._socket.settimeout(0.15)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(SECONDS_MAX)

    def _received(self, size: int = 65536) -> bytes:
        size = self._receive_bytes if self.cut_after is None else min(self._receive_bytes, self.cut_after)
        data = super()._received(size)
        if self.cut_after is not None:
            self.cut_after -= len(data)
        return data


Conversation = Callable[[Peer], None]


class ScriptedWorker:
    """Each connection is the next conversation's; the last one takes all that come after. Then it is closed.

    What a conversation raises is raised when the worker is left.
    """

    def __init__(self, *conversations: Conversation, receive_bytes: int = 65536) -> None:
        self._conversations = list(conversations)
        self._receive_bytes = receive_bytes
        self._error: BaseException | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def leave(self) -> None:
        """Nothing listens here any more."""
        with suppress(OSError):  # it is closed already when a conversation failed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        self._thread.join(SECONDS_MAX)
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        try:
            while True:
                connected, _ = self._listener.accept()
                with connected:
                    self._talk(Peer(connected, self._receive_bytes))
        except OSError:
            pass
        except BaseException as failed:
            self._error = failed
            self._listener.close()

    def _talk(self, peer: Peer) -> None:
        conversation = self._conversations[min(self.connections, len(self._conversations) - 1)]
        self.connections += 1
        with suppress(Cut):
            conversation(peer)
