"""Messages that a broker pushes: stored as they come, and acknowledged, in their order, when their events are complete.

    callback of the client library ──add──▶ arrived ──▶ streams ──▶ complete ──▶ acknowledge(tokens)

What has arrived is bounded by the number of messages that the broker sends without an acknowledgement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.connectors.api import Host, Stream
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.streams import DRAINED, first_of, open_when_there_is_room

STREAMS_MAX = 10_000
"""Open streams of one connection: beyond it, the one that was used least recently is closed."""

METADATA_BYTES_MAX = 16 << 10
"""What the properties of a message may take in the metadata of its event; beyond it they are left out, and counted."""

T = TypeVar("T")


class Received(NamedTuple, Generic[T]):
    """A message from the broker."""

    value: bytes
    metadata: Mapping[str, Any]
    stream: str
    """The name of the stream that it belongs to."""
    token: T | None
    """With which it is acknowledged; None: not at all."""


class _Stored(NamedTuple, Generic[T]):
    """Where the events of some messages are: the last id in each stream."""

    last_ids: Mapping[Stream, int]
    tokens: Sequence[T]


class Intake(Generic[T]):
    """At least once: a message is acknowledged only when its events, or dead letters, may be, as `ack:` says. What was
    not acknowledged comes again over the next connection.

    `acknowledge` gets tokens in the order of their messages.
    """

    def __init__(
        self,
        host: Host,
        acknowledge: Callable[[Sequence[T]], Awaitable[None]],
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """`taken` is called when nothing waits to be stored any more."""
        self._host = host
        self._acknowledge = acknowledge
        self._taken = taken
        self._arrived: list[Received[T]] = []
        self._changed = asyncio.Event()
        self._stored: asyncio.Queue[_Stored[T]] = asyncio.Queue()
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        """Messages that have arrived and are not stored."""
        return len(self._arrived)

    def add(self, message: Received[T]) -> None:
        """In the event loop."""
        self._arrived.append(message)
        self._changed.set()

    async def run(self, gone: Awaitable[None], stop_reading: Callable[[], Awaitable[None]]) -> None:
        """Until it is cancelled, or `gone` raises. In a drain, `stop_reading` is called, then everything that has
        arrived is stored, and acknowledgements continue.
        """
        await first_of(gone, self._store_all(stop_reading), self._acknowledge_all())

    async def _store_all(self, stop_reading: Callable[[], Awaitable[None]]) -> None:
        while not self._host.is_draining:
            if not self._arrived:
                self._changed.clear()
                await first_of(self._changed.wait(), self._host.draining())
            await self._store_arrived()
        await stop_reading()
        await self._store_arrived()
        for stream in self._streams.values():
            await stream.cut_off(DRAINED)
        await asyncio.Event().wait()

    async def _store_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._taken()
        if not arrived:
            return
        if self._host.has_out:
            last_ids = await self._store(arrived)
        else:
            self._host.count("discarded_messages", len(arrived))
            last_ids = {}
        if last_ids is not None:
            self._stored.put_nowait(_Stored(last_ids, [one.token for one in arrived if one.token is not None]))

    async def _store(self, arrived: Sequence[Received[T]]) -> dict[Stream, int] | None:
        """None if something was not stored, because there was no room for a stream before a drain: it comes again."""
        by_stream: dict[str, list[Received[T]]] = {}
        for message in arrived:
            by_stream.setdefault(message.stream, []).append(message)
        last_ids: dict[Stream, int] = {}
        for name, messages in by_stream.items():
            for part in [messages] if not self._host.has_interceptors else [[one] for one in messages]:
                stream = await self._stream(name)
                if stream is None:
                    return None
                last_ids[stream] = await self._put(stream, name, part)
        return last_ids

    async def _put(self, stream: Stream, name: str, messages: Sequence[Received[T]]) -> int:
        """Interceptors get each message alone: what they would buffer could not be acknowledged."""
        if not self._host.has_interceptors:
            return await stream.put([one.value for one in messages], metadata=[one.metadata for one in messages])
        (message,) = messages
        try:
            await stream.send(message.value, metadata=message.metadata)
            return await stream.finish()
        except BadBytes:
            self._host.count("bad_messages")
            del self._streams[name]
            return stream.last_id

    async def _stream(self, name: str) -> Stream | None:
        """None if the connector was drained before there was room for a stream."""
        stream = self._streams.pop(name, None) or await open_when_there_is_room(self._host, name)
        if stream is not None:
            self._streams[name] = stream
            if len(self._streams) > STREAMS_MAX:
                await self._streams.pop(next(iter(self._streams))).close()
        return stream

    async def _acknowledge_all(self) -> None:
        while True:
            stored = await self._stored.get()
            for stream, last_id in stored.last_ids.items():
                await stream.complete(last_id)
            if stored.tokens:
                await self._acknowledge(stored.tokens)


def bounded(metadata: Mapping[str, Any], more: Mapping[str, Any], host: Host) -> Mapping[str, Any]:
    """The metadata, with more of it unless that is too long."""
    if not more:
        return metadata
    if len(repr(more)) > METADATA_BYTES_MAX:
        host.count("metadata_left_out")
        return metadata
    return {**metadata, **more}
