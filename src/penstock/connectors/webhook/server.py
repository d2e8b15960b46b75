"""`webhook-server`: deliveries of other services are events, once their signatures are verified."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus as Status
from typing import Annotated, Literal

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Host, NoPipelines, ShownBy
from penstock.connectors.http_server.connector import store_body
from penstock.connectors.http_server.exchange import (
    Answer,
    RefusedRequest,
    authorize,
    metadata_of,
    read_body,
    route,
    text_answer,
)
from penstock.connectors.http_server.listener import ClientConnection, HttpListener
from penstock.connectors.http_server.options import BodyOptions
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.permissions import Permissions
from penstock.connectors.sockets import HeaderValue
from penstock.connectors.webhook.signatures import DELIVERY_HEADERS, Signature, Unverified, verify
from penstock.core.types import Guarantee


class WebhookServerOptions(BodyOptions):
    """The body of a POST request is an event, or several if interceptors split it. Its metadata has `path`, `query`,
    `content_type`, `headers` (without credentials), `peer`, and `delivery`: the sender's id of the delivery, if it has
    one.

    Status codes: 202 when the events are on disk; 200 for a delivery that was stored before; 401 if the signature is
    missing, wrong or too old; 400 if interceptors refuse the body; 404 and 405 for another path or method; 408 and 413
    if the body is too slow or too large; 503 with Retry-After if nothing is accepted now. The sender repeats what was
    not answered with 2xx.
    """

    signature: Signature | None = None
    """How deliveries are signed. Without it everybody who reaches the port can send events: use `auth` then."""
    delivery_header: HeaderValue | None = None
    """The header with the sender's id of a delivery, which is the same when the delivery is repeated. By default that
    of the signature's style: `X-GitHub-Delivery`, `webhook-id`."""
    deliveries_max: Annotated[int, Field(ge=0, le=10_000_000)] = 100_000
    """How many of the latest delivery ids are remembered: a repeated delivery is not stored again. The ids are
    forgotten when the worker restarts; pipelines can compare `delivery` in the metadata."""
    answer: Literal["durable", "complete"] = "durable"
    """When to respond with 202. `durable`: when the events are on disk. `complete`: when they are acknowledged,
    according to the connector's `ack`. Many senders wait only a few seconds."""


class Deliveries:
    """The ids of stored deliveries, the latest `count_max` of them."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._stored: dict[str, None] = {}
        self._storing: dict[str, asyncio.Future[None]] = {}

    async def once(self, delivery: str, store: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was stored now. False: it was before. A copy that comes meanwhile waits for the first one, and is
        stored itself if the first one fails.
        """
        while delivery and (other := self._storing.get(delivery)) is not None:
            await asyncio.wait([other])
        if not delivery or not self._count_max:
            await store()
            return True
        if delivery in self._stored:
            return False
        done = self._storing[delivery] = asyncio.get_running_loop().create_future()
        try:
            await store()
            self._remember(delivery)
        finally:
            del self._storing[delivery]
            done.set_result(None)
        return True

    def _remember(self, delivery: str) -> None:
        self._stored[delivery] = None
        if len(self._stored) > self._count_max:
            del self._stored[next(iter(self._stored))]


class WebhookConnection(ClientConnection):
    def __init__(self, peer: str, host: Host, options: WebhookServerOptions, deliveries: Deliveries) -> None:
        downstream = host.downstream if options.answer == "complete" else NoPipelines()
        super().__init__(peer, host, options, downstream)
        self._options = options
        self._deliveries = deliveries
        self._last = 0
        style = "" if options.signature is None else options.signature.style
        self._delivery_header = (options.delivery_header or DELIVERY_HEADERS.get(style, "")).lower()

    async def respond(self, request: Request) -> Answer:
        """Nothing is opened or stored for a request that is not verified."""
        options = self._options
        authorize(request, options.auth)
        route(request, options.path, ("POST",))
        body = await read_body(request, options)
        if options.signature is not None:
            self._verify(options.signature, request, body)
        delivery = request.headers.get(self._delivery_header, "") if self._delivery_header else ""
        async with self.intake.attended():
            is_new = await self._deliveries.once(delivery, lambda: self._store(request, body, delivery))
        if not is_new:
            self.host.count("repeated_deliveries")
        return Answer(Status.ACCEPTED if is_new else Status.OK)

    def _verify(self, signature: Signature, request: Request, body: bytes) -> None:
        try:
            verify(signature, request.headers, body, time.time())
        except Unverified as error:
            self.host.count("unverified_requests")
            raise RefusedRequest(text_answer(Status.UNAUTHORIZED, str(error))) from None

    async def _store(self, request: Request, body: bytes, delivery: str) -> None:
        metadata = metadata_of(request) | ({"delivery": delivery} if delivery else {})
        stream = await self.stream()
        self.intake.is_cut = True
        self._last = await store_body(stream, body, metadata, self.host, self._options, self._last)
        self.intake.is_cut = False
        if self._options.answer == "complete":
            await stream.complete(self._last)
        else:
            await stream.durable(self._last)


class WebhookServer(HttpListener[WebhookServerOptions]):
    """At least once: a delivery that is answered with 2xx is on disk, and the sender repeats any other. One that is
    repeated is stored once while its id is remembered.
    """

    about = About(
        "webhook-server",
        "Receives webhooks: verifies signatures, and stores each delivery before it is answered.",
        WebhookServerOptions,
        Capabilities(source=Guarantee.AT_LEAST_ONCE, own_event_times=False, sends_messages=True, every_worker=True),
        example={
            "port": 8080,
            "path": "/hooks",
            "signature": {"style": "github", "secrets": ["${file:/run/secrets/webhook}"]},
        },
        shown_by=ShownBy(
            source="tests/application/test_web_kills.py::test_no_request_webhook_or_telemetry_that_was_answered_is_lost",
        ),
    )

    @classmethod
    def check_permitted(cls, options: WebhookServerOptions, permissions: Permissions) -> None:
        """A signature proves who the sender is as a token does."""
        if options.signature is None:
            super().check_permitted(options, permissions)
            return
        permissions.check_server(options.host, has_tls=options.tls is not None, has_auth=True)
        super(HttpListener, cls).check_permitted(options, permissions)

    def __init__(self, options: WebhookServerOptions) -> None:
        super().__init__(options)
        self._deliveries = Deliveries(options.deliveries_max)

    def begins_at_once(self, host: Host) -> bool:
        return self.options.signature is None and super().begins_at_once(host)

    @property
    def reached_at(self) -> str:
        path = self.options.path.removesuffix("*") or "/"
        return f"POST to {self.scheme}://{self.addresses[0]}{path}" if self.addresses else ""

    def connection(self, peer: str, host: Host) -> WebhookConnection:
        return WebhookConnection(peer, host, self.options, self._deliveries)
