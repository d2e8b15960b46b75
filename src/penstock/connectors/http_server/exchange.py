"""One request of a connection, while its answer is awaited: selects its replies, and builds the answer from them. No
I/O, except for waking the waiting task.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from penstock.connectors.api import Outgoing, OutgoingChain
from penstock.connectors.http_server.options import IntakeOptions
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.server_auth import CHALLENGE, ServerAuth

# Answers to requests, and how the events of a reply become one. No I/O.

REASON = "reason"
"""In the metadata of a dead letter: why its event could not be processed."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,4096}")

_NOT_THEIRS = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the connection itself, or that the server sets."""

_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False
    """The connection is closed after it."""


def text_answer(status: HTTPStatus, text: str, *headers: tuple[str, str], closes: bool = False) -> Answer:
    """An answer with a plain-text body."""
    return Answer(status, f"{text}\n".encode(), (("content-type", "text/plain; charset=utf-8"), *headers), closes)


def refusal(reasons: Iterable[str]) -> Answer:
    """For events that have become dead letters."""
    return text_answer(HTTPStatus.BAD_REQUEST, "\n".join(dict.fromkeys(reasons)) or "it could not be processed")


def reply(
    body: bytes, metadata: Iterable[Mapping[str, Any]], content_type: str, request_headers: Mapping[str, str]
) -> Answer:
    """The answer from a pipeline's output: `status`, `content_type` and `headers` in the events' metadata are used, the
    last of each. Headers that are unchanged from the request are not sent back.
    """
    status, headers = int(HTTPStatus.OK), dict[str, str]()
    for one in metadata:
        status = _status(one.get("status")) or status
        content_type = _text(one.get("content_type")) or content_type
        if isinstance(own_headers := one.get("headers"), Mapping) and own_headers != request_headers:
            headers |= dict(_headers(own_headers))
    if status in _WITHOUT_BODY:
        return Answer(status, b"", tuple(headers.items()))
    return Answer(status, body, (("content-type", content_type), *headers.items()))


def _status(value: Any) -> int | None:
    """Only final statuses: a pipeline cannot send an interim (1xx) response."""
    try:
        status = int(value)
    except (TypeError, ValueError):
        return None
    return status if 200 <= status <= 599 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) and _VALUE.fullmatch(value) else ""


def _headers(headers: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        is_theirs = isinstance(name, str) and _TOKEN.fullmatch(name) and name.lower() not in _NOT_THEIRS
        if is_theirs and (text := _text(value)):
            yield name.lower(), text


class Exchange:
    """The events after `after`, up to the last one of the request, belong to this request. Until the last one is known,
    all events after `after` do: a connection has one request at a time.
    """

    def __init__(self, after: int, headers: Mapping[str, str], bytes_max: int) -> None:
        self.after = after
        self.last: int | None = None
        self._has_replied = False
        self._waiting: asyncio.Future[None] | None = None
        self._headers = headers
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: list[bytes] = []
        self._metadata: list[Mapping[str, Any]] = []
        self._reasons: list[str] = []
        self._is_too_large = False

    def owns(self, event_id: int) -> bool:
        return event_id > self.after and (self.last is None or event_id <= self.last)

    def take(self, outgoing: Outgoing) -> list[int]:
        """Take the replies to this request. Returns the indexes of the others: those that no request waits for, and
        those that are too large.
        """
        left = []
        for place, (value, event_id) in enumerate(zip(outgoing.values, outgoing.ids, strict=True)):
            metadata = outgoing.metadata[place] if outgoing.metadata else {}
            if not self.owns(event_id) or not self._take(value, metadata):
                left.append(place)
        if len(left) < len(outgoing.values) or self._is_too_large:
            self._has_replied = True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)
        return left

    async def replied(self) -> None:
        """Returns when a reply has arrived."""
        if not self._has_replied:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _take(self, value: bytes, metadata: Mapping[str, Any]) -> bool:
        if REASON in metadata:
            self._reasons.append(str(metadata[REASON]))
            return True
        if self._bytes + len(value) > self._bytes_max:
            self._is_too_large = True
            return False
        self._bytes += len(value)
        self._values.append(value)
        self._metadata.append(metadata)
        return True

    def answer(self, chain: Callable[[], OutgoingChain], content_type: str) -> Answer:
        """The answer, built from what has arrived. Call it when no more is expected."""
        if self._is_too_large:
            return text_answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"the reply exceeds reply_bytes_max ({self._bytes_max})"
            )
        if self._reasons:
            return refusal(self._reasons)
        if not self._values:
            return Answer(HTTPStatus.NO_CONTENT)
        try:
            body = b"".join(_chained(chain(), self._values))
        except BadBytes as error:
            return text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"the reply cannot leave: {error}")
        return reply(body, self._metadata, content_type, self._headers)


def _chained(chain: OutgoingChain, values: Sequence[bytes]) -> list[bytes]:
    return chain.feed(values) + chain.flush()


# Incoming requests: which are accepted, how large they may be, and what is stored with their events.

_PRIVATE = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"})
"""Headers that are not stored: those who may read the events may not be the client."""


class RefusedRequest(Exception):
    """Nothing of the request is stored, or it is unknown whether something is; the answer states which."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


def authorize(request: Request, auth: ServerAuth | None) -> None:
    """Raises RefusedRequest. The connection is closed: nothing more of the body is read."""
    if auth is None:
        return
    if not auth.accepts(", ".join(request.headers.getlist("authorization"))):
        challenge = (CHALLENGE, auth.challenge)
        raise RefusedRequest(text_answer(HTTPStatus.UNAUTHORIZED, "send credentials", challenge, closes=True))


def route(request: Request, accepted: str, methods: Sequence[str]) -> None:
    """Raises RefusedRequest for a path or a method that is not accepted."""
    wanted, is_prefix = accepted.removesuffix("*"), accepted.endswith("*")
    if not (request.path.startswith(wanted) if is_prefix else request.path == wanted):
        raise RefusedRequest(text_answer(HTTPStatus.NOT_FOUND, "not found"))
    if request.method not in methods:
        allow = ("allow", ", ".join(methods))
        raise RefusedRequest(
            text_answer(HTTPStatus.METHOD_NOT_ALLOWED, f"method {request.method} is not allowed", allow)
        )


async def read_body(request: Request, options: IntakeOptions) -> bytes:
    """The whole body. Raises RefusedRequest if it is too large or too slow, Disconnected."""
    if request.length is not None and request.length > options.body_bytes_max:
        raise RefusedRequest(_too_large(options))
    if request.is_whole:
        return await _whole_body(request, options)
    try:
        async with asyncio.timeout(options.timeout):
            return await _whole_body(request, options)
    except TimeoutError:
        text = f"the body did not arrive within {options.timeout:g} s"
        raise RefusedRequest(text_answer(HTTPStatus.REQUEST_TIMEOUT, text, closes=True)) from None


async def _whole_body(request: Request, options: IntakeOptions) -> bytes:
    pieces, size = list[bytes](), 0
    while piece := await request.read():
        pieces.append(piece)
        size += len(piece)
        if size > options.body_bytes_max:
            raise RefusedRequest(_too_large(options))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(options: IntakeOptions) -> Answer:
    """The rest of the body is read and dropped: a client that is still sending would not see an answer to a closed
    connection.
    """
    return text_answer(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {options.body_bytes_max} bytes (body_bytes_max)"
    )


def metadata_of(request: Request) -> dict[str, Any]:
    """What is stored with the request's events."""
    headers = dict[str, str]()
    for raw, value in request.raw_headers:
        if (name := raw.decode("latin-1")) not in _PRIVATE:
            headers[name] = value.decode("latin-1")
    found = {"method": request.method, "path": request.path, "headers": headers}
    if request.query:
        found["query"] = request.query.decode("latin-1")
    if content_type := headers.get("content-type"):
        found["content_type"] = content_type
    return found
