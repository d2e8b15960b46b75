"""The port `out` of `redis`: each Redis stream is a stream, read with XREAD after the last stored event.

Consumer groups are not used for reading: their pending lists would be a second truth beside the worker's store. The
position of a group can follow that of the store, for other tools to see.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.redis.client import connect
from penstock.connectors.redis.options import RedisOptions
from penstock.connectors.streams import DRAINED, CompletedIds, first_of
from penstock.core.errors import NoRoom

log = logging.getLogger(__name__)

SEQUENCE_BITS = 20
"""Entries of one millisecond: 2^20. With 43 bits of milliseconds, until the year 2248, an id has 63 bits."""

BLOCK_MS = 200
"""How long a read waits for entries: a stream that may send again is read after this time at the latest."""

COMMIT_SECONDS = 1.0
"""How often groups are moved and streams are trimmed."""

NOTHING = b"0-0"


class BadId(ValueError):
    """An entry's id that does not fit into an event's."""


def event_id(entry_id: bytes) -> int:
    """Raises BadId."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    if int(sequence) >> SEQUENCE_BITS or int(milliseconds) >> (63 - SEQUENCE_BITS):
        raise BadId(f"the id {entry_id.decode()} is too large: the sequence number must be less than 2^{SEQUENCE_BITS}")
    return int(milliseconds) << SEQUENCE_BITS | int(sequence)


def entry_id(event: int) -> bytes:
    return b"%d-%d" % (event >> SEQUENCE_BITS, event & ((1 << SEQUENCE_BITS) - 1))


# Entries as events.

Entry = tuple[bytes, Mapping[bytes, bytes] | None]
"""As the library returns it. A deleted entry has no fields."""


class Good(NamedTuple):
    id: int
    value: bytes
    metadata: Mapping[str, Any]


class Bad(NamedTuple):
    entry: bytes
    reason: str
    id: int | None
    """None if it has no valid one."""


def converted(entry: Entry, field: bytes | None) -> Good | Bad:
    raw, fields = entry
    fields = fields or {}
    try:
        number = event_id(raw)
    except BadId as error:
        return Bad(_as_json(raw, fields), str(error), None)
    if field is None:
        return Good(number, json.dumps(_texts(fields), ensure_ascii=False).encode(), {})
    value = fields.get(field)
    if value is None:
        return Bad(_as_json(raw, fields), f"entry {raw.decode()} has no field {field.decode()!r}", number)
    others = {name: text for name, text in fields.items() if name != field}
    return Good(number, value, {"fields": _texts(others)} if others else {})


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _as_json(raw: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    return json.dumps({"id": raw.decode(), "fields": _texts(fields)}, ensure_ascii=False).encode()


class OpenStream:
    """A Redis stream that is being read."""

    def __init__(self, key: str, stream: Stream, at: bytes) -> None:
        self.key = key
        self.stream = stream
        self.at = at
        """The id of the last entry that was read."""
        self.completed = CompletedIds(stream)

    async def take(self, entries: Sequence[Entry], options: RedisOptions) -> None:
        """Store the entries in order: what cannot become an event is a dead letter between the others."""
        field = None if options.field is None else options.field.encode()
        good: list[Good] = []
        for entry in entries:
            found = converted(entry, field)
            if isinstance(found, Good):
                good.append(found)
                continue
            await self._put(good, options)
            good = []
            await self.stream.dead_letter(found.entry, found.reason, event_id=found.id)
        await self._put(good, options)
        self.at = entries[-1][0]
        self.completed.stored()

    async def _put(self, good: Sequence[Good], options: RedisOptions) -> None:
        if good:
            ids = [one.id for one in good]
            times = [1000 * (number >> SEQUENCE_BITS) for number in ids] if options.timestamps else None
            metadata = [one.metadata for one in good] if any(one.metadata for one in good) else None
            await self.stream.put([one.value for one in good], ids=ids, event_times_us=times, metadata=metadata)


class RedisSource:
    """For one `run` of the connector."""

    def __init__(self, options: RedisOptions, host: Host) -> None:
        self._options = options
        self._host = host
        self._client = connect(options)
        self._streams: dict[str, OpenStream] = {}

    async def run(self) -> None:
        try:
            with self._lost():
                await self._open_all()
                self._host.connected()
                await first_of(self._read(), self._commit_always())
                for one in self._streams.values():
                    await one.stream.cut_off(DRAINED)
                await self._commit_always()  # until it is cancelled: pipelines still complete what was read
        finally:
            for one in self._streams.values():
                one.completed.stop()
            await self._client.aclose()

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            raise Lost(f"Redis at {self._options.place}: {error}") from error
        except NoRoom as error:
            raise Lost(str(error), error.hint) from error

    async def _open_all(self) -> None:
        await self._client.ping()
        for key in self._options.streams:
            stream = await self._host.open_stream(key, resume=True, metadata={"stream": key})
            at = entry_id(stream.last_id) if stream.last_id else await self._start(key)
            self._streams[key] = OpenStream(key, stream, at)
            if stream.last_id:
                await self._warn_if_trimmed(key, at)

    async def _info(self, key: str) -> Mapping[str, Any]:
        """Empty if there is no such stream."""
        try:
            found: Mapping[str, Any] = await self._client.xinfo_stream(key)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {}
        return found

    async def _start(self, key: str) -> bytes:
        if self._options.start == "earliest":
            return NOTHING
        at: bytes = (await self._info(key)).get("last-generated-id", NOTHING)
        if self._options.group and at != NOTHING:
            return await self._first_start(key, at)
        return at

    async def _first_start(self, key: str, at: bytes) -> bytes:
        """The group remembers where it was, for a restart before the first event."""
        for group in await self._client.xinfo_groups(key):
            if group["name"] == self._options.group.encode():
                known: bytes = group["last-delivered-id"]
                return known
        await self._client.xgroup_create(key, self._options.group, at.decode())
        return at

    async def _warn_if_trimmed(self, key: str, at: bytes) -> None:
        info = await self._info(key)
        first = info.get("first-entry")
        removed = int(info.get("entries-added", 0)) - int(info.get("length", 0))
        if removed and first is not None and _order(first[0]) > _order(at):
            self._host.count("trimmed")
            log.warning(
                "%s: Redis has deleted all entries up to %s, the last one that was read, and perhaps later ones",
                key,
                at.decode(),
            )

    async def _read(self) -> None:
        while not self._host.is_draining:
            ready = {one.key: one.at for one in self._streams.values() if one.stream.may_send}
            if not ready:
                waiting = (one.stream.ready() for one in self._streams.values())
                await first_of(*waiting, self._host.draining())
                continue
            found: Any = await self._client.xread(ready, count=self._options.batch_max, block=BLOCK_MS)  # type: ignore[arg-type]
            for key, entries in found:
                one = self._streams[key.decode()]
                if one.stream.may_send:  # else it is read again: nothing may wait for one stream
                    await one.take(entries, self._options)

    # What is complete.

    async def _commit_always(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            for one in self._streams.values():
                if (event := one.completed.take()) is not None:
                    await self._commit(one.key, event)

    async def _commit(self, key: str, event: int) -> None:
        if self._options.group:
            await self._move_group(key, entry_id(event).decode())
        if self._options.trim:
            await self._client.xtrim(key, minid=entry_id(event + 1).decode(), approximate=False)

    async def _move_group(self, key: str, at: str) -> None:
        group = self._options.group
        try:
            await self._client.xgroup_setid(key, group, at)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._client.xgroup_create(key, group, at)


def _order(raw: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = raw.partition(b"-")
    return int(milliseconds), int(sequence)
