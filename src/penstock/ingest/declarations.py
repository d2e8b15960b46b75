"""Declarations about a source, apart from its messages: watermarks of its streams, and its end."""

import asyncio

from penstock.core.errors import RequestError, Unavailable
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.known_streams import Standing
from penstock.ingest.owners import StreamKey
from penstock.ingest.source_log import SourceLog
from penstock.protocol.connector import NOTHING_YET, stream_id_of
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME
from penstock.protocol.stored.names import partition_of

AFTER_SECONDS_MAX = 10.0
"""How long a declaration waits for the message that it refers to: it may be in transit, or was never sent."""

STREAMS_PER_TURN = 2000
"""Streams to mark before yielding to the loop: a few milliseconds."""

_LOOK_SECONDS = 0.005
_ID_DIGITS_MAX = 20
"""The largest u64."""


class Declarations:
    """In the worker's loop. A declaration is durable when its call returns."""

    def __init__(self, sources: SourceCatalog) -> None:
        self._sources = sources

    async def watermark(
        self, source: str, time_us: int, stream: int | str | None = None, after: int | None = None
    ) -> int:
        """Declare that no more events before this time follow on the stream (an id or a name), after its message
        `after`; without a stream, on any stream that is open now. Returns the number of streams.

        Raises RequestError for a stream that does not exist or has ended; Unavailable if `after` does not arrive.
        """
        if not NO_TIME < time_us <= END_OF_TIME:
            raise RequestError(
                f"{time_us} is not a valid event time", f"Use microseconds since 1970, up to {END_OF_TIME}."
            )
        log = self._sources.existing(source)
        ids = _counting(log) if stream is None else [_found(log, stream)]
        if after is not None:
            await self._stored(log, ids, after)
        for first in range(0, len(ids), STREAMS_PER_TURN):
            self._declare(log, time_us, ids[first : first + STREAMS_PER_TURN])
            await asyncio.sleep(0)
        await self._durable()
        return len(ids)

    async def end(self, source: str) -> None:
        """Declare that the source has ended for good. Raises RequestError if it does not exist. A partition that has no
        stream yet is created: readers wait for the end of all of them.
        """
        is_here = self._sources.join_as.get(partition_of(source).source) == source
        (self._sources.configured(source) if is_here else self._sources.existing(source)).finish()
        await self._durable()

    def _declare(self, log: SourceLog, time_us: int, ids: list[int]) -> None:
        counting = [i for i in ids if log.streams[i].standing is not Standing.ENDED]
        log.declare(time_us, counting)
        for stream_id in counting:
            owner = self._sources.registry.owner(StreamKey(log.name, stream_id))
            if owner is not None:
                owner.touch(stream_id)
            else:
                log.streams.detached(stream_id)

    async def _stored(self, log: SourceLog, ids: list[int], after: int) -> None:
        try:
            async with asyncio.timeout(AFTER_SECONDS_MAX):
                while not all(self._has(log, stream_id, after) for stream_id in ids):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"message {after} did not arrive at source {log.name!r} within {AFTER_SECONDS_MAX:g} s",
                "Send it first, or leave `after` out.",
            ) from None

    def _has(self, log: SourceLog, stream_id: int, message_id: int) -> bool:
        owner = self._sources.registry.owner(StreamKey(log.name, stream_id))
        last = log.streams[stream_id].last_id if owner is None else owner.stored_id(stream_id)
        return last != NOTHING_YET and last >= message_id

    async def _durable(self) -> None:
        await self._sources.durability.caught_up()
        self._sources.store.journal.check()


def _counting(log: SourceLog) -> list[int]:
    """The streams that have started and not ended."""
    found = [i for i, stream in log.streams.items() if stream.standing is not Standing.ENDED]
    if not found:
        raise RequestError(
            f"no stream of source {log.name!r} is open",
            "There is nothing to declare: only open streams block the watermark.",
        )
    return found


def _found(log: SourceLog, stream: int | str) -> int:
    """The id of a stream that has not ended. Raises RequestError."""
    stream_id = _named(log, stream) if isinstance(stream, str) else stream
    known = log.streams.get(stream_id)
    if known is None:
        raise RequestError(f"stream {stream!r} of source {log.name!r} not found", "Use its id or its name.")
    if known.standing is Standing.ENDED:
        raise RequestError(f"stream {stream!r} of source {log.name!r} has ended", "It no longer blocks the watermark.")
    return stream_id


def _named(log: SourceLog, name: str) -> int:
    """Most streams have the id that is derived from their name. Digits are an id if no stream has that name."""
    usual = stream_id_of(name)
    known = log.streams.get(usual)
    if known is not None and known.name == name:
        return usual
    otherwise = int(name) if name.isascii() and name.isdecimal() and len(name) <= _ID_DIGITS_MAX else usual
    return next((i for i, stream in log.streams.items() if stream.name == name), otherwise)
