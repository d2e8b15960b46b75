"""External programs over real sockets: those that receive lines and can be down, and one that sends them."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, until


class Taker:
    """Receives lines over any number of connections, while it is up, always on the same port, or Unix socket."""

    def __init__(self, *, up: bool = True, path: Path | None = None) -> None:
        self.port = 0 if path else free_port()
        self.lines: list[str] = []
        self.connections = 0
        """That were ever accepted."""
        self._path = path
        self._listener: socket.socket | None = None
        self._peers: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        if up:
            self.up()

    def up(self) -> None:
        self._listener = _listen_at(self._path) if self._path else socket.create_server(("127.0.0.1", self.port))
        self._spawn(self._accept, self._listener)

    def down(self) -> None:
        """The listener and all its connections, at once."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for peer in [*self._peers]:
            with suppress(OSError):  # it may just have been closed
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS_MAX)
        self._threads.clear()

    def _spawn(self, work: Callable[[socket.socket], None], given: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(given,))
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._peers.add(peer)
            self._spawn(self._read, peer)

    def _read(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as file:
            try:
                for line in file:
                    if line.endswith(b"\n"):
                        self.lines.append(line[:-1].decode())
            except OSError:
                pass
        self._peers.discard(peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def _listen_at(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


class WsTaker:
    """The same over WebSocket: each message has whole lines."""

    def __init__(self) -> None:
        self.port = free_port()
        self.lines: list[str] = []
        self._connections: set[ServerConnection] = set()
        self.up()

    def up(self) -> None:
        self._server = serve(self._take, "127.0.0.1", self.port)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def down(self) -> None:
        self._server.shutdown()
        self._thread.join(SECONDS_MAX)
        for connection in [*self._connections]:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        until(lambda: not self._connections)  # what was answered comes before what another connection brings

    def _take(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        try:
            for message in connection:
                self.lines += (message if isinstance(message, str) else message.decode()).splitlines()
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


class Sender:
    """One connection to a server of the application. `send` never waits for long: the kernel has room for these."""

    def __init__(self, port: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, f"nobody listens on {port}"
                time.sleep(0.05)

    @property
    def address(self) -> str:
        """As the server sees it."""
        return "{}:{}".format(*self._socket.getsockname())

    def send(self, *lines: str, end: str = "\n") -> None:
        self._socket.sendall("".join(line + end for line in lines).encode())

    def is_open(self) -> bool:
        """Whether the other side has not ended it."""
        self._socket.setblocking(False)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self._socket.settimeout(SECONDS_MAX)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
