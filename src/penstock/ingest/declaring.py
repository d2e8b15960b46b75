"""What somebody says of a source's streams besides its messages: how far they are, and that there will be no more."""

import asyncio
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError, Unavailable
from penstock.ingest.connector import Connector
from penstock.ingest.registry import StreamKey
from penstock.ingest.stream_log import Standing
from penstock.protocol.connector import NOTHING_YET, stream_id_of
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway

AFTER_SECONDS_MAX = 10.0
"""How long a declaration waits for the message that it speaks of: it is on its way to the worker, or was never sent."""

STREAMS_PER_TURN = 2000
"""That something is declared of before the loop gets its turn: some milliseconds."""

_LOOK_SECONDS = 0.005
_ID_DIGITS_MAX = 20
"""Of an u64."""


class Declaring:
    """In the worker's loop. What is returned from is durable."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    async def watermark(
        self, source: str, time_us: int, stream: int | str | None = None, after: int | None = None
    ) -> int:
        """No more events before this time come on the stream, which is known by its id or its name, behind the message
        `after`; without a stream, on any that is there now. Returns how many streams that was said of.

        Raises RequestError for a stream that is not there, or has ended; Unavailable if `after` does not come.
        """
        if not NO_TIME < time_us <= END_OF_TIME:
            raise RequestError(f"{time_us} is no event time", f"Give microseconds since 1970, up to {END_OF_TIME}.")
        connector = self._gateway.known(source)
        ids = _counting(connector) if stream is None else [_found(connector, stream)]
        if after is not None:
            await self._stored(connector, ids, after)
        for first in range(0, len(ids), STREAMS_PER_TURN):
            self._declare(connector, time_us, ids[first : first + STREAMS_PER_TURN])
            await asyncio.sleep(0)
        await self._durable()
        return len(ids)

    async def end(self, source: str) -> None:
        """The source has ended for good. Raises RequestError if there is none."""
        self._gateway.known(source).finish()
        await self._durable()

    def _declare(self, connector: Connector, time_us: int, ids: list[int]) -> None:
        counting = [i for i in ids if connector.streams[i].standing is not Standing.ENDED]
        connector.declare(time_us, counting)
        for stream_id in counting:
            self._is_alive(connector, stream_id)

    def _is_alive(self, connector: Connector, stream_id: int) -> None:
        """Its silence begins anew."""
        owner = self._gateway.owner_of(StreamKey(connector.name, stream_id))
        if owner is not None:
            owner.touch(stream_id)
        else:
            connector.stays_away(stream_id)

    async def _stored(self, connector: Connector, ids: list[int], after: int) -> None:
        try:
            async with asyncio.timeout(AFTER_SECONDS_MAX):
                while not all(self._has(connector, stream_id, after) for stream_id in ids):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"message {after} has not come to source {connector.name!r} within {AFTER_SECONDS_MAX:g} s",
                "Send it first, or say nothing of it.",
            ) from None

    def _has(self, connector: Connector, stream_id: int, message_id: int) -> bool:
        owner = self._gateway.owner_of(StreamKey(connector.name, stream_id))
        last = connector.streams[stream_id].last_id if owner is None else owner.stored_id(stream_id)
        return last != NOTHING_YET and last >= message_id

    async def _durable(self) -> None:
        await self._gateway.durability.caught_up()
        self._gateway.store.journal.check()


def _counting(connector: Connector) -> list[int]:
    """The streams that have begun and not ended."""
    found = [i for i, stream in connector.streams.items() if stream.standing is not Standing.ENDED]
    if not found:
        raise RequestError(f"no stream of source {connector.name!r} is open", "Its next one holds the watermark anew.")
    return found


def _found(connector: Connector, stream: int | str) -> int:
    """The id of a stream that counts. Raises RequestError."""
    stream_id = _named(connector, stream) if isinstance(stream, str) else stream
    known = connector.streams.get(stream_id)
    if known is None:
        raise RequestError(f"source {connector.name!r} has no stream {stream!r}", "Give its id, or its name.")
    if known.standing is Standing.ENDED:
        raise RequestError(f"stream {stream!r} of source {connector.name!r} has ended", "It holds nothing back.")
    return stream_id


def _named(connector: Connector, name: str) -> int:
    """Most have the id that is made from their name. Digits are an id where no stream is named so."""
    usual = stream_id_of(name)
    known = connector.streams.get(usual)
    if known is not None and known.name == name:
        return usual
    otherwise = int(name) if name.isascii() and name.isdecimal() and len(name) <= _ID_DIGITS_MAX else usual
    return next((i for i, stream in connector.streams.items() if stream.name == name), otherwise)
