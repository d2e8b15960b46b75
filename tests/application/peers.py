"""External programs over real sockets: one that receives lines and can be down, one that sends them."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX


class Taker:
    """Receives lines over any number of connections, while it is up, always on the same port."""

    def __init__(self, *, up: bool = True) -> None:
        self.port = free_port()
        self.lines: list[str] = []
        self.connections = 0
        """That were ever accepted."""
        self._listener: socket.socket | None = None
        self._peers: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        if up:
            self.up()

    def up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
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
