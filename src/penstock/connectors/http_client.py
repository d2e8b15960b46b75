"""`http-client`: a request for each value, and the server's responses as events."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from penstock.connectors.api import (
    About,
    Capabilities,
    Connector,
    Host,
    Lost,
    Options,
    Outgoing,
    ShownBy,
    Stream,
    StreamGone,
)
from penstock.connectors.row_formats import encode
from penstock.connectors.sockets import (
    ClientTls,
    Headers,
    HeaderValue,
    check_headers,
    check_url,
    client_context,
    is_header_value,
)
from penstock.connectors.unfinished import Unfinished
from penstock.connectors.url_forms import PREFIX, UrlForm, endpoint
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.errors import NoRoom, RequestError
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    import httpx

# What a server's response means for the value that was sent. No I/O.

_LATER = frozenset({408, 425, 429, *range(500, 600)})
"""The server's own temporary problems. Any other status refuses the request itself."""

_SHOWN_CHARS = 200
"""How much of a server's response is quoted in a reason."""


class Verdict(Enum):
    TAKEN = "taken"
    LATER = "later"
    REFUSED = "refused"


def verdict_of(status: int) -> Verdict:
    if 200 <= status < 300:
        return Verdict.TAKEN
    return Verdict.LATER if status in _LATER else Verdict.REFUSED


def wait_of(retry_after: str | None, now: datetime, seconds_max: float) -> float:
    """How long the server asks us to wait, in seconds: as a number or as a date."""
    if not retry_after:
        return 0.0
    if retry_after.isascii() and retry_after.strip().isdigit():
        return min(float(retry_after), seconds_max)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), seconds_max)


def reason_of(where: str, status: int, phrase: str, body: bytes) -> str:
    """The status, and the first line of the server's response."""
    line = next((line for line in body.decode(errors="replace").splitlines() if line.strip()), "")
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line.strip()[:_SHOWN_CHARS])
    return f"{where} replied {status} {phrase}".rstrip() + (f": {shown}" if shown else "")


class HttpClientOptions(Options):
    """A value counts as delivered when the server has replied 2xx. After 408, 425, 429, 5xx or no reply it is sent
    again, with the same Idempotency-Key, and not before the time in a Retry-After header. Any other reply refuses it.

    If `out` is linked, each reply that settles a request is an event: its body, with `status`, `content_type`,
    `headers` and `request` (the `source`, `stream_id` and `message_id` of the value) in its metadata.
    """

    url: str
    """Where the requests go: `http://…` or `https://…`. A token belongs in a header. Redirects are not followed."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The method of each request."""
    format: Literal["value", "lines", "json"] = "value"
    """`value`: one request for each value. `lines` and `json`: one request for all values that are delivered together;
    `lines` puts a newline after each value, `json` sends one object per line, with `id`, `event_time_us`, `key` and
    `value` (`key_base64`, `value_base64` if they are not UTF-8)."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """Sent with each request. Take secrets from files: `Authorization: "Bearer ${file:/run/secrets/token}"`."""
    headers_file: Path | None = None
    """A file with more headers, one `Name: value` per line. It is read again whenever a request has failed."""
    content_type: HeaderValue | None = None
    """The content type of requests, unless a value's metadata has one. By default `application/octet-stream`;
    `text/plain; charset=utf-8` for `lines`; `application/x-ndjson` for `json`."""
    timeout: SomeSeconds = 30.0
    """For connecting, and for each wait for the server."""
    on_refusal: Literal["dead-letter", "retry"] = "dead-letter"
    """What happens to a value that the server refuses, with 3xx, or 4xx other than 408, 425 and 429. `dead-letter`: it
    becomes a dead letter. `retry`: it is sent again until the server accepts it, and later values wait."""
    retry_after_max: SomeSeconds = 3600.0
    """The longest time that a server can ask for with Retry-After."""
    response_bytes_max: Annotated[Size, Field(le=64 << 20)] = 1 << 20
    """A longer reply that is to become an event is cut off there; its metadata has `truncated`."""
    tls: ClientTls | None = None
    """For https: authorities and certificates, instead of the system's authorities."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_url(self.url, "http", "https", has_tls=self.tls is not None)
        return self


_CONTENT_TYPES = {
    "value": "application/octet-stream",
    "lines": "text/plain; charset=utf-8",
    "json": "application/x-ndjson",
}


class HttpClient(Connector[HttpClientOptions]):
    """At least once. If `out` is linked, a reply is stored before its value counts as delivered; replies that come
    during a drain are dropped and counted.
    """

    about = About(
        "http-client",
        "Sends values in HTTP requests; the replies are events.",
        HttpClientOptions,
        Capabilities(
            source=Guarantee.AT_LEAST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            on_stream_started="Opens every stream. All are closed while the server is unreachable or replies 5xx.",
        ),
        extra="http",
        example={
            "url": "https://example.org/events",
            "headers": {"Authorization": "Bearer ${file:/run/secrets/token}"},
        },
        url=UrlForm(
            written="http[s]://HOST[:PORT]/PATH",
            place=endpoint,
            fields=("url",),
            implied={"format": "lines", "on_refusal": "retry"},
            prefix=PREFIX,
            credentials="Put an Authorization header into a file: penstock_headers_file=FILE.",
        ),
        shown_by=ShownBy(
            source="tests/application/test_sink_kills.py::test_every_value_is_sent_in_a_request_and_every_reply_is_an_event",
            sink="tests/application/test_sink_kills.py::test_every_value_is_sent_in_a_request_and_every_reply_is_an_event",
        ),
    )

    def __init__(self, options: HttpClientOptions) -> None:
        super().__init__(options)
        parts = urlsplit(options.url)
        self._where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._client: httpx.AsyncClient | None = None
        self._responses: Stream | None = None
        self._progress = Unfinished(_Progress)
        self._wait_until = 0.0
        self._is_lost = False
        """The last request failed."""
        self._headers: Mapping[str, str] | None = None
        """From the options and their file; None: not read yet."""

    async def run(self, host: Host) -> None:
        import httpx

        context = client_context(self.options.tls)
        verify = True if context is None else context
        try:
            async with httpx.AsyncClient(verify=verify, timeout=self.options.timeout) as self._client:
                await self._open_responses(host)
                host.connected()
                await host.draining()
                await self._close_responses()
                await asyncio.Event().wait()  # accepted events leave after a drain: until it is cancelled
        finally:
            self._client = None
            await self._close_responses()

    async def _open_responses(self, host: Host) -> None:
        if host.has_out:
            try:
                self._responses = await host.open_stream(self._where, metadata={"peer": self._where})
            except NoRoom as error:
                raise Lost(str(error), error.hint) from error

    async def _close_responses(self) -> None:
        stream, self._responses = self._responses, None
        if stream is not None:
            await stream.close()

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        if self.options.format == "value":
            await self._deliver(outgoing, host)
            return
        together = encode(outgoing, self.options.format)
        whole = Outgoing(outgoing.stream, [together], outgoing.ids[-1:], name=outgoing.name)
        try:
            await self._deliver(whole, host)
        except StreamGone as refused:
            raise StreamGone(str(refused), refused.hint) from None

    async def _deliver(self, outgoing: Outgoing, host: Host) -> None:
        """One request for each value."""
        progress = self._progress.take(outgoing.name)
        try:
            for place in range(progress.sent, len(outgoing.values)):
                await self._send(outgoing, place, progress, host)
                progress.sent = place + 1
            if progress.stream is not None:
                await progress.stream.durable(progress.last_id)
        except Lost:
            self._is_lost, self._headers = True, None
            self._progress.keep(outgoing.name, progress)
            raise
        if progress.refused:
            raise StreamGone(progress.reason, places=progress.refused)

    async def _send(self, outgoing: Outgoing, place: int, progress: "_Progress", host: Host) -> None:
        response = await self._request(outgoing, place)
        verdict = verdict_of(response.status)
        reason = reason_of(self._where, response.status, response.phrase, response.body)
        if verdict is Verdict.LATER or (verdict is Verdict.REFUSED and self.options.on_refusal == "retry"):
            self._wait_until = time.monotonic() + response.wait_seconds
            raise Lost(reason)
        if verdict is Verdict.REFUSED:
            host.count("refused_values")
            progress.refused.append(place)
            progress.reason = progress.reason or reason
        await self._take(response, outgoing, place, progress, host)

    async def _request(self, outgoing: Outgoing, place: int) -> "_Response":
        import httpx

        if (seconds := self._wait_until - time.monotonic()) > 0:
            raise Lost(f"{self._where} asks to wait {seconds:.0f} s longer (Retry-After)")
        if self._client is None:
            raise Lost(f"{self._where} is not connected")
        metadata = outgoing.metadata[place] if outgoing.metadata else {}
        default = self.options.content_type or _CONTENT_TYPES[self.options.format]
        key = self._key(outgoing, place) if outgoing.name else ""
        headers = {"Content-Type": _content_type(metadata) or default, **({"Idempotency-Key": key} if key else {})}
        request = self._client.build_request(
            self.options.method,
            self.options.url,
            content=outgoing.values[place],
            headers={**headers, **await self._given_headers(), **self.sign(key, outgoing.values[place])},
        )
        try:
            return await self._respond(self._client, request)
        except httpx.TimeoutException:
            raise Lost(f"{self._where} did not answer within {self.options.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise Lost(f"{self._where} cannot be reached: {_cause(error)}") from error

    def sign(self, key: str, body: bytes) -> Mapping[str, str]:  # noqa: ARG002  for subclasses
        """Headers that prove who sends the request with this idempotency key."""
        return {}

    def _key(self, outgoing: Outgoing, place: int) -> str:
        """The idempotency key, which is the same when the value is sent again."""
        if self.options.format != "value":
            return outgoing.name
        return f"{outgoing.name}-{len(outgoing.values) - 1 - place}"

    async def _given_headers(self) -> Mapping[str, str]:
        if self._headers is None:
            file = self.options.headers_file
            self._headers = {**self.options.headers, **(await asyncio.to_thread(_read_headers, file) if file else {})}
        return self._headers

    async def _respond(self, client: "httpx.AsyncClient", request: "httpx.Request") -> "_Response":
        """The response up to the limit; if it is longer, its connection is closed."""
        response = await client.send(request, stream=True)
        try:
            body, truncated = await _bounded(response, self.options.response_bytes_max)
        finally:
            await response.aclose()
        wait = wait_of(response.headers.get("retry-after"), datetime.now(UTC), self.options.retry_after_max)
        return _Response(response.status_code, response.reason_phrase, dict(response.headers), body, truncated, wait)

    async def _take(
        self, response: "_Response", outgoing: Outgoing, place: int, progress: "_Progress", host: Host
    ) -> None:
        """Store the response as an event, with the origin of the value that it answers."""
        if self._responses is None:
            if host.has_out:
                host.count("responses_dropped")
            return
        if self._is_lost:  # if responses lead back to this connector, their stream is closed until this call returns
            host.connected()
            self._is_lost = False
        progress.stream = self._responses
        metadata = response.metadata | {"request": _origin(outgoing, place)}
        try:
            progress.last_id = await progress.stream.put([response.body], metadata=[metadata])
        except RequestError:  # the drain has closed the stream in the meantime
            if not host.is_draining:
                raise
            host.count("responses_dropped")


@dataclass(slots=True)
class _Progress:
    """How far a delivery has got."""

    sent: int = 0
    refused: list[int] = field(default_factory=list)
    reason: str = ""
    stream: Stream | None = None
    last_id: int = 0


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes
    truncated: bool
    wait_seconds: float

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {"status": self.status, "headers": dict(self.headers)}
        if content_type := self.headers.get("content-type"):
            found["content_type"] = content_type
        if self.truncated:
            found["truncated"] = True
        return found


def _cause(error: BaseException) -> str:
    """The system's error, if there is one: httpx knows only that all attempts failed."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError):
            return str(inner)
        if isinstance(inner, OSError) and inner.errno is not None and inner.errno > 0:
            return os.strerror(inner.errno)
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _read_headers(file: Path) -> Mapping[str, str]:
    """Raises Lost: the file may be fixed later."""
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Lost(f"cannot read the headers in {file}: {error}") from None
    if not all(colon for _, colon, _ in lines):
        raise Lost(f"{file} has a line that is not a header: write Name: value")
    try:
        return check_headers({name.strip(): value.strip() for name, _, value in lines})
    except ValueError as error:
        raise Lost(f"{file}: {error}") from None


def _content_type(metadata: Mapping[str, Any]) -> str:
    """Empty if there is none that is valid in a header: an invalid one must not block the value."""
    content_type = metadata.get("content_type")
    return content_type if isinstance(content_type, str) and is_header_value(content_type) else ""


async def _bounded(response: "httpx.Response", bytes_max: int) -> tuple[bytes, bool]:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > bytes_max:
            return bytes(body[:bytes_max]), True
    return bytes(body), False


def _origin(outgoing: Outgoing, place: int) -> dict[str, Any]:
    """The origin of the value that a response answers; `message_id` is Spark's column of that name."""
    if outgoing.stream is None:
        return {}
    return {
        "source": outgoing.stream.connector,
        "stream_id": outgoing.stream.stream_id,
        "message_id": outgoing.ids[place],
    }
