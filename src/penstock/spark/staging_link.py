"""A Python worker's connection to the segment port, kept from task to task."""

from collections.abc import Callable
from ssl import SSLContext

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments.address import Address
from penstock.client.segments.blocking_connection import BlockingConnection
from penstock.client.segments.retrying import TIMEOUT_SECONDS
from penstock.core.errors import RequestError

_WRITERS_MAX = 1000
"""After so many a connection is given up, between two tasks: the worker remembers each writer as long as the
connection lives, and takes 10,000."""


class Link:
    """Connects when it is needed, and again after `drop`. `find` is asked every time: a worker that was started anew
    may have another port.

    Raises Interrupted while the worker is away: trying again is the caller's business. Not for several threads.
    """

    def __init__(
        self, find: Callable[[], Address], tls: SSLContext | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._find = find
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._connection: BlockingConnection | None = None
        self.writers = 0
        """How many have been set up over this connection."""

    def connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = BlockingConnection(self._find(), self._tls, self._timeout_seconds)
        return self._connection

    def begin_task(self) -> None:
        """Nothing is on its way now: the time to take a new connection if the old one is worn."""
        if self.writers >= _WRITERS_MAX:
            self.drop()

    def drop(self) -> None:
        """Whatever was on its way may or may not arrive."""
        self.writers = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def segment_address(worker: str, *, tls: bool) -> Address:
    """Where the segment port is, as the worker's HTTP side tells. `tls`: whether we can speak it."""
    with CoordinatorClient(worker, 0) as client:
        status = client.status()
        host = client.address.host
    if status["tls"] and not tls:
        raise RequestError(
            f"the worker at {worker} speaks TLS alone on its segment port",
            "Give the authority of its certificate: option tlsCa, or PENSTOCK_TLS_CA where the executors run.",
        )
    return Address(host, status["ports"]["segment"])
