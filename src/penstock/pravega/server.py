"""Serves the controller over gRPC, in the worker's event loop."""

import asyncio
import logging
import time
from base64 import b64decode
from binascii import Error
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from penstock.access.file import AccessControl
from penstock.access.refusals import Port, RefusalPace, Refusals
from penstock.core.errors import (
    DiskFull,
    Forbidden,
    PenstockError,
    QuotaReached,
    RequestError,
    Unauthenticated,
)
from penstock.core.supervisor import Supervisor
from penstock.pravega.ledger import Changed, Keeper
from penstock.pravega.lineage import PipelineStreams
from penstock.pravega.machine import Reason, Refusal
from penstock.pravega.messages import CLASSES, METHODS, SERVICE
from penstock.pravega.service import Caller, Method, Service
from penstock.pravega.settings import ControllerSettings
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_CERTIFICATE_NAMES = ("x509_common_name", "x509_dns", "x509_email")
_REFUSED_WAITING_MAX = 100
"""Refused requests that are answered after a pause, at the same time: others are refused at once, so that guesses do
not take up the requests of everybody."""
_NOT_FOUND = (Reason.NO_SCOPE, Reason.NO_STREAM, Reason.NO_TRANSACTION)


class ControllerServer:
    """Nothing is acknowledged before it is durable."""

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        settings: ControllerSettings,
        access: AccessControl,
        refusals: Refusals,
        supervisor: Supervisor,
    ) -> None:
        self._store = store
        self._durability = durability
        self._settings = settings
        self._access = access
        self._refusals = refusals
        self._pace = RefusalPace()
        self._refused_waiting = 0
        refusals.expect(Port.CONTROLLER)
        self._supervisor = supervisor

    async def start(self, segment_port: int, changed: Changed) -> int:
        """Returns the port. Raises Damaged for a ledger that cannot be read, OSError for a port that is taken."""
        settings = self._settings
        self._keeper = keeper = Keeper(self._store, self._durability, changed)
        keeper.repair()
        self.pipelines = PipelineStreams(keeper, changed)
        self._service = service = Service(self._store, keeper, settings, segment_port)
        self._server = grpc.aio.server(options=_limits(settings), maximum_concurrent_rpcs=settings.requests_max)
        handlers = {name: self._handler(name, getattr(service, name)) for name in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._listen()
        await self._server.start()
        self._sweep = self._supervisor.every("sweep of transactions", settings.sweep_seconds, self._expire)
        return port

    def _expire(self) -> None:
        self._service.expire(time.monotonic())

    def _listen(self) -> int:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(settings))
        except RuntimeError as error:
            raise OSError(f"the controller cannot listen on {address}: {error}") from None
        return int(port)

    async def stop(self) -> None:
        await self._sweep.stop()
        await self._server.stop(self._settings.drain_seconds)

    def _handler(self, name: str, method: Method) -> Any:
        request, reply = (CLASSES[one] for one in METHODS[name])
        return grpc.unary_unary_rpc_method_handler(
            partial(self._answer, method),
            request_deserializer=request.FromString,
            response_serializer=reply.SerializeToString,
        )

    async def _answer(self, method: Method, request: Any, context: Any) -> Any:
        try:
            reply = method(request, self._caller(context))
            await self._keeper.settled()
        except PenstockError as error:
            if isinstance(error, Unauthenticated):
                await self._wait()
            await context.abort(self._code(error, context), f"{error} {error.hint}".strip())
        return reply

    async def _wait(self) -> None:
        delay = self._pace.delay(time.monotonic())
        if self._refused_waiting >= _REFUSED_WAITING_MAX:
            return
        self._refused_waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._refused_waiting -= 1

    def _caller(self, context: Any) -> Caller:
        """Raises Unauthenticated."""
        token = _token(dict(context.invocation_metadata() or ()))
        proved = context.auth_context()
        names = [name.decode() for key in _CERTIFICATE_NAMES for name in proved.get(key, ())]
        return Caller(self._access.principal(token, names), token, self._store.table)

    def _code(self, error: PenstockError, context: Any) -> grpc.StatusCode:
        """What clients do not repeat is one of the first."""
        match error:
            case Unauthenticated() | Forbidden():
                self._refusals.add(Port.CONTROLLER, str(context.peer()), error, is_logged=True)
                is_known = isinstance(error, Forbidden)
                return grpc.StatusCode.PERMISSION_DENIED if is_known else grpc.StatusCode.UNAUTHENTICATED
            case Refusal() if error.reason in _NOT_FOUND:
                return grpc.StatusCode.NOT_FOUND
            case DiskFull() | QuotaReached():
                return grpc.StatusCode.RESOURCE_EXHAUSTED
            case RequestError():
                return grpc.StatusCode.INVALID_ARGUMENT
        return grpc.StatusCode.UNAVAILABLE


def _limits(settings: ControllerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_allowed_incoming_connections", settings.connections_max),
        ("grpc.max_concurrent_streams", settings.requests_per_connection_max),
        ("grpc.max_connection_idle_ms", settings.idle_ms_max),
        ("grpc.so_reuseport", 0),
    ]


def _token(metadata: dict[str, Any]) -> str:
    """`Basic`: the password is the token, whatever the user's name is. `Bearer`: the token."""
    scheme, _, value = str(metadata.get("authorization", "")).partition(" ")
    if scheme.lower() != "basic":
        return value.strip()
    try:
        return b64decode(value).decode().partition(":")[2]
    except (Error, ValueError):
        return ""


def _credentials(settings: ControllerSettings) -> Any:
    """The files are read again when they change: every connection gets what they contain when it begins."""
    read: Callable[[Path | None], bytes | None] = lambda file: None if file is None else file.read_bytes()  # noqa: E731
    is_mutual = settings.client_ca is not None

    def current() -> Any:
        cert = read(settings.certificate)
        return grpc.ssl_server_certificate_configuration(
            [(read(settings.key) or cert, cert)], root_certificates=read(settings.client_ca)
        )

    def fetch() -> Any:
        try:
            return current()
        except OSError as error:
            log.error("the certificates stay as they were: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(current(), fetch, require_client_authentication=is_mutual)
