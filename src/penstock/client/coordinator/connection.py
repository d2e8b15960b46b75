"""One kept-alive HTTP connection to a worker, opened when it is needed and again when it is lost."""

import http.client
import json
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.credentials import HTTP_PORT, https_context, parse_worker, parse_workers, read_token
from penstock.client.segments.failures import (
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    Interrupted,
    no_answer,
    retrying,
    unreachable,
)
from penstock.core import errors
from penstock.core.address import Address
from penstock.core.errors import PenstockError, ProtocolError, SegmentTruncated, Unauthenticated, Unavailable
from penstock.protocol.api.cluster import ClusterStatus
from penstock.protocol.api.codec import decode_reply, encode
from penstock.protocol.api.history import Principal, SegmentPage, SourceStreams, WorkerHistory
from penstock.protocol.api.status import WorkerStatus

T = TypeVar("T")

# A worker's refusals as penstock's own errors.


def error_of(status: int, body: Any) -> PenstockError:
    """The error that a worker reports; Interrupted if it may pass in a moment."""
    match body:
        case {"error": str(text), "hint": str(hint), "kind": str(kind)}:
            return _build(_kind(kind), text, hint)
    return ProtocolError(f"the worker answered {status} with {body!r:.200}", "Is it a worker of this version?")


def _kind(name: str) -> type[PenstockError]:
    """Retrying does not help with an error that this version does not know."""
    kind = getattr(errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, PenstockError)
    return kind if known else errors.RequestError  # type: ignore[return-value]  # `known`: it is one


class Reported(Interrupted):
    """The worker has answered that it cannot do it now, and why."""


def _build(kind: type[PenstockError], text: str, hint: str) -> PenstockError:
    if issubclass(kind, SegmentTruncated):
        return kind(text, 0, hint)
    return (Reported if kind is Unavailable else kind)(text, hint)


_JSON = {"Content-Type": "application/json"}
_BODY_BYTES_MAX = 256 << 20
"""Largest answer; a cut of 10,000 segments takes a megabyte."""


_HOPS_MAX = 5
"""Redirects of one request: a host to a shard's process, which has just moved, and again."""

_REMEMBERED_MAX = 1000
"""Things whose process is remembered; beyond that, all are asked for again."""


class _Elsewhere(Exception):
    """Another process of the cluster serves what the path names."""

    def __init__(self, worker: str) -> None:
        self.worker = worker


def _thing(path: str) -> str:
    """What decides which process serves a path: a source, a pipeline, or the first part."""
    parts = path.partition("?")[0].strip("/").split("/")
    return "/".join(parts[: 2 if parts[0] in ("sources", "pipelines") else 1])


class Connection:
    """`http.client` turns Nagle's algorithm off by itself. Not for several threads at once.

    A worker of a cluster answers with the address of the process that serves a thing (307). It is asked there, with the
    same token, and the address is remembered until that process does not answer any more.
    """

    def __init__(
        self,
        address: Address,
        timeout_seconds: float,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        others: Sequence[Address] = (),
    ) -> None:
        """`token`: instead of the one that the environment has for the address; empty: none is sent. `others`: workers
        of the same cluster, which are asked when this one does not answer.
        """
        self._address = address
        self._seeds = deque([address, *others])
        self.named = address
        """The address that the user has named: it decides which token is sent."""
        self._token = token
        self._location = ""
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._http: http.client.HTTPConnection | None = None
        self._others: dict[str, Connection] = {}
        self._known: dict[str, str] = {}

    def ask(self, method: str, path: str, body: bytes | None, wait_seconds: float = 0.0) -> bytes:
        """The reply's JSON. Raises the error that the worker reports, Interrupted when it cannot be reached or
        does not answer. `wait_seconds`: how long the worker was asked to wait.
        """
        thing = _thing(path)
        worker = self._known.get(thing)
        if worker is not None:
            try:
                return self._other(worker).ask_once(method, path, body, wait_seconds)
            except _Elsewhere as error:
                return self._follow(error.worker, thing, method, path, body, wait_seconds)
            except Interrupted:
                self._known.pop(thing, None)  # it may have moved: the worker that was named knows
                self._others.pop(worker).close()  # if it is gone, its port never comes back
        for left in reversed(range(len(self._seeds))):
            try:
                return self.ask_once(method, path, body, wait_seconds)
            except _Elsewhere as error:
                return self._follow(error.worker, thing, method, path, body, wait_seconds)
            except Interrupted:
                self._turn_to_another()
                if not left:
                    raise
        raise AssertionError("there is an address")

    @property
    def address(self) -> Address:
        return self._address

    def _turn_to_another(self) -> None:
        if len(self._seeds) > 1:
            self._disconnect()
            self._seeds.rotate(-1)
            self._address = self._seeds[0]

    def worker_of(self, path: str) -> str:
        """The address of the process that has answered for this path last, as `host:port` or `https://host:port`."""
        own = f"{'https' if self._tls is not None else 'http'}://{self._address}"
        return self._known.get(_thing(path), own)

    def _follow(
        self, worker: str, thing: str, method: str, path: str, body: bytes | None, wait_seconds: float
    ) -> bytes:
        for _ in range(_HOPS_MAX):
            try:
                data = self._other(worker).ask_once(method, path, body, wait_seconds)
            except _Elsewhere as error:
                worker = error.worker
                continue
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[thing] = worker
            return data
        raise Interrupted(f"{self._address} and others send {path} from one to another", "Try again in some seconds.")

    def _other(self, worker: str) -> "Connection":
        """Its token is ours. Raises ProtocolError for an address without TLS, if ours has TLS."""
        if worker not in self._others:
            address, is_tls = parse_worker(worker)
            if self._tls is not None and not is_tls:
                raise ProtocolError(f"{self._address} redirects to {worker}, which does not use TLS")
            tls = https_context(address.host) if is_tls else None
            self._others[worker] = Connection(address, self._timeout_seconds, tls, self._token)
            self._others[worker].named = self.named
        return self._others[worker]

    def ask_once(self, method: str, path: str, body: bytes | None, wait_seconds: float) -> bytes:
        was_open = self._http is not None
        try:
            return self._exchange(method, path, body, wait_seconds)
        except Interrupted:
            if not was_open:
                raise
        # The worker closes connections that are idle, and a restarted one knows none: so try once more.
        return self._exchange(method, path, body, wait_seconds)

    def close(self) -> None:
        for other in self._others.values():
            other.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _exchange(self, method: str, path: str, body: bytes | None, wait_seconds: float) -> bytes:
        seconds = self._timeout_seconds + wait_seconds
        try:
            status, data = self._send(method, path, body, seconds)
        except TimeoutError:
            self.close()
            raise no_answer(self._address, seconds) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise unreachable(self._address, error, port="HTTP") from error
        except BaseException:
            self.close()  # a reply that was not read would be taken for the next one
            raise
        if status == http.HTTPStatus.TEMPORARY_REDIRECT and self._location:
            raise _Elsewhere(self._location)
        if status != http.HTTPStatus.OK:
            raise self._refusal(status, data)
        return data

    def _send(self, method: str, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes]:
        if self._http is None:
            self._http = self._connection(seconds)
            self._http.connect()
        self._http.timeout = seconds
        self._http.sock.settimeout(seconds)
        headers = (_JSON if body is not None else {}) | self._authorization()
        was_cut_off = False
        try:
            self._http.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            was_cut_off = True  # the worker stops reading a body that it refuses: its reply is already here
        response = self._http.getresponse()
        self._location = _worker_in(response.headers.get("Location", ""))
        data = response.read(_BODY_BYTES_MAX)
        if response.length and len(data) < _BODY_BYTES_MAX:  # a cut-off reply, which `read` does not detect
            raise http.client.IncompleteRead(data, response.length)
        if was_cut_off or response.will_close or not response.isclosed():
            self.close()
        return response.status, data

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)

    def _authorization(self) -> dict[str, str]:
        token = read_token(self.named) if self._token is None else self._token
        if not (token.isascii() and token.isprintable()):
            raise Unauthenticated("the token is not valid: it has characters that no token has")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _refusal(self, status: int, data: bytes) -> PenstockError:
        try:
            return error_of(status, json.loads(data))
        except ValueError:
            text = f"{self._address} replied {status} with something other than JSON"
            if status >= _FAILED:  # a worker that is stopped gives its requests up
                return Unavailable(text, "The worker is stopping, or its log has the reason.")
            return ProtocolError(text, "Is it a worker? Use its HTTP port (--http-port).")


_FAILED = 500
"""From here on, a status is the server's own fault."""


def _worker_in(location: str) -> str:
    """`http://host:port` of a Location; "" if there is none."""
    scheme, found, rest = location.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if found else ""


# What the blocking clients of a worker's HTTP side share: one connection, retried while the worker is unavailable.


def connection_to(worker: str, timeout_seconds: float, token: str | None = None) -> Connection:
    """`worker`: as parse_workers takes it. `token`: see Connection. Raises RequestError."""
    (address, is_tls), *others = parse_workers(worker)
    tls = https_context(address.host) if is_tls else None
    return Connection(address, timeout_seconds, tls, token, others=[one for one, _ in others])


_decoding = threading.Lock()
"""msgspec analyses a type when it first decodes it, and crashes if several threads do so at the same time."""


def _decoded(data: bytes, kind: type[T]) -> T:
    with _decoding:
        return decode_reply(data, kind)


class WorkerClient:
    """Every call may be repeated, and is, for `retry_seconds` while the worker is away; then Unavailable is raised. Not
    for several threads at once.

    `worker`: `host:port` or `https://host:port`; several of one cluster are separated by commas. The token, unless it
    is given, and the files of TLS are found in the environment, see `penstock.client.credentials`. What the worker does
    not allow raises Unauthenticated or Forbidden.
    """

    def __init__(
        self,
        worker: str = f"127.0.0.1:{HTTP_PORT}",
        retry_seconds: float = RETRY_SECONDS,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        token: str | None = None,
    ) -> None:
        self._retry_seconds = retry_seconds
        self._connection = connection_to(worker, timeout_seconds, token)

    @property
    def address(self) -> Address:
        """Of the worker that is asked now, if several were named."""
        return self._connection.address

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def status(self) -> WorkerStatus:
        """The worker's /status."""
        return self._get("/status", WorkerStatus)

    def history(self, series: Sequence[str] = ()) -> WorkerHistory:
        """The worker's /history: these series, and the epochs of their pipelines; without any, everything."""
        asked = f"?{urlencode([('series', one) for one in series])}" if series else ""
        return self._get(f"/history{asked}", WorkerHistory)

    def streams(self, source: str) -> SourceStreams:
        """The slowest streams of a source. Raises RequestError for an unknown one."""
        return self._get(f"/sources/{quote(source, safe='')}/streams", SourceStreams)

    def cluster(self) -> ClusterStatus:
        """The worker's /cluster. Raises RequestError for a worker that has everything itself."""
        return self._get("/cluster", ClusterStatus)

    def segments(self, prefix: str = "", after: str = "") -> SegmentPage:
        """A page of the segments after this name, in the order of names."""
        return self._get("/segments?" + urlencode({"prefix": prefix, "after": after}), SegmentPage)

    def principal(self) -> Principal:
        """As whom the worker knows this client."""
        return self._get("/principal", Principal)

    def _get(self, path: str, reply: type[T], wait_seconds: float = 0.0) -> T:
        return _decoded(self._ask("GET", path, None, wait_seconds), reply)

    def _post(self, path: str, request: msgspec.Struct, reply: type[T], wait_seconds: float = 0.0) -> T:
        return _decoded(self._ask("POST", path, encode(request), wait_seconds), reply)

    def _ask(self, method: str, path: str, body: bytes | None, wait_seconds: float = 0.0) -> bytes:
        return retrying(self._retry_seconds, Interrupted)(self._connection.ask, method, path, body, wait_seconds)
