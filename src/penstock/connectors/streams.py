"""Operations on streams that many types of sources share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.connectors.api import Host, Stream
from penstock.core.errors import NoRoom

# Waiting for the first of several.


async def first_of(*awaited: Awaitable[Any]) -> int:
    """The index of the first that is done; the others are cancelled, and have ended when this returns. Raises what the
    first one raises.
    """
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    place = next(place for place, task in enumerate(tasks) if task in done)
    tasks[place].result()
    return place


async def readable(descriptor: int) -> None:
    """Returns when something can be read from it, or it has ended."""
    loop = asyncio.get_running_loop()
    await _until(descriptor, loop.add_reader, loop.remove_reader)


async def readable_or_done(descriptor: int, other: asyncio.Future[Any]) -> None:
    """Returns when something can be read from it, or the other is done. Costs a fifth of `first_of`."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    wake = partial(_settle, ready)
    loop.add_reader(descriptor, wake)
    other.add_done_callback(wake)
    try:
        await ready
    finally:
        other.remove_done_callback(wake)
        loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None], _: object = None) -> None:
    if not ready.done():
        ready.set_result(None)


async def writable(descriptor: int) -> None:
    """Returns when something can be written to it, or nothing reads it any more."""
    loop = asyncio.get_running_loop()
    await _until(descriptor, loop.add_writer, loop.remove_writer)


async def _until(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


_ROOM_SECONDS = (0.05, 2.0)
"""Between two attempts to open a stream when there is no room: the first pause and the longest."""

DRAINED = "nothing more is read: the connector is drained"
"""Why a stream was cut off before its peer had sent everything."""


async def open_when_there_is_room(host: Host, name: str, metadata: Mapping[str, Any] | None = None) -> Stream | None:
    """A new stream; None if the connector was drained before there was room for it."""
    pause, longest = _ROOM_SECONDS
    while not host.is_draining:
        try:
            return await host.open_stream(name, metadata=metadata)
        except NoRoom:
            await until_draining(host, pause)
            pause = min(2 * pause, longest)
    return None


async def until_draining(host: Host, seconds: float) -> bool:
    """Wait for this long; True immediately when nothing more should be read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await host.draining()
    return host.is_draining


async def ready_or_draining(stream: Stream, host: Host) -> bool:
    """Wait until the stream may send; False: nothing more should be read."""
    if host.is_draining:
        return False
    if not stream.may_send:
        await first_of(stream.ready(), host.draining())
    return not host.is_draining


async def put_messages(
    stream: Stream, host: Host, messages: Sequence[bytes], metadata: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Whole messages: each passes the interceptors alone; without interceptors they are stored in one step."""
    if not host.has_interceptors:
        await stream.put(messages, metadata=metadata)
        return
    for place, message in enumerate(messages):
        await stream.send(message, metadata=None if metadata is None else metadata[place])


async def read_into(stream: Stream, read: Callable[[], Awaitable[bytes | Sequence[bytes] | None]], host: Host) -> None:
    """Reads until `read` returns None: the peer has sent everything; or nothing more should be read, and what was
    already received from the peer is in the stream. What it returns is any part of a stream of bytes, or several whole
    messages. The peer is read only when the stream may send: what does not fit
    stays with the peer. If nothing is linked to `out`, its data is dropped and counted: if stored, it would never be
    removed.
    """
    while True:
        await ready_or_draining(stream, host)
        data = await read()
        if data is None:
            return
        if not host.has_out:
            host.count("discarded_bytes", size_of(data))
        elif isinstance(data, bytes):
            await stream.send(data)
        else:
            await stream.send_all(data)


def size_of(data: bytes | Sequence[bytes]) -> int:
    return len(data) if isinstance(data, bytes) else sum(map(len, data))


class CompletedIds:
    """How far a stream is complete, for peers that want to know: followed in a task of its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._completed = self._taken = 0
        self._stored = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    def stored(self) -> None:
        """Something was sent."""
        self._stored.set()

    def take(self) -> int | None:
        """The last id up to which everything is complete; None if that is the same as the last time."""
        if self._completed == self._taken:
            return None
        self._taken = self._completed
        return self._taken

    def stop(self) -> None:
        self._following.cancel()

    async def _follow(self) -> None:
        while True:
            await self._stored.wait()
            self._stored.clear()
            last = self._stream.last_id
            await self._stream.complete(last)
            self._completed = last
