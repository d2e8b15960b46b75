"""The settings of sources that an application declares, and that are in other shards, as a whole or with some of their
partitions: `cluster/sources/NAME` in the bucket.

The application is in one shard. That shard writes the settings before the source gets its place, so that no partition
stores an event without them, and again when they have changed. A record names the term of its writer: a process that
was replaced as the owner of that shard, and does not know it yet, changes nothing that its successor has written. Other
shards read them before the first program joins, and then every LOOK_SECONDS; the one that has partition 0, or the whole
source, is notified. The connector of a source that every worker listens for (`listen: every-worker`) is in them as a
whole: other shards run it as well, and are notified when it changes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, StoredObject, VersionChanged
from penstock.coordinator.shards import ShardWire
from penstock.core.errors import Damaged, PenstockError, TakenOver, Unavailable, UnreadableFormat
from penstock.core.retry import Pauses, RetryPolicy
from penstock.ingest.settings import DeclaredSource, Listener, settings_of
from penstock.protocol.api.codec import Done
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.api.shards import Declared

log = logging.getLogger(__name__)

FORMAT = 1
SOURCES = "cluster/sources/"

NOTIFY_SECONDS_MAX = 30.0
"""For another shard to run a connector, or to stop it and store what it has read."""

RETRIES = RetryPolicy(first_seconds=0.1, max_seconds=2.0)


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """One source of an application."""

    spec: ConnectorSpec
    own_event_times: bool | None
    has_out: bool = True
    """Whether something reads its events."""
    is_running: bool = True
    """Whether its connector runs: not while the application is drained."""

    @property
    def listens(self) -> bool:
        return self.spec.listen == "every-worker"


class Version(NamedTuple):
    """Of what is declared. A later one replaces an earlier one."""

    term: int
    """Of the owner of the application's shard."""
    revision: int
    """Of the application."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    term: int = 0
    """With the revision: see Version. 0 in records of earlier releases, which every owner replaces."""
    revision: int = 0
    own_event_times: bool | None = None
    spec: dict[str, Any] | None
    """None: no application declares it any more."""
    listener: Listener | None = None

    @property
    def version(self) -> Version:
        return Version(self.term, self.revision)


def _key(source: str) -> str:
    return f"{SOURCES}{quote(source, safe='')}"


def publish(bucket: Bucket, declaration: Declaration, version: Version) -> None:
    """Raises what the store raises, Unavailable if the record has changed meanwhile, and TakenOver if it has a later
    version.
    """
    spec = declaration.spec
    plain = ConnectorSpec(**{name: getattr(spec, name) for name in _KEPT})
    is_listening = declaration.listens and declaration.is_running
    record = _Record(
        term=version.term,
        revision=version.revision,
        own_event_times=declaration.own_event_times,
        spec=msgspec.to_builtins(plain),
        listener=Listener(spec, declaration.has_out) if is_listening else None,
    )
    _write(bucket, spec.name, record)


def withdraw(bucket: Bucket, source: str, version: Version) -> None:
    """No application declares the source any more. Raises like `publish`."""
    _write(bucket, source, _Record(term=version.term, revision=version.revision, spec=None))


def _write(bucket: Bucket, source: str, record: _Record) -> None:
    key = _key(source)
    try:
        found = bucket.get(key)
    except NoSuchObject:
        try:
            bucket.create(key, [msgspec.json.encode(record)])
        except ObjectExists:
            _write(bucket, source, record)
    else:
        _replace(bucket, key, found, record)


def _replace(bucket: Bucket, key: str, found: StoredObject, record: _Record) -> None:
    """A new owner writes its term even if nothing else is new: stores compare contents, and a write that its
    predecessor has begun must not find the content that it has read.
    """
    known = _readable(found.data)
    if known is not None:
        if known.version > record.version:
            raise TakenOver(f"{bucket.url}/{key} was written for {known.version}, after {record.version}")
        if found.data == msgspec.json.encode(msgspec.structs.replace(record, revision=known.revision)):
            return
    try:
        bucket.replace(key, msgspec.json.encode(record), found.version)
    except VersionChanged:
        raise Unavailable(f"{bucket.url}/{key} is being changed by another process") from None


def _readable(data: bytes) -> _Record | None:
    """None for what applying the application again is to replace."""
    try:
        record = msgspec.json.decode(data, type=_Record)
    except msgspec.MsgspecError:
        return None
    return record if record.format == FORMAT else None


def published(bucket: Bucket) -> list[str]:
    """The sources that have settings, or had some. Raises what the store raises."""
    return [unquote(one.key.removeprefix(SOURCES)) for one in bucket.list(SOURCES)]


def read(bucket: Bucket, source: str, quota_bytes: int | None) -> DeclaredSource | None:
    """None if no application declares it. `quota_bytes`: if the application sets none. Raises what the store raises,
    UnreadableFormat and Damaged.
    """
    try:
        data = bucket.get(_key(source)).data
    except NoSuchObject:
        return None
    try:
        record = msgspec.json.decode(data, type=_Record)
        if record.format != FORMAT:
            where = f"{bucket.url}/{_key(source)}"
            raise UnreadableFormat(where, record.format, FORMAT, "Apply the application again.")
        spec = None if record.spec is None else msgspec.convert(record.spec, ConnectorSpec)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{bucket.url}/{_key(source)} is not valid: {error}", "Apply the application again.") from None
    if spec is None:
        return None
    settings = settings_of(spec, own_event_times=record.own_event_times, quota_bytes=quota_bytes)
    return DeclaredSource(settings, record.listener)


_KEPT = (
    *("name", "id", "instance", "type", "segments", "partitions", "listen", "quota_bytes", "window_bytes", "ack"),
    *("max_disorder_us", "idle_timeout_seconds", "when_all_idle"),
    *("event_time_unit", "event_time_ingest", "event_time"),
)
"""What a source log needs. Options of a connector may contain secrets: they are published only if other shards run the
connector.
"""


class PublishedSources(Protocol):
    """Where settings are, and the partitions that need them."""

    @property
    def shard(self) -> int: ...

    async def published_sources(self) -> list[str]: ...

    async def publish_source(self, declaration: Declaration, version: Version) -> None: ...

    async def withdraw_source(self, source: str, version: Version) -> None: ...

    async def placed_partitions(self, source: str) -> tuple[int, ...]: ...


class SourcePublisher:
    """Of the application's shard: publishes what is declared, until everybody who needs it has it."""

    def __init__(
        self,
        directory: PublishedSources,
        wire: ShardWire,
        declared: Callable[[], Mapping[str, Declaration]],
        version: Callable[[], Version],
    ) -> None:
        """`version`: of what is declared at that moment."""
        self._directory = directory
        self._wire = wire
        self._declared = declared
        self._version = version
        self._announced: set[str] = set()
        self._wanted = asyncio.Event()
        self.is_current = False
        """Whether everybody knows what is declared now."""
        self._waits_for: dict[tuple[str, int], str] = {}
        self._notified: dict[tuple[str, int], Declaration | None] = {}
        """By source and shard: what it has answered."""

    async def announce(self, declaration: Declaration) -> None:
        """Before the source gets its place. `settle` follows, whether the application is applied or refused. Raises
        Unavailable and TakenOver.
        """
        self._announced.add(declaration.spec.name)
        await self._directory.publish_source(declaration, self._version())

    async def wanted(self) -> None:
        """Returns when something may be declared."""
        await self._wanted.wait()
        self._wanted.clear()

    def settle(self) -> None:
        """What is declared may have changed."""
        self._announced.clear()
        self.is_current = False
        self._wanted.set()

    def forget_answers(self) -> None:
        """Ask other shards again, although nothing may have changed."""
        self._notified = dict.fromkeys(self._notified)

    @property
    def waits_for(self) -> list[str]:
        """Shards that have not answered, and why."""
        return [*self._waits_for.values()]

    async def run(self) -> None:
        pauses = Pauses(RETRIES)
        while True:
            self._wanted.clear()
            try:
                await self._publish()
            except PenstockError as error:
                log.debug("settings of sources wait: %s", error)
                await asyncio.sleep(pauses.next())
            else:
                pauses.reset()
                self.is_current = not self._wanted.is_set()
                await self._wanted.wait()

    async def _publish(self) -> None:
        declared, version = dict(self._declared()), self._version()
        for source in await self._directory.published_sources():
            is_gone = source not in declared and source not in self._announced
            if is_gone and not self._wanted.is_set():  # otherwise it may have been declared meanwhile
                await self._directory.withdraw_source(source, version)
        for one in declared.values():
            await self._directory.publish_source(one, version)
        former = {source for source, _ in self._notified} - declared.keys()
        await self._notify({**dict.fromkeys(former), **declared})

    async def _notify(self, declared: Mapping[str, Declaration | None]) -> None:
        """Raises Unavailable if a shard has not answered; the others have."""
        due = list[tuple[str, int]]()
        for source, one in declared.items():
            for number, shard in enumerate(await self._directory.placed_partitions(source)):
                is_told = shard != self._directory.shard and (not number or one is None or one.listens)
                if is_told and self._notified.get((source, shard), ...) != one:
                    due.append((source, shard))
        found = await asyncio.gather(*(self._ask(source, shard, declared[source]) for source, shard in due))
        if missing := [error for error in found if error is not None]:
            raise missing[0]

    async def _ask(self, source: str, shard: int, declaration: Declaration | None) -> Unavailable | None:
        try:
            await self._wire.ask(shard, "/shard/declared", Declared(source=source), Done, NOTIFY_SECONDS_MAX)
        except PenstockError as error:
            self._waits_for[source, shard] = f"connector {source} in shard {shard}: {error}"
            return Unavailable(str(error))
        self._notified[source, shard] = declaration
        self._waits_for.pop((source, shard), None)
        return None
