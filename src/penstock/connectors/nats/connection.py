"""A connection to a NATS server that never reconnects by itself: the frame decides when to try again."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.connectors.api import Lost
from penstock.connectors.nats.options import NatsOptions
from penstock.connectors.sockets import client_context

if TYPE_CHECKING:
    from nats.js import JetStreamContext

PING_SECONDS = 20
"""A server that has not answered two pings is gone."""


class Connection:
    """One connection. `closed` is set when it is gone."""

    def __init__(self, options: NatsOptions) -> None:
        from nats.aio.client import Client

        self.client: Client = Client()
        self.closed = asyncio.Event()
        self._options = options

    @property
    def where(self) -> str:
        return ", ".join(self._options.servers)

    @property
    def jetstream(self) -> "JetStreamContext":
        return self.client.jetstream(timeout=self._options.timeout)

    def check(self) -> None:
        if self.closed.is_set() or self.client.is_closed:
            reason = self.client.last_error
            raise Lost(f"the connection to {self.where} is gone{f': {reason}' if reason else ''}")

    async def open(self) -> None:
        """Raises Lost."""
        options = self._options
        try:
            async with asyncio.timeout(options.timeout):
                await self.client.connect(
                    servers=options.servers,
                    name="penstock",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # only for the attempts to find one of the servers
                    reconnect_time_wait=0,
                    connect_timeout=max(1, round(options.timeout)),
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=2,
                    error_cb=self._ignore,
                    closed_cb=self._has_closed,
                    **self._credentials(),
                )
        except BaseException as error:
            reason = self.client.last_error or error
            await self._abandon()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Lost(f"{self.where} cannot be reached: {_text(reason)}") from error

    def _credentials(self) -> dict[str, Any]:
        options = self._options
        found: dict[str, Any] = {}
        if (context := client_context(options.tls)) is not None:
            found["tls"] = context
        if options.tls is not None and options.tls.server_name:
            found["tls_hostname"] = options.tls.server_name
        if options.credentials is not None:
            found["user_credentials"] = str(options.credentials)
        if options.token:
            found["token"] = str(options.token)
        if options.user:
            found |= {"user": options.user, "password": str(options.password)}
        return found

    async def _ignore(self, error: Exception) -> None:
        """What matters is reported by the call that fails, or by `closed`."""

    async def _has_closed(self) -> None:
        self.closed.set()

    async def close(self) -> None:
        """Does not raise."""
        self.closed.set()
        await self._abandon()

    async def _abandon(self) -> None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self.client.close()
        except Exception:  # noqa: S110  it is gone in any case
            pass


@asynccontextmanager
async def connected(options: NatsOptions) -> AsyncIterator[Connection]:
    connection = Connection(options)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def server_errors(where: str) -> Iterator[None]:
    """Turns errors of the library into Lost."""
    from nats.errors import Error

    try:
        yield
    except TimeoutError as error:  # also the library's
        raise Lost(f"{where} did not answer in time") from error
    except (Error, OSError) as error:
        raise Lost(f"{where}: {_text(error)}") from error


def _text(error: BaseException) -> str:
    """For people: errors of the server's API have a description, and some others no text at all."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    described = getattr(error, "description", None) or str(error).removeprefix("nats: ")
    if isinstance(error, ssl.SSLError):
        described = f"TLS: {error.reason or error}"
    return described or type(error).__name__
