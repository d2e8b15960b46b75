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

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.redis.client import connect
from penstock.connectors.redis.options import RedisOptions
from penstock.connectors.streams import DRAINED, CompletedIds, first_of
from penstock.core.counts import show_count
from penstock.core.errors import NoRoom, PenstockError

log = logging.getLogger(__name__)

SEQUENCE_BITS = 20
"""Entries of one millisecond: 2^20. With 43 bits of milliseconds, until the year 2248, an id has 63 bits."""

BLOCK_MS = 200
"""How long a read waits for entries: a stream that may send again is read after this time at the latest."""

COMMIT_SECONDS = 1.0
"""How often groups are moved and streams are trimmed, and how often a stream without new entries is looked at."""

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


def _event_up_to(entry: bytes) -> int:
    """The highest event id that is not after the entry's."""
    milliseconds, sequence = order(entry)
    highest = (1 << SEQUENCE_BITS) - 1
    return min(milliseconds, (1 << 63 - SEQUENCE_BITS) - 1) << SEQUENCE_BITS | min(sequence, highest)


def order(raw: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = raw.partition(b"-")
    return int(milliseconds), int(sequence)


# What Redis has deleted before it was read. Pure.


class Contents(NamedTuple):
    """What XINFO STREAM reports."""

    added: int | None
    """All that were ever added; None before Redis 7."""
    length: int
    last: bytes
    """The id that was added last."""
    first: bytes | None
    """Of those that are there."""
    deleted: bytes
    """The highest id that XDEL has deleted. XTRIM does not count."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Contents":
        first, deleted = info.get("first-entry"), info.get("max-deleted-entry-id")
        return cls(
            info.get("entries-added"),
            int(info.get("length", 0)),
            info.get("last-generated-id", NOTHING),
            first[0] if first else None,
            deleted or NOTHING,
        )

    def after(self, at: bytes) -> int | None:
        """How many entries there are after this one; None: not known, because earlier ones are there, too."""
        if order(self.last) <= order(at):
            return 0
        return self.length if self.first is None or order(self.first) > order(at) else None


INFO = """
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for place = 2, #info, 2 do
    if type(info[place]) == 'table' then
        info[place] = {info[place][1]}
    end
end
return info
"""
"""XINFO STREAM, with no more than the ids of the first and the last entry: it is asked after each read, and entries can
be large.
"""


def _by_name(answer: Sequence[Any]) -> Mapping[str, Any]:
    """The script's answer as the library returns that of XINFO STREAM."""
    return {name.decode(): value for name, value in zip(answer[::2], answer[1::2], strict=True)}


def _is_no_script(answer: object) -> bool:
    """Whether the server, or what it permits this user, has no scripts."""
    return isinstance(answer, NoPermissionError) or (
        isinstance(answer, ResponseError) and "unknown command" in str(answer)
    )


class Gap(NamedTuple):
    """Entries that were deleted before they were read."""

    reason: str
    is_certain: bool = True
    up_to: int | None = None
    """All up to this event id are gone; None: it is not known which ones."""
    entries: int = 1
    """At least as many."""


def gap_at_start(contents: Contents, at: bytes) -> Gap | None:
    """After the entry that was read last, perhaps long ago: how many were added since then is not known."""
    if order(contents.last) <= order(at):
        return None
    since = f"after {at.decode()}, the last one that was read"
    if contents.first is None:
        return Gap(f"Redis has deleted all entries {since}", up_to=_event_up_to(contents.last))
    if order(contents.deleted) > order(at):
        return Gap(f"an entry {since}, was deleted (XDEL), perhaps several")
    before = _event_up_to(contents.first) - 1
    if before <= event_id(at):
        return None
    return Gap(
        f"Redis has deleted all entries up to {at.decode()}, the last one that was read, and perhaps later ones",
        is_certain=False,
        up_to=before,
    )


def gap_while_reading(contents: Contents, at: bytes, read: int | None) -> Gap | None:
    """`read`: of those that were ever added, how many come up to `at`; None: it is not known."""
    after = contents.after(at)
    known = None if read is None or contents.added is None or after is None else contents.added - read - after
    if order(contents.last) > order(at) and not contents.length:
        return Gap(_deleted(known, at), up_to=_event_up_to(contents.last), entries=max(1, known or 1))
    return Gap(_deleted(known, at), entries=known) if known is not None and known > 0 else None


def _deleted(count: int | None, at: bytes) -> str:
    entries = "all entries" if count is None else show_count(count, "entry", "entries")
    return f"Redis has deleted {entries} near {at.decode()} before {'it was' if count == 1 else 'they were'} read"


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


class Known(NamedTuple):
    """How far a stream was read."""

    at: bytes
    read: int | None


class OpenStream:
    """A Redis stream that is being read."""

    def __init__(self, key: str, stream: Stream, at: bytes) -> None:
        self.key = key
        self.stream = stream
        self.at = at
        """The id of the last entry that was read."""
        self.read: int | None = None
        """Of the entries that were ever added, how many come up to `at`; None: it is not known."""
        self.completed = CompletedIds(stream)

    def note(self, contents: Contents, at: bytes, count: int) -> None:
        """What Redis has when `count` entries up to `at` are about to be stored."""
        after = contents.after(at)
        if contents.added is None:
            self.read = None
        elif after is not None:
            self.read = contents.added - after - count

    def after(self, entries: Sequence[Entry]) -> Known:
        """Once these are stored, too."""
        at = entries[-1][0] if entries else self.at
        return Known(at, None if self.read is None else self.read + len(entries))

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
        self.at, self.read = self.after(entries)
        self.completed.stored()

    async def _put(self, good: Sequence[Good], options: RedisOptions) -> None:
        if good:
            ids = [one.id for one in good]
            times = [1000 * (number >> SEQUENCE_BITS) for number in ids] if options.timestamps else None
            metadata = [one.metadata for one in good] if any(one.metadata for one in good) else None
            await self.stream.put([one.value for one in good], ids=ids, event_times_us=times, metadata=metadata)


class RedisSource:
    """For one `run` of the connector."""

    def __init__(self, options: RedisOptions, host: Host, known: dict[str, Known]) -> None:
        """`known`: of streams that an earlier run has read; it is kept up to date."""
        self._options = options
        self._known = known
        self._host = host
        self._client = connect(options)
        self._streams: dict[str, OpenStream] = {}
        self._runs_scripts = True
        """Whether the user may run them, as far as is known."""

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
            one = self._streams[key] = OpenStream(key, stream, at)
            await self._begin(one)

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

    async def _begin(self, one: OpenStream) -> None:
        """Compare with what was read before, perhaps long ago."""
        (contents,) = await self._contents([one.key])
        if contents is None:
            return
        known = self._known.get(one.key)
        if known is not None and not one.stream.last_id:
            one.at = known.at
        if known is not None and known.at == one.at:
            gap = gap_while_reading(contents, one.at, known.read)
        else:
            gap = gap_at_start(contents, one.at) if one.stream.last_id else None
        if gap is not None:
            await self._report(one, gap)
        if not contents.length:
            one.at = max(one.at, contents.last, key=order)
        one.note(contents, one.at, 0)
        self._known[one.key] = Known(one.at, one.read)

    async def _look(self, found: Mapping[str, Sequence[Entry]]) -> None:
        """Notice what was deleted, before these entries are stored. Raises PenstockError if that is to fail."""
        for key, contents in zip(found, await self._contents([*found]), strict=True):
            one, entries = self._streams[key], found[key]
            if contents is None:
                one.read = None
                continue
            at, read = one.after(entries)
            if (gap := gap_while_reading(contents, at, read)) is not None:
                await self._report(one, gap._replace(up_to=_event_up_to(entries[0][0]) - 1) if entries else gap)
            one.note(contents, one.at if not entries else at, len(entries))

    async def _contents(self, keys: Sequence[str]) -> list[Contents | None]:
        """None for a stream that does not exist."""
        found = await self._info_of_all(keys)
        if self._runs_scripts and any(map(_is_no_script, found)):
            self._runs_scripts = False
            found = await self._info_of_all(keys)
        for one in found:
            if isinstance(one, Exception) and "no such key" not in str(one):
                raise one
        return [None if isinstance(one, Exception) else Contents.of(one) for one in found]

    async def _info_of_all(self, keys: Sequence[str]) -> list[Mapping[str, Any] | Exception]:
        async with self._client.pipeline(transaction=False) as asking:
            for key in keys:
                if self._runs_scripts:
                    asking.eval(INFO, 1, key)
                else:
                    asking.xinfo_stream(key)
            found: list[Any] = await asking.execute(raise_on_error=False)
        return [_by_name(one) if isinstance(one, list) else one for one in found]

    async def _report(self, one: OpenStream, gap: Gap) -> None:
        if gap.is_certain and self._options.when_deleted == "fail":
            raise PenstockError(f"{one.key}: {gap.reason}", _HINT)
        self._host.count("deleted_before_read", gap.entries)
        log.warning("%s: %s", one.key, gap.reason)
        up_to = gap.up_to if gap.up_to is not None and gap.up_to > one.stream.last_id else None
        document = json.dumps({"stream": one.key, "after": one.at.decode()}, ensure_ascii=False)
        await one.stream.dead_letter(document.encode(), gap.reason, event_id=up_to)
        if up_to is not None:
            one.at = entry_id(up_to)

    async def _read(self) -> None:
        looked = 0.0
        while not self._host.is_draining:
            ready = {one.key: one.at for one in self._streams.values() if one.stream.may_send}
            if not ready:
                waiting = (one.stream.ready() for one in self._streams.values())
                await first_of(*waiting, self._host.draining())
                continue
            answer: Any = await self._client.xread(ready, count=self._options.batch_max, block=BLOCK_MS)  # type: ignore[arg-type]
            found: dict[str, Sequence[Entry]] = {key.decode(): entries for key, entries in answer}
            # The others are read again: nothing may wait for one stream.
            found = {key: entries for key, entries in found.items() if self._streams[key].stream.may_send}
            now = asyncio.get_running_loop().time()
            if is_due := now - looked >= COMMIT_SECONDS:
                looked = now
            await self._look({key: found.get(key, ()) for key in (ready if is_due else found)})
            for key, entries in found.items():
                await self._streams[key].take(entries, self._options)
                self._known[key] = Known(self._streams[key].at, self._streams[key].read)

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
            # One stays: if it is gone after a restart, others have deleted entries.
            await self._client.xtrim(key, minid=entry_id(event).decode(), approximate=False)

    async def _move_group(self, key: str, at: str) -> None:
        group = self._options.group
        try:
            await self._client.xgroup_setid(key, group, at)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._client.xgroup_create(key, group, at)


_HINT = "Set `when_deleted: skip` to continue with what is there, and trim the stream less, or later."
