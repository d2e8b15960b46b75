"""What hostile clients send: HTTP requests to every route, conversations of the segment protocol in both dialects, and
frames of the connector protocol. Most are valid in their structure and mean what nobody should mean; some are damaged.

Everything is a function of the random numbers alone, so that a seed repeats it.
"""

import inspect
import json
import random
import typing
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import msgspec
from starlette.routing import Route

from penstock.access.refusals import Refusals
from penstock.client.segments import QUOTA
from penstock.core.errors import PenstockError
from penstock.core.types import Buffer
from penstock.protocol import connector
from penstock.protocol.api.deployment import Apply, Deployment
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AttributeUpdate,
    Dialect,
    Hello,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    Message,
    Part,
    Request,
    TableEntry,
    TableKey,
    frame_events,
)
from penstock.worker.http import Watched, application
from penstock.worker.settings import WorkerSettings
from tests.protocol.connector.vectors import VECTORS
from tests.security.hostile.target import CANARY, COOKIE, FORGED

NUMBERS = (0, 1, 2, 7, 255, 4096, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**31), -(2**63), 10**30)
_OWN = ("fuzz", "fuzz-1", "fuzz/a", "fuzz/b", "connector/fuzz/0", "pipeline/fuzz/out", "staging/fuzz/-/0/0-0/out")
_CANARIES = (
    CANARY,
    f"{CANARY}/segment",
    f"connector/{CANARY}/0",
    f"connector/{CANARY}/streams",
    f"pipeline/{CANARY}/out",
    f"pipeline:{CANARY}/out",
    f"staging/{CANARY}/-/0/0-0/out",
    "coordinator/ledger",
)
_WORDS = ("", "in", "out", "err", "01", "null", "metronome", "segment:fuzz/out", "null:", "earliest", "latest", "5s")
_TEXTS = (
    "../../etc/passwd",
    "${PENSTOCK_TOKEN_FILE}",
    "${file:token}",
    f"line\n{FORGED}\r\n{FORGED}",
    "\0\x1b[2J\u2028\N{SNOWMAN}\U0001f600",
    "x" * 5000,
    "9" * 5000,
    "%00%0a%2f",
)


class Values:
    """Values for one principal. Those of the owner name no canary: it may change them all."""

    def __init__(self, rng: random.Random, principal: str, token: str) -> None:
        self.rng = rng
        self.token = token
        self.cookies = (token, COOKIE) if principal == "owner" else (token,)
        self._names = _OWN if principal == "owner" else (*_OWN, *_CANARIES)

    def is_one_in(self, count: int) -> bool:
        return self.rng.randrange(count) == 0

    def name(self) -> str:
        return self.rng.choice(_TEXTS) if self.is_one_in(10) else self.rng.choice(self._names)

    def text(self) -> str:
        return self.rng.choice((self.rng.choice(_WORDS), self.name()))

    def number(self) -> int:
        return self.rng.choice(NUMBERS) if self.is_one_in(2) else self.rng.randrange(4)

    def data(self) -> bytes:
        events = [self.rng.randbytes(self.rng.choice((0, 1, 30, 2000))) for _ in range(self.rng.randrange(4))]
        return self.rng.randbytes(self.rng.randrange(100)) if self.is_one_in(4) else frame_events(events)

    def repeated(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self.rng.choice((0, 1, 1, 2, 3)))]

    def damaged(self, data: bytes) -> bytes:
        """Without regard to what the bytes mean."""
        rng, damaged = self.rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(damaged) + 1)
            match rng.randrange(5):
                case 0:
                    damaged[at : at + 1] = rng.randbytes(1)
                case 1:
                    damaged[at : at + 4] = rng.choice(NUMBERS[:8]).to_bytes(4, "big")
                case 2:
                    del damaged[at : at + rng.randrange(1, 20)]
                case 3:
                    damaged[at:at] = damaged[rng.randrange(len(damaged) + 1) :][: rng.randrange(1, 60)]
                case 4:
                    del damaged[at:]
        return bytes(damaged)


# HTTP.


@dataclass(frozen=True, slots=True)
class FuzzedRoute:
    path: str
    methods: tuple[str, ...]
    body: type[Any] | None
    """What its requests are decoded to; None for routes that only look."""


@cache
def routes() -> tuple[FuzzedRoute, ...]:
    """All that the worker has. No request is made here, so that no worker is needed."""
    found = worker_routes()
    return tuple(FuzzedRoute(route.path, tuple(sorted(route.methods or ())), _body_type(route)) for route in found)


def worker_routes() -> list[Route]:
    """Every route of a worker's HTTP port. Nothing answers: only what `application` touches is there."""
    probed = {"fatal_problems": list, "ingest_problems": list, "problems": list}
    worker = cast("Watched", SimpleNamespace(refusals=Refusals(), directory=None, **probed))
    found = application(worker, WorkerSettings(data=Path())).routes
    assert all(isinstance(route, Route) for route in found), f"only plain routes are known here: {found}"
    return cast("list[Route]", found)


def _body_type(route: Route) -> type[Any] | None:
    """As `penstock.worker.routes.post` has it."""
    return inspect.getclosurevars(route.endpoint).nonlocals.get("kind")


def json_value(kind: msgspec.inspect.Type, values: Values) -> Any:
    """A value of this type, which msgspec decodes: but for limits of numbers."""
    match kind:
        case msgspec.inspect.StructType(fields=members) | msgspec.inspect.DataclassType(fields=members):
            present = [one for one in members if one.required or values.is_one_in(2)]
            return {one.encode_name: json_value(one.type, values) for one in present}
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            items = values.repeated(lambda: (json_value(key, values), json_value(value, values)))
            return {str(name): item for name, item in items}
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return values.repeated(lambda: json_value(item, values))
        case msgspec.inspect.TupleType(item_types=items):
            return [json_value(item, values) for item in items]
        case msgspec.inspect.UnionType(types=types):
            return json_value(values.rng.choice(types), values)
        case msgspec.inspect.LiteralType(values=literals):
            return values.rng.choice(literals)
    return _SCALARS[type(kind)](values)  # a type that is missing there: add it


_SCALARS: dict[type[msgspec.inspect.Type], Callable[[Values], Any]] = {
    msgspec.inspect.IntType: Values.number,
    msgspec.inspect.StrType: Values.text,
    msgspec.inspect.BytesType: lambda values: b64encode(values.data()).decode(),
    msgspec.inspect.FloatType: lambda values: values.rng.choice((0.0, -1.5, 1e-300, 1e300, 0.25)),
    msgspec.inspect.BoolType: lambda values: values.is_one_in(2),
    msgspec.inspect.NoneType: lambda _: None,
    msgspec.inspect.AnyType: lambda values: values.rng.choice(
        (None, 1, values.text(), [values.text()], {values.text(): values.number()})
    ),
}


def body_of(route: FuzzedRoute, values: Values) -> bytes:
    if route.body is None:
        return b"" if values.is_one_in(2) else values.data()
    body = json_value(msgspec.inspect.type_info(route.body), values)
    if route.body is Apply and not values.is_one_in(4):
        body["deployment"] = _deployment(values)
    text = json.dumps(body).encode()
    match values.rng.randrange(12):
        case 0:
            return values.damaged(text)
        case 1:
            return b"[" * values.rng.choice((10, 2000, 200_000))
        case 2:
            return text.replace(b'"', b'"\\ud800', 1)
    return text


def _deployment(values: Values) -> Any:
    """The three parts are there, so that it is checked further."""
    parts: dict[str, Any] = {"connectors": {}, "pipelines": {}, "links": []}
    return parts | json_value(msgspec.inspect.type_info(Deployment), values)


_QUERIES = ("generation", "prefix", "after", "limit", "port", "oldest", "driver", "")
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "X" * 5000, "G\0T")
_HOSTS = ("evil.example", "", "[::1", "[::1]x", "localhost:" + "9" * 5000, "localhost:-1", "[", ":", "\xe9")
_HEADERS = (
    b"Origin: http://evil.example\r\n",
    b"Host: evil.example\r\n",  # a second one
    b"X-Forwarded-For: " + FORGED.encode() + b"\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99999999999\r\n",
    b"Content-Length: -1\r\n",
    b"X: " + b"x" * 20_000 + b"\r\n",
    b"X: x\r\n" * 500,
    b"Authorization: Bearer \xff\xfe\r\n",
    b"Authorization: Basic " + b"=" * 100 + b"\r\n",
    b" folded: x\r\n",
)


def http_request(values: Values) -> bytes:
    rng = values.rng
    route = rng.choice(routes())
    body = body_of(route, values)
    method = rng.choice(_METHODS) if values.is_one_in(12) else rng.choice(route.methods)
    kind = rng.choice(("text/plain", "", "multipart/form-data")) if values.is_one_in(20) else "application/json"
    host = rng.choice(_HOSTS) if values.is_one_in(20) else "127.0.0.1"
    head = [f"{method} {_path(route, values)} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n".encode()]
    if values.token:
        head.append(f"Authorization: Bearer {values.token}\r\n".encode())
    if values.is_one_in(10):
        head.append(rng.choice(_HEADERS))
    head.append(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    request = b"".join(head) + body
    return values.damaged(request) if values.is_one_in(8) else request


def _path(route: FuzzedRoute, values: Values) -> str:
    path = route.path
    while "{" in path:
        before, _, after = path.partition("{")
        name, _, after = after.partition("}")
        value = values.rng.choice(("0", "err", "9" * 5000)) if name in ("at", "port") else values.name()
        path = before + quote(value, safe="/" if values.is_one_in(4) else "") + after
    if values.is_one_in(3):
        path += f"?{values.rng.choice(_QUERIES)}={quote(values.rng.choice((values.text(), str(values.number()))))}"
    return path + "/../x" if values.is_one_in(30) else path


# The segment protocol.


def segment_conversation(values: Values) -> bytes:
    """The first message chooses the dialect."""
    dialect = DOCUMENT if values.is_one_in(4) else VERSIONED
    greeting = VERSIONED.encode(Hello(17, 5)) if dialect is VERSIONED else b""
    conversation = greeting + b"".join(_encoded(dialect, values) for _ in range(values.rng.randrange(1, 8)))
    return values.damaged(conversation) if values.is_one_in(4) else conversation


def _encoded(dialect: Dialect, values: Values) -> bytes:
    """Values that have no bytes are left out."""
    kinds = [layout.message for layout in dialect.table.values()]
    requests = [kind for kind in kinds if issubclass(kind, Request)]
    try:
        return dialect.encode(segment_message(values.rng.choice(kinds if values.is_one_in(10) else requests), values))
    except PenstockError:
        return b""


def segment_message(kind: type[Message], values: Values) -> Message:
    hints = typing.get_type_hints(kind)
    members = {one.name: _member(one.name, hints[one.name], values) for one in fields(cast("Any", kind))}
    return kind(**members)


def _member(name: str, kind: object, values: Values) -> object:
    if name == "token":
        return "wrong" if values.is_one_in(20) else values.token
    if kind not in _MEMBERS:
        raise TypeError(f"the fuzzer knows no values of the type {kind} ({name})")
    return _MEMBERS[kind](values)


_MEMBERS: dict[object, Callable[[Values], object]] = {
    str: lambda values: values.name(),
    int: lambda values: values.number(),
    bool: lambda values: values.is_one_in(2),
    bytes: lambda values: values.rng.choice((QUOTA, bytes(16), bytes(range(16)))),
    Part: lambda values: values.rng.choice(tuple(Part)),
    Buffer: lambda values: values.data(),
    tuple[AttributeUpdate, ...]: lambda values: tuple(
        values.repeated(lambda: AttributeUpdate(QUOTA, values.rng.choice((1, 4, 9)), values.number(), 0))
    ),
    tuple[LocatedFile, ...]: lambda values: tuple(
        values.repeated(lambda: LocatedFile(values.name(), values.number(), values.number()))
    ),
    tuple[LocatedObject, ...]: lambda values: tuple(
        values.repeated(lambda: LocatedObject(values.name(), values.name()))
    ),
    tuple[LocatedRow, ...]: lambda values: tuple(
        values.repeated(lambda: LocatedRow(*(values.number() for _ in LocatedRow._fields)))
    ),
    tuple[TableKey, ...]: lambda values: tuple(values.repeated(lambda: TableKey(values.data(), values.number()))),
    tuple[TableEntry, ...]: lambda values: tuple(
        values.repeated(lambda: TableEntry(values.data(), values.number(), values.data()))
    ),
    tuple[int, ...]: lambda values: tuple(values.repeated(values.number)),
}
"""Makes the values of a type that members of messages have."""


# The connector protocol.

_VERSIONS = (connector.SOURCE_VERSION, connector.SOURCE_VERSION, connector.MIGRATING_VERSION, "9.9", f"\n{FORGED}")
_STREAMS = (0, 1, 2, connector.stream_id_of("stream"), 2**64 - 1)


def connector_session(values: Values) -> bytes:
    cookie = values.rng.choice(values.cookies)
    hello = connector.Hello(values.rng.choice(_VERSIONS), cookie.encode(), values.text(), values.name())
    frames = [hello, *_frames(values)] if not values.is_one_in(10) else [*_frames(values)]
    session = b"".join(map(_framed, frames))
    return values.damaged(session) if values.is_one_in(4) else session


def _frames(values: Values) -> Iterator[connector.Frame]:
    rng = values.rng
    for _ in range(rng.randrange(1, 12)):
        stream = rng.choice(_STREAMS)
        match rng.randrange(8):
            case 0 | 1:
                yield connector.Notify(stream, values.text(), rng.choice((0, 1, 2**64 - 1)))
            case 2 | 3 | 4:
                message_id = rng.choice((rng.randrange(20), 2**64 - 1))
                yield connector.Message(stream, message_id, rng.choice((0, -1, 2**63 - 1)), b"key", values.data())
            case 5:
                yield connector.EndOfStream(stream)
            case 6:
                yield connector.Error(values.text())
            case 7:
                yield rng.choice(VECTORS)[0]


def _framed(frame: connector.Frame) -> bytes:
    try:
        return connector.encode(frame)
    except PenstockError:
        return b""


PORTS: dict[str, tuple[int, Callable[[Values], bytes]]] = {
    "http": (6, http_request),
    "segment": (2, segment_conversation),
    "connector": (2, connector_session),
}
"""How often each is attacked, and with what."""
