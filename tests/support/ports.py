"""Ports of this test process alone, each used again as late as possible.

A client that a test has left behind, or one that waits for its worker to be back, may connect to a port long after its
server has stopped. If the system chose ports, a server of another test could get that one, and receive a stranger.
"""

import errno
import itertools
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

FIRST, END = 15_000, 32_000
"""Below the range from which the system takes ports, for connections and for servers that leave the choice to it."""

PROCESSES_MAX = 8
"""Test processes that run at the same time, each with its share of the ports."""

TRIES_MAX = 1000
"""Ports that others use before something must be wrong."""

_bind = socket.socket.bind


def _mine() -> Iterator[int]:
    """The ports of this process, again and again; from anywhere, since another run may have just ended, and not as
    Hypothesis has seeded it.
    """
    share = (END - FIRST) // PROCESSES_MAX
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES_MAX
    offset = random.SystemRandom().randrange(share)
    for place in itertools.count(offset):
        yield FIRST + number * share + place % share


_ports = _mine()


def free_port() -> int:
    """For a server that must come back at the same address, or whose address must be known before it starts."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind_to_own(listener, "127.0.0.1")
        port: int = listener.getsockname()[1]
        return port


def bind(sock: socket.socket, address: Any) -> None:
    """`socket.bind`, where port 0 of a loopback address means a port of this process."""
    if isinstance(address, tuple) and address[:2] in (("127.0.0.1", 0), ("localhost", 0)):
        _bind_to_own(sock, address[0])
    else:
        _bind(sock, address)


def _bind_to_own(sock: socket.socket, host: str) -> None:
    for port in itertools.islice(_ports, TRIES_MAX):
        try:
            return _bind(sock, (host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise RuntimeError("no port is free")
