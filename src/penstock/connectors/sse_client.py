"""`sse-client`: reads a server's event stream (Server-Sent Events), as a browser's EventSource does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, ShownBy, Stream
from penstock.connectors.sockets import ClientTls, Headers, check_url, client_context
from penstock.connectors.streams import DRAINED, ready_or_draining
from penstock.connectors.values import SecondsOrOff, Size, SomeSeconds
from penstock.core.errors import NoRoom
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    import httpx
    from httpx_sse import ServerSentEvent

_NUMBER_MAX = (1 << 62) - 1
"""The largest id that fits an event's id."""

_COMMENT_CHARS_MAX = 1000
"""Longer than any comment that keeps a connection alive."""


class SseClientOptions(Options):
    """The data of each event that the server sends becomes an event; `id` and `event` (its type) are in its metadata.
    After a lost connection the server is asked to continue after the last id (`Last-Event-ID`). Whether it can is up to
    the server: most keep only the latest events, or none.

    With `ids: number` the last id is stored with the events: after a restart of the worker nothing is missing and
    nothing comes twice, if the server sends everything after `Last-Event-ID`. With `ids: text` it is remembered only
    while the worker runs.
    """

    url: str
    """Where the events are: `http://…` or `https://…`. A token belongs in a header. Redirects are not followed."""
    ids: Literal["text", "number"] = "text"
    """`number`: ids of events are whole numbers that grow. An event with a number that was stored already is dropped;
    one without an id is stored in a stream of its own, at most once. `text`: ids are anything, or there are none."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """Sent with the request. Take secrets from files: `Authorization: "Bearer ${file:/run/secrets/token}"`."""
    events: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The types of events to read; others are skipped and counted. `message` is an event without a type. By default
    all."""
    event_bytes_max: Annotated[Size, Field(le=8 << 20)] = 1 << 20
    """The largest event. A larger one ends the connection."""
    connect_timeout: SomeSeconds = 10.0
    """For connecting, and for the server's reply."""
    silence: SecondsOrOff = 300.0
    """A connection on which nothing comes for this long, not even a comment, is lost. `off`: it may be silent."""
    tls: ClientTls | None = None
    """For https: authorities and certificates, instead of the system's authorities."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_url(self.url, "http", "https", has_tls=self.tls is not None)
        return self


class _Reading:
    """One response of the server, as httpx-sse reads it (`headers`, `aiter_text`): before it reads on, what has come is
    stored, and there is room for more. It ends when nothing more should be read.
    """

    def __init__(self, response: "httpx.Response", options: SseClientOptions, stream: Stream, host: Host) -> None:
        self.headers = response.headers
        self._response = response
        self._options = options
        self._stream = stream
        self._host = host
        self._chars = 0
        """Read since the last event: httpx-sse has no limit of its own."""
        self._id = ""
        """Of the last event that has come."""
        self.stored_id = ""
        """Of the last event that was stored."""
        self._events: list[ServerSentEvent] = []
        self._numbers: list[int] = []
        self._without_id: list[ServerSentEvent] = []
        self._other: Stream | None = None
        """The stream of events without ids, with `ids: number`."""

    async def aiter_text(self) -> AsyncIterator[str]:
        texts = self._response.aiter_text()
        draining = asyncio.ensure_future(self._host.draining())
        reading: asyncio.Future[str | None] | None = None
        try:
            while await self._is_ready():
                reading = asyncio.ensure_future(anext(texts, None))
                await asyncio.wait([reading, draining], return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() or (text := reading.result()) is None:
                    return
                self._count(text)
                yield text
        finally:
            waiting: list[asyncio.Future[Any]] = [draining] if reading is None else [draining, reading]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _is_ready(self) -> bool:
        """Raises Lost for an event that is too large."""
        await self.store()
        if self._chars > self._options.event_bytes_max:
            raise Lost(f"an event of more than {self._options.event_bytes_max} bytes (event_bytes_max)")
        return await ready_or_draining(self._stream, self._host)

    def _count(self, text: str) -> None:
        """Comments, which keep a connection alive, are not part of an event."""
        is_comment = text.startswith(":") and text.endswith("\n") and len(text) < _COMMENT_CHARS_MAX
        self._chars += 0 if is_comment else len(text)

    def add(self, event: "ServerSentEvent") -> None:
        """Raises Lost if its id is not a number that grows, and must be."""
        self._chars = 0
        is_own, self._id = event.id != self._id, event.id
        if not event.data:  # not an event, by the specification
            return
        if self._options.events and event.event not in self._options.events:
            self._host.count("skipped_events")
        elif self._options.ids == "text":
            self._events.append(event)
        elif is_own:
            self._numbers.append(self._number(event.id))
            self._events.append(event)
        else:
            self._without_id.append(event)

    def _number(self, text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        last = self._numbers[-1] - 1 if self._numbers else -1
        if not last < number < _NUMBER_MAX:
            raise Lost(
                f"the id {text[:40]!r} of an event is not a number greater than the one before it",
                "Use ids: text.",
            )
        return number + 1  # an event's id is at least 1

    async def store(self) -> None:
        """What has come since the last call, in one step."""
        if self._events:
            values, metadata = _stored(self._events)
            await self._stream.put(values, ids=self._numbers or None, metadata=metadata)
            self.stored_id = self._events[-1].id
            self._events, self._numbers = [], []
        if self._without_id:
            if self._other is None:
                self._other = await self._host.open_stream(f"{self._stream.name} without ids")
            values, metadata = _stored(self._without_id)
            await self._other.put(values, metadata=metadata)
            self._without_id = []

    async def close(self) -> None:
        if self._other is not None:
            await self._other.close()


def _stored(events: "Sequence[ServerSentEvent]") -> tuple[list[bytes], list[dict[str, str]]]:
    return [one.data.encode() for one in events], [
        {"event": one.event} | ({"id": one.id} if one.id else {}) for one in events
    ]


class SseClient(Connector[SseClientOptions]):
    """With numbers as ids: exactly once, as far as the server repeats what follows the last id. Otherwise at most once:
    what is sent while there is no connection may never come.
    """

    about = About(
        "sse-client",
        "Reads an event stream over HTTP (Server-Sent Events), and continues after the last event.",
        SseClientOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            resumes=True,
            own_event_times=False,
            interceptors=frozenset(),
        ),
        extra="http",
        example={"url": "https://example.org/events", "ids": "number"},
        shown_by=ShownBy(
            source="tests/application/test_web_kills.py::test_events_of_a_stream_with_numbers_come_once_and_in_order",
        ),
    )

    @classmethod
    def capabilities(cls, options: SseClientOptions) -> Capabilities:
        if options.ids == "number":
            return cls.about.capabilities
        return replace(cls.about.capabilities, source=Guarantee.AT_MOST_ONCE, resumes=False)

    def __init__(self, options: SseClientOptions) -> None:
        super().__init__(options)
        parts = urlsplit(options.url)
        self._where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._last_id = ""
        """Of the last event that was stored, with `ids: text`."""

    async def run(self, host: Host) -> None:
        import httpx

        options, context = self.options, client_context(self.options.tls)
        waits = httpx.Timeout(options.connect_timeout, read=options.silence)
        stream = await self._opened(host, resume=options.ids == "number")
        try:
            async with httpx.AsyncClient(verify=True if context is None else context, timeout=waits) as client:
                await self._read(client, stream, host)
        except httpx.TimeoutException as error:
            raise Lost(f"{self._where} is silent: {type(error).__name__}") from None
        except httpx.HTTPError as error:
            raise Lost(f"{self._where} cannot be read: {str(error) or type(error).__name__}") from error
        finally:
            await stream.cut_off(DRAINED)

    async def _opened(self, host: Host, *, resume: bool) -> Stream:
        try:
            return await host.open_stream(self._where, resume=resume, metadata={"peer": self._where})
        except NoRoom as error:
            raise Lost(str(error), error.hint) from error

    async def _read(self, client: "httpx.AsyncClient", stream: Stream, host: Host) -> None:
        """Returns in a drain, and when the server says that there is nothing more. Raises Lost."""
        last = self._last_id if self.options.ids == "text" else str(stream.last_id - 1) if stream.last_id else ""
        headers = {**self.options.headers, "Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last:
            headers["Last-Event-ID"] = last
        async with client.stream("GET", self.options.url, headers=headers) as response:
            if response.status_code == HTTPStatus.NO_CONTENT:  # what the specification says about it: do not come back
                host.finished()
                return
            if response.status_code != HTTPStatus.OK:
                raise Lost(f"{self._where} replied {response.status_code} {response.reason_phrase}".rstrip())
            host.connected()
            await self._store_all(response, stream, host)
        if not host.is_draining:
            raise Lost(f"{self._where} has ended the stream")

    async def _store_all(self, response: "httpx.Response", stream: Stream, host: Host) -> None:
        from httpx_sse import EventSource, SSEError

        reading = _Reading(response, self.options, stream, host)
        try:
            async for event in EventSource(cast("httpx.Response", reading)).aiter_sse():
                reading.add(event)
            await reading.store()
        except SSEError as error:
            raise Lost(f"{self._where} sends no event stream: {error}") from None
        finally:
            self._last_id = reading.stored_id or self._last_id
            await reading.close()
