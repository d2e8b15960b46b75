"""Options of connectors with a socket."""

import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.values import SomeSeconds
from penstock.core.errors import RequestError

CONNECTIONS_MAX = 10_000
"""Of one server unless its options say otherwise: each costs a stream in the table and some buffers."""

SERVER_ON_STREAM_STARTED = "Opens every stream at once; closes its own while the peer does not take what is sent to it."
CLIENT_ON_STREAM_STARTED = (
    "Opens all streams while it is connected; with `connections: per-stream` connects for this one, and opens it then."
)

Port = Annotated[int, Field(ge=0, le=65535)]
HostName = Annotated[str, Field(min_length=1)]
"""An empty one, such as a variable that is not filled in, would be every address of the machine."""


class ServerTls(Options):
    cert: Path
    """The server's certificate, with the chain up to its authority, as a PEM file."""
    key: Path | None = None
    """Its key; may also be in the certificate's file. Without a password."""
    client_ca: Path | None = None
    """Authorities whose certificates clients must show; without it they need none."""


class ClientTls(Options):
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""
    cert: Path | None = None
    """A certificate to show to the server."""
    key: Path | None = None
    """Its key; may also be in the certificate's file. Without a password."""
    server_name: str = ""
    """Whom the server's certificate must name, if not the host."""


class ServerOptions(Options):
    host: HostName = "127.0.0.1"
    """The address to listen on; only this machine unless another one is given."""
    port: Port
    """0: any that is free; the log says which."""
    tls: ServerTls | None = None
    """Nothing is encrypted without it."""
    connections_max: int = Field(default=CONNECTIONS_MAX, ge=1, le=1_000_000)
    """Beyond it a new connection is closed at once, and counted."""
    dead_peer_after: SomeSeconds = 60.0
    """A peer that has vanished from the network, or takes nothing of what is sent to it, is then given up."""
    slow_after: SomeSeconds = 1.0
    """A peer that has not taken what was sent to it for so long is closed for more until it has."""
    half_closed: SomeSeconds = 60.0
    """How long a peer that has said all waits for replies before its connection is closed."""
    broadcast: bool = False
    """Whether everything that leaves goes to all connections, instead of each reply to the one it belongs to."""


class ClientOptions(Options):
    connections: Literal["one", "per-stream"] = "one"
    """One connection for everything, or one for each stream: made when it starts, closed when it has ended."""
    connect_timeout: SomeSeconds = 10.0
    """For one try to connect."""
    dead_peer_after: SomeSeconds = 60.0
    """A server that has vanished from the network, or takes nothing, is given up after this long."""
    half_closed: SomeSeconds = 60.0
    """Of `per-stream`: how long the server may still talk after the last event of the stream."""
    tls: ClientTls | None = None
    """Nothing is encrypted without it; `{}` trusts the system's authorities."""


def server_context(tls: ServerTls | None) -> ssl.SSLContext | None:
    """Files are read when the server starts to listen. Raises RequestError."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A password, so that nobody is asked for one at the worker's terminal: keys with one are refused.
        context.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # SSLError is one
        raise _unusable((tls.cert, tls.key, tls.client_ca), error) from None
    return context


def client_context(tls: ClientTls | None) -> ssl.SSLContext | None:
    """Files are read at every connection: a new certificate needs no restart. Raises RequestError."""
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        raise _unusable((tls.ca, tls.cert, tls.key), error) from None
    return context


def _unusable(paths: tuple[Path | None, ...], error: OSError) -> RequestError:
    names = ", ".join(str(path) for path in paths if path is not None)
    return RequestError(f"the TLS files ({names}) cannot be used: {error}", "They must be PEM files.")
