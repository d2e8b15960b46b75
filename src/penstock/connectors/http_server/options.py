"""The options of `http-server`, and what all types that listen for HTTP requests have in common."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.server_auth import ServerAuth, check_needs
from penstock.connectors.sockets import CONNECTIONS_MAX, HeaderValue, HostName, Port, ServerTls
from penstock.connectors.values import Size, SomeSeconds


class ListenerOptions(Options):
    """Of every type that listens for HTTP connections."""

    host: HostName = "127.0.0.1"
    """The address to listen on. By default only this machine can connect. Any other address needs `tls` and `auth`,
    unless the worker was started with `--insecure`."""
    port: Port
    """The port to listen on. 0 is any free port; the log names it."""
    tls: ServerTls | None = None
    """Encrypt connections. Without it nothing is encrypted."""
    auth: ServerAuth | None = None
    """Who may send requests. By default everybody who reaches the port. Others get 401, or no connection if their
    certificate is not accepted."""
    head_bytes_max: Annotated[Size, Field(le=32 << 10)] = 16 << 10
    """The largest request line with all headers. A larger one gets 400."""
    idle: SomeSeconds = 75.0
    """Close a connection on which no request has come for this long."""
    connections_max: Annotated[int, Field(ge=1, le=1_000_000)] = CONNECTIONS_MAX
    """Connections above this number are closed immediately, and counted."""
    dead_peer_after: SomeSeconds = 60.0
    """Close the connection of a client that has vanished from the network for this long."""

    @model_validator(mode="after")
    def _check_auth(self) -> Self:
        check_needs(self.auth, has_client_ca=self.tls is not None and self.tls.client_ca is not None)
        return self


class IntakeOptions(ListenerOptions):
    """Of types whose requests become events."""

    timeout: SomeSeconds = 30.0
    """A request without a reply by then gets 504, and its connection is closed. The body must arrive within the same
    time. The pipelines' first epoch after a start of Spark does not count: a request waits for it to end."""
    admission: SomeSeconds = 1.0
    """How long a request waits, at the quota or while the stream is paused, before it is temporarily refused."""
    retry_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 1
    """The Retry-After header in the reply to a request that is temporarily refused."""
    body_bytes_max: Annotated[Size, Field(le=64 << 20)] = 1 << 20
    """The largest body of a request, which is buffered in memory until it is complete. A larger one gets 413."""


class BodyOptions(IntakeOptions):
    """Of types that store the bodies of requests."""

    path: str = "*"
    """The path that is accepted, such as `/events`; with `*` at the end, all paths that begin with it. Other paths get
    404."""
    stored_bytes_max: Size = 64 << 20
    """The largest size that one request may have when it is stored: its events, each with the request's metadata. A
    larger one gets 413, and what was stored by then is kept. Many small events with large headers take several times
    the size of the request."""


class HttpServerOptions(BodyOptions):
    """A connection is a stream, and the body of a request is its events, which are stored when the whole request has
    been received. Their metadata has `method`, `path`, `query`, `content_type`, `headers` (without credentials) and
    `peer`.

    The reply is what leaves through `in` with the ids of these events, in one body; `status`, `content_type` and
    `headers` in its metadata are used. Status codes: 204 if nothing comes back; 202 if nothing is linked to `in`; 400
    with the reason if the events are dead letters (link `err` to `in`) or the body is invalid; 404 and 405 for another
    path or method; 408 and 413 if the body is too slow or too large; 503 with Retry-After if nothing is accepted now;
    504 if no reply comes in time. A reply whose client is gone is a dead letter.

    While Spark is starting, a request waits for its pipelines. If they are not ready within `timeout`, the response is
    503 with `Retry-After`, and nothing of the request is stored.

    The server sends no CORS headers, so web pages of other origins cannot read replies. A browser may still send their
    requests: use `auth` to refuse them.
    """

    methods: tuple[Literal["POST", "PUT", "PATCH", "DELETE", "GET"], ...] = ("POST", "PUT")
    """The methods that are accepted. Others get 405."""
    answer: Literal["epoch", "reply"] = "epoch"
    """When to respond. `epoch`: when every pipeline on the connector has completed the epoch with the request, with
    everything that came back, or 204 if nothing did. `reply`: with the first value that comes back; for replies that
    pass through several pipelines, or with `ack: durable`."""
    content_type: HeaderValue = "application/octet-stream"
    """The content type of replies whose metadata has none."""
    reply_bytes_max: Size = 16 << 20
    """The largest reply, which is buffered in memory until it is complete. A larger one gets 500, and the rest is a
    dead letter."""
