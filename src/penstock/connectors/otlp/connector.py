"""`otlp`: a receiver for OpenTelemetry's logs, metrics and traces, over HTTP and gRPC."""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus as Status
from typing import TYPE_CHECKING, Any

from penstock.connectors.api import About, Capabilities, Host, Lost, ShownBy
from penstock.connectors.http_server.exchange import Answer, RefusedRequest, authorize, read_body, text_answer
from penstock.connectors.http_server.intake import Intake, NotNow
from penstock.connectors.http_server.listener import ClientConnection, HttpListener
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.otlp.options import OtlpOptions
from penstock.connectors.server_auth import UNAUTHORIZED
from penstock.connectors.sockets import claims_of
from penstock.core.errors import LimitExceeded, PenstockError, RequestError
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from penstock.connectors.otlp.records import Events, Signal

log = logging.getLogger(__name__)

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"

_IN_LOOP_BYTES = 64 << 10
"""A larger request is converted in a thread, so that nothing else in the worker waits for it."""

_GRPC_STOP_SECONDS = 5.0
"""How long calls in progress may take when the connector is drained."""

_CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")


async def store(signal: "Signal", body: bytes, intake: Intake, options: OtlpOptions, *, is_json: bool) -> "Events":
    """Store the events of a request. Returns when they are acknowledged. Raises RequestError and LimitExceeded for a
    request that will never be accepted, NotNow, TimeoutError.
    """
    from penstock.connectors.otlp import records

    def converted() -> "Events":
        request = records.parse(signal, body, is_json=is_json)
        limits = records.Limits(options.event_bytes_max, options.stored_bytes_max)
        to_json = records.mapping(options.attributes == "plain")
        return records.events_of(signal, request, to_json, time.time_ns() // 1000, limits)

    stream = await intake.admitted()
    events = converted() if len(body) <= _IN_LOOP_BYTES else await asyncio.to_thread(converted)
    if events.values:
        if not stream.may_send:
            raise NotNow("temporarily not accepting requests")
        async with intake.attended():
            await stream.complete(await stream.put(events.values, event_times_us=events.times_us))
    return events


class OtlpConnection(ClientConnection):
    """OTLP/HTTP."""

    def __init__(self, peer: str, host: Host, options: OtlpOptions) -> None:
        super().__init__(peer, host, options, host.downstream)
        self._options = options
        self._is_json = False

    async def respond(self, request: Request) -> Answer:
        from penstock.connectors.otlp import records

        self._is_json = _media_type(request) == _JSON
        authorize(request, self._options.auth)
        signal = self._signal(request)
        body = await read_body(request, self._options)
        try:
            if request.headers.get("content-encoding", "").strip().lower() == "gzip":
                body = records.unzipped(body, self._options.body_bytes_max)
            events = await store(signal, body, self.intake, self._options, is_json=self._is_json)
        except LimitExceeded as error:
            raise RefusedRequest(text_answer(Status.REQUEST_ENTITY_TOO_LARGE, str(error))) from None
        except RequestError as error:
            self.host.count("bad_requests")
            raise RefusedRequest(text_answer(Status.BAD_REQUEST, str(error))) from None
        count_rejected(self.host, events)
        return self._in_form(Status.OK, records.response(signal, events, is_json=self._is_json))

    def _signal(self, request: Request) -> "Signal":
        from penstock.connectors.otlp import records

        signal = records.by_path().get(request.path)
        if signal is None:
            raise RefusedRequest(text_answer(Status.NOT_FOUND, "not found: use /v1/logs, /v1/metrics or /v1/traces"))
        if request.method != "POST":
            text = f"method {request.method} is not allowed"
            raise RefusedRequest(text_answer(Status.METHOD_NOT_ALLOWED, text, ("allow", "POST")))
        if _media_type(request) not in (_PROTOBUF, _JSON):
            raise RefusedRequest(text_answer(Status.UNSUPPORTED_MEDIA_TYPE, f"use {_PROTOBUF} or {_JSON}"))
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("gzip", "identity", ""):
            raise RefusedRequest(text_answer(Status.UNSUPPORTED_MEDIA_TYPE, "use gzip, or no compression"))
        return signal

    def status_for_now(self, why: NotNow) -> Status:
        """429 at the quota and while streams are paused: exporters retry after both."""
        is_elsewhere = why.is_draining or why.seconds is not None or not self.host.has_out
        return Status.SERVICE_UNAVAILABLE if is_elsewhere else Status.TOO_MANY_REQUESTS

    def worded(self, refusal: Answer) -> Answer:
        """As google.rpc.Status, in the form of the request."""
        from penstock.connectors.otlp import records

        text = refusal.body.decode().strip()
        body = records.json_status(0, text) if self._is_json else records.status(0, text)
        kept = tuple(one for one in refusal.headers if one[0] != "content-type")
        return replace(self._in_form(Status(refusal.status), body, *kept), closes=refusal.closes)

    def _in_form(self, code: Status, body: bytes, *headers: tuple[str, str]) -> Answer:
        return Answer(code, body, (("content-type", _JSON if self._is_json else _PROTOBUF), *headers))


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def count_rejected(host: Host, events: "Events") -> None:
    if events.rejected:
        host.count("rejected_records", events.rejected)


# OTLP/gRPC.


class _Peer:
    """A client's connection. gRPC does not report when it ends: its stream ends when it is idle."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.calls = 0
        self.used = 0.0


class GrpcReceiver:
    def __init__(self, host: Host, options: OtlpOptions) -> None:
        self._host = host
        self._options = options
        self._peers: dict[str, _Peer] = {}
        self._server: Any = None

    async def start(self) -> int:
        """Returns the port. Raises Lost if it cannot listen."""
        import grpc
        import grpc.aio

        from penstock.connectors.otlp import records

        options = self._options
        server_options = [
            ("grpc.max_receive_message_length", options.body_bytes_max),
            ("grpc.so_reuseport", int(self._host.shares_port)),
        ]
        self._server = grpc.aio.server(options=server_options, maximum_concurrent_rpcs=options.connections_max)
        for signal in records.SIGNALS:
            handler = grpc.unary_unary_rpc_method_handler(partial(self._export, signal))
            handlers = grpc.method_handlers_generic_handler(signal.service, {"Export": handler})
            self._server.add_generic_rpc_handlers((handlers,))
        port = self._listen()
        await self._server.start()
        return port

    def _listen(self) -> int:
        options = self._options
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        try:
            if options.tls is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, self._credentials()))
        except RuntimeError as error:
            raise Lost(f"it cannot listen on {address}: {error}", "Choose another grpc_port.") from None

    def _credentials(self) -> Any:
        import grpc

        tls = self._options.tls
        assert tls is not None
        try:
            cert = tls.cert.read_bytes()
            key = cert if tls.key is None else tls.key.read_bytes()
            authorities = None if tls.client_ca is None else tls.client_ca.read_bytes()
        except OSError as error:
            raise RequestError(f"the TLS files cannot be used: {error}", "They must be PEM files.") from None
        return grpc.ssl_server_credentials([(key, cert)], authorities, require_client_auth=authorities is not None)

    async def sweep(self) -> None:
        """Ends the streams of clients that have been silent for long, until it is cancelled."""
        while True:
            await asyncio.sleep(self._options.idle / 4)
            oldest = asyncio.get_running_loop().time() - self._options.idle
            for name, peer in [*self._peers.items()]:
                if not peer.calls and peer.used < oldest:
                    del self._peers[name]
                    await peer.intake.end()

    async def stop(self, seconds: float | None) -> None:
        """Calls in progress get this long."""
        if self._server is not None:
            await self._server.stop(seconds)
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.intake.end()

    async def _export(self, signal: "Signal", body: bytes, context: Any) -> bytes:
        import grpc

        from penstock.connectors.otlp import records

        await self._authorize(context)
        peer = await self._peer(context)
        peer.calls += 1
        try:
            events = await store(signal, body, peer.intake, self._options, is_json=False)
        except NotNow as why:
            await self._refuse(context, why)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"not complete{peer.intake.waits_for}; it is stored")
        except PenstockError as error:
            self._host.count("bad_requests")
            is_large = isinstance(error, LimitExceeded)
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if is_large else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, str(error))
        finally:
            peer.calls -= 1
            peer.used = asyncio.get_running_loop().time()
        count_rejected(self._host, events)
        return records.response(signal, events, is_json=False)

    async def _authorize(self, context: Any) -> None:
        import grpc

        auth = self._options.auth
        if auth is None:
            return
        proved = context.auth_context()
        names = [name.decode() for key in _CERTIFICATE_NAMES for name in proved.get(key, ())]
        given = str(dict(context.invocation_metadata() or ()).get("authorization", ""))
        if not auth.accepts_names(names) or not auth.accepts(given):
            self._host.count(UNAUTHORIZED)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send credentials")

    async def _peer(self, context: Any) -> _Peer:
        name = str(context.peer())
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= self._options.connections_max:
                self._host.count("refused_connections")
                await self._refuse(context, NotNow("too many connections"))
            shown = name.partition(":")[2] or name
            peer = self._peers[name] = _Peer(Intake(shown, self._host, self._options, self._host.downstream))
        return peer

    async def _refuse(self, context: Any, why: NotNow) -> None:
        """With the time after which to retry."""
        import grpc

        from penstock.connectors.otlp import records

        self._host.count("refused_calls")
        code = grpc.StatusCode.UNAVAILABLE
        seconds = self._options.retry_after_seconds if why.seconds is None else why.seconds
        details = records.status(code.value[0], str(why), seconds)
        await context.abort(code, str(why), (("grpc-status-details-bin", details),))


class Otlp(HttpListener[OtlpOptions]):
    """At least once: a request is answered when its events are acknowledged, and exporters repeat any other."""

    about = About(
        "otlp",
        "Receives OpenTelemetry's logs, metrics and traces, over HTTP and gRPC.",
        OtlpOptions,
        Capabilities(source=Guarantee.AT_LEAST_ONCE, own_event_times=True, interceptors=frozenset(), every_worker=True),
        extra="otlp",
        example={"port": 4318, "grpc_port": 4317},
        shown_by=ShownBy(
            source="tests/application/test_web_kills.py::test_no_request_webhook_or_telemetry_that_was_answered_is_lost",
        ),
    )

    @classmethod
    def capabilities(cls, options: OtlpOptions) -> Capabilities:
        grpc_claims = frozenset[str]() if options.grpc_port is None else claims_of(options.host, options.grpc_port)
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port) | grpc_claims)

    def __init__(self, options: OtlpOptions) -> None:
        super().__init__(options)
        self.grpc_address = ""
        """Where it listens for gRPC."""

    @property
    def reached_at(self) -> str:
        over_grpc = f", grpc {self.grpc_address}" if self.grpc_address else ""
        return f"{self.scheme}://{self.addresses[0]}{over_grpc}" if self.addresses else ""

    def connection(self, peer: str, host: Host) -> OtlpConnection:
        return OtlpConnection(peer, host, self.options)

    async def serve(self, host: Host) -> None:
        if self.options.grpc_port is None:
            await super().serve(host)
            return
        receiver = GrpcReceiver(host, self.options)
        sweeping = asyncio.create_task(receiver.sweep())
        seconds: float | None = None
        try:
            self.grpc_address = f"{self.options.host}:{await receiver.start()}"
            log.info("%s listens on %s for gRPC", host.name, self.mask.text(self.grpc_address))
            await super().serve(host)
            seconds = _GRPC_STOP_SECONDS
        finally:
            self.grpc_address = ""
            sweeping.cancel()
            with suppress(PenstockError):
                await receiver.stop(seconds)
