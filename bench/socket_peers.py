"""The other ends of sockets for `bench/files_and_sockets.py`: each is a process of its own. Nothing but the standard
library is imported: they start fast.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

BODY = b'{"id": 12345, "name": "item 17", "price": 3.25}'
LINE = BODY + b"\n"
MESSAGE = b"<165>1 2026-01-02T03:04:05.000006Z host app 42 ID47 - " + LINE
READ_BYTES = 64 << 10
DATAGRAMS_AT_ONCE = 50
"""A slow receiver loses datagrams: the peer pauses after so many, and sends until it is killed."""

Address = tuple[str, int] | str
"""Of a server: a host and a port, or the path of a Unix socket."""


def begin(started: Connection, work: Callable[..., None], *given: Any) -> None:
    """The main function of a peer: what it needs is imported, and whoever waits for that gets an end of file."""
    started.close()
    work(*given)


def _connected(address: Address) -> socket.socket:
    while True:
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            time.sleep(0.01)
        else:
            return sock


def send_lines(address: Address, events: int) -> None:
    with _connected(address) as sock:
        sock.sendall(LINE * events)


def send_messages(address: Address, events: int) -> None:
    with _connected(address) as sock:
        sock.sendall(MESSAGE * events)


def serve_lines(address: Address, events: int) -> None:
    """Keeps a connection open: only the receiver ends it."""
    connections = []
    for connection in _accepted(address):
        connections.append(connection)
        with suppress(OSError):  # it was only tried whether this listens
            connection.sendall(LINE * events)


def receive_all(address: Address) -> None:
    with _connected(address) as sock:
        while sock.recv(READ_BYTES):
            """Only the sender is measured."""


def send_datagrams(address: Address, _: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        _pour(sock.send)


def answer_datagrams(address: Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        data, peer = sock.recvfrom(READ_BYTES)
        while not data:  # it was only tried whether this is bound
            data, peer = sock.recvfrom(READ_BYTES)
        _pour(lambda data: sock.sendto(data, peer))


def _pour(send: Callable[[bytes], object]) -> NoReturn:
    while True:
        for _ in range(DATAGRAMS_AT_ONCE):
            with suppress(ConnectionRefusedError):  # nobody listens yet
                send(BODY)
        time.sleep(0.001)


def serve_discarding(address: Address) -> None:
    for connection in _accepted(address):
        with connection:
            while connection.recv(READ_BYTES):
                """Only the sender is measured."""


def _accepted(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    if isinstance(address, str):
        Path(address).unlink(missing_ok=True)
    with socket.create_server(address, family=family) as server:
        while True:
            connection, _ = server.accept()
            yield connection


def discard_datagrams(address: Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        while True:
            sock.recv(READ_BYTES)
