"""The partitions of sources that this process serves: who may open a stream, and where else it belongs.

A stream of a source with several partitions is opened in two steps. The registry in partition 0's shard grants a claim.
Then the stream's mark STARTED is stored in the partition's own journal, which only an owner that was not replaced
can do. NOTIFY_ACK follows. `stream_claims` decides; this sends, waits and stores.

While the registry does not answer, streams wait: each for WAIT_SECONDS_MAX, then its NOTIFY is refused, and the program
tries again. No stream is opened without the registry.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from penstock.coordinator.shards import ShardWire
from penstock.core.address import Address
from penstock.core.errors import Damaged, PenstockError, RequestError, Unavailable
from penstock.core.retry import Pauses, RetryPolicy
from penstock.core.supervisor import Supervised, Supervisor
from penstock.core.types import Offset
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.completion import Completion
from penstock.ingest.known_streams import Standing
from penstock.ingest.owners import ClaimingOwner
from penstock.ingest.settings import DeclaredSource, Listener
from penstock.ingest.source_log import SourceLog
from penstock.ingest.stored_claims import StoredClaims, claims_segment
from penstock.ingest.stream_claims import (
    Answer,
    Begin,
    ClaimId,
    ClaimStep,
    Command,
    Elsewhere,
    Full,
    Granted,
    Next,
    PartitionClaims,
    Replaced,
    decode,
    decode_answer,
    encode,
    encode_answer,
)
from penstock.protocol.api.shards import Claims, ClaimsAnswered, Declared, Held, HeldBy
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.protocol.stored.names import DEAD_LETTERS_SUFFIX, Partition, partition_of

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRIES = RetryPolicy(first_seconds=0.05, max_seconds=1.0)
"""While the registry's shard is away: it comes back within some seconds, and sources wait for it."""

WAIT_SECONDS_MAX = 30.0
"""For the registry to answer a claim, before NOTIFY is refused: a take-over takes some seconds. Programs ask again, so
this only decides how soon programs, and people, see that something is wrong.
"""

LOOK_SECONDS = 10.0
"""Between two looks whether an application has changed the settings of a partition."""

_ASKED_ABOUT_MAX = 100_000
"""Sources whose settings were asked for and are not asked for again; beyond that, all are."""

COMMANDS_MAX = 1000
"""In one request: some 50 KB, and a few milliseconds of the registry's process."""

ENDED_PER_TURN = 1000
"""Streams to give up before yielding to the loop: a few milliseconds."""


class Registry(Protocol):
    """The registry of one source, wherever it is."""

    async def apply(self, commands: Sequence[Command]) -> Sequence[Answer]:
        """Everything in the answers is durable. Raises Unavailable."""
        ...

    async def held(self, partition: int, term: int) -> dict[int, ClaimId] | Replaced: ...


class Listen(Protocol):
    """Listen for this partition, with the connector that every worker runs; None: no longer. Returns when that is done,
    and everything that was read is durable. Called with the same from time to time; `again`: by an operator.
    """

    async def __call__(self, of: Partition, listener: Listener | None, *, again: bool) -> None: ...


async def _nobody_listens(of: Partition, listener: Listener | None, *, again: bool) -> None:
    pass


Find = Callable[[int], Awaitable[Address | None]]
"""Where programs reach a partition of the source; None: no worker serves it now."""


class SourcePartition:
    """One partition of a source, under one term of its shard."""

    def __init__(
        self,
        of: Partition,
        term: int,
        log_: SourceLog,
        completion: Completion,
        durable: Callable[[Callable[[], None]], None],
        registry: Registry,
        find: Find,
    ) -> None:
        """`durable` calls a function when everything that is stored now is durable."""
        self.of = of
        self._log = log_
        self._completion = completion
        self._durable = durable
        self._registry = registry
        self._find = find
        self._claims = PartitionClaims(of.number, term)
        self._asking: dict[int, tuple[ClaimingOwner, float]] = {}
        """Streams whose claim has no answer: who wants them, and since when."""
        self._released: set[int] = set()
        """Streams that are given up as soon as what is stored of them is durable."""
        self._ended: dict[int, Offset] = {}
        """Streams that have ended here, and that some pipeline has not completed: the claim is kept until then."""
        self._waiting: defaultdict[int, list[tuple[Offset, int]]] = defaultdict(list)
        """The same, by route, in the order of their ends."""
        self._has_begun = False
        self._inherits = True
        self._wanted = asyncio.Event()
        self._is_called = False
        self._now = asyncio.get_running_loop().time
        self.problem = ""
        """Why the registry does not answer; "" if it does."""
        completion.watch(self._moved)

    # For sessions.

    def claim(self, stream_id: int, owner: ClaimingOwner) -> bool:
        """Ask for a stream that no session here has. `owner` gets the answer. False: it is about to be given up here;
        NOTIFY is refused.
        """
        if stream_id in self._released:
            return False
        if self._ended.pop(stream_id, None) is not None:  # it is opened again, where it was
            asyncio.get_running_loop().call_soon(self._granted, stream_id, owner)
            return True
        if self._claims.notify(stream_id) is None:
            return False
        self._asking[stream_id] = owner, self._now()
        self._wanted.set()
        return True

    def written(self, stream_id: int) -> bool:
        """The stream's start is durable. Returns whether NOTIFY is answered: the stream may be given up already."""
        step = self._claims.step(stream_id)
        return step is ClaimStep.ACTIVE or (
            step is ClaimStep.WRITING and self._claims.written(stream_id, self._claims.number(stream_id))
        )

    def release(self, stream_id: int) -> None:
        """Its session has gone, or does not want it any more: it stays in this partition. What the session has stored
        becomes durable first: the registry must not know of a message that a crash can still lose.
        """
        self._asking.pop(stream_id, None)
        if self._claims.step(stream_id) is not None and stream_id not in self._released:
            self._released.add(stream_id)
            self._durable(partial(self._give_up, stream_id))

    def end(self, stream_id: int, before: Offset) -> None:
        """It has ended, durably; its events end at `before` or earlier. Any partition may have it next, once every
        pipeline has completed them.
        """
        if stream_id in self._released or self._claims.step(stream_id) is not ClaimStep.ACTIVE:
            return
        route = self._log.streams[stream_id].route
        if before <= self._completion.completed(route):
            self._give_up(stream_id, is_complete=True)
        else:
            self._ended[stream_id] = before
            heappush(self._waiting[route], (before, stream_id))

    def _moved(self) -> None:
        if self._ended and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._is_called, left = False, ENDED_PER_TURN
        for route, heap in self._waiting.items():
            passed = self._completion.completed(route)
            while heap and heap[0][0] <= passed and left:
                left -= 1
                before, stream_id = heappop(heap)
                if self._ended.get(stream_id) == before:  # not opened again
                    del self._ended[stream_id]
                    self._give_up(stream_id, is_complete=True)
        if not left:
            self._moved()

    def _give_up(self, stream_id: int, *, is_complete: bool = False) -> None:
        """Everything that is stored of the stream is durable."""
        self._released.discard(stream_id)
        self._ended.pop(stream_id, None)
        if self._claims.end(stream_id, self._last_id(stream_id), is_complete=is_complete or self._is_free(stream_id)):
            self._wanted.set()

    def _last_id(self, stream_id: int) -> int:
        known = self._log.streams.get(stream_id)
        return NOTHING_YET if known is None else known.last_id

    def _is_free(self, stream_id: int) -> bool:
        """Whether no event of it is here that some pipeline has not completed: it was never here, or it has ended, and
        all of its segment is completed.
        """
        known = self._log.streams.get(stream_id)
        if known is None or known.last_id == NOTHING_YET:
            return known is None or known.standing is Standing.ENDED
        end = self._log.data_segments.length(known.route)
        return known.standing is Standing.ENDED and self._completion.completed(known.route) >= end

    # The registry.

    async def run(self) -> None:
        """Send what has no answer, again and again."""
        pauses = Pauses(RETRIES)
        while True:
            self._wanted.clear()
            try:
                is_done = await self._round()
            except PenstockError as error:
                self._lost(error)
                await asyncio.sleep(pauses.next())
                continue
            self.problem = ""
            pauses.reset()
            if is_done:
                await self._wanted.wait()

    async def _round(self) -> bool:
        """Returns whether there is nothing more to send."""
        if not self._has_begun:
            (answer,) = await self._registry.apply([self._claims.begin()])
            if isinstance(answer, Replaced):
                raise _replaced(answer)
            self._has_begun = True
        inherited = await self._inherited() if self._inherits and not self._claims.adopting else []
        commands = [*inherited, *self._claims.unanswered(COMMANDS_MAX)]
        if not commands:
            return not self._inherits
        answers = await self._registry.apply(commands)
        if len(answers) != len(commands):
            raise Unavailable("the registry has answered something else")
        passed_on = self._answered(commands, answers)
        elsewhere = {one.answer.partition for one in passed_on if isinstance(one.answer, Elsewhere)}
        found = {partition: await self._find(partition) for partition in elsewhere}
        _pass_on(passed_on, found)
        return False

    async def _inherited(self) -> list[Command]:
        """Give up what predecessors had: their sessions are gone. What has ended, and is not complete, is claimed
        instead, until it is.
        """
        found = await self._registry.held(self.of.number, self._claims.term)
        if isinstance(found, Replaced):
            raise _replaced(found)
        self._inherits = bool(found)
        given_up = (self._give_up_inherited(stream_id, claim) for stream_id, claim in found.items())
        return [command for command in given_up if command is not None]

    def _give_up_inherited(self, stream_id: int, claim: ClaimId) -> Command | None:
        known, is_complete = self._log.streams.get(stream_id), self._is_free(stream_id)
        if known is not None and known.standing is Standing.ENDED and not is_complete:
            self._claims.adopt(stream_id)
            return None
        return self._claims.inherit(stream_id, claim, self._last_id(stream_id), is_complete=is_complete)

    def _answered(self, commands: Sequence[Command], answers: Sequence[Answer]) -> list["_Answered"]:
        """What owners wait for. A stream without an owner is not wanted any more, and about to be given up."""
        replaced = next((answer for answer in answers if isinstance(answer, Replaced)), None)
        if replaced is not None:
            raise _replaced(replaced)
        found = list[_Answered]()
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(command, Begin):
                continue
            following = self._claims.answered(command, answer)
            if following is Next.ADOPTED:
                route = self._log.streams[command.stream_id].route
                self.end(command.stream_id, Offset(self._log.data_segments.length(route)))
            if following in (Next.NOTHING, Next.ASK_AGAIN, Next.ADOPTED):
                continue
            owner, _ = self._asking.pop(command.stream_id, (None, 0.0))
            if owner is not None:
                found.append(_Answered(owner, command.stream_id, answer))
        return found

    def _granted(self, stream_id: int, owner: ClaimingOwner) -> None:
        owner.claimed(stream_id, NOTHING_YET)
        owner.claims_answered()

    def _lost(self, error: PenstockError) -> None:
        if not self.problem:
            log.warning("%s does not know which streams it may open: %s", self, error)
        self.problem = f"streams of source {self.of.source!r} wait for its registry (in partition 0): {error}"
        self._refuse_late()

    def _refuse_late(self) -> None:
        until, late = self._now() - WAIT_SECONDS_MAX, list[tuple[int, ClaimingOwner]]()
        for stream_id, (owner, since) in self._asking.items():  # in the order of time
            if since > until:
                break
            late.append((stream_id, owner))
        for stream_id, owner in late:
            self.release(stream_id)
            owner.claim_refused(stream_id, None)

    def __str__(self) -> str:
        return f"partition {self.of.number} of source {self.of.source!r}"


class _Answered(NamedTuple):
    """The answer to a claim that somebody waits for."""

    owner: ClaimingOwner
    stream_id: int
    answer: Answer


def _pass_on(answered: Sequence[_Answered], found: Mapping[int, Address | None]) -> None:
    """`found`: where other partitions are. Grants come last: a program that is sent elsewhere gets nothing here."""
    try:
        for owner, stream_id, answer in answered:
            if isinstance(answer, Full):
                owner.claim_exceeds(answer.limit)
            elif not isinstance(answer, Granted):
                elsewhere = found[answer.partition] if isinstance(answer, Elsewhere) else None
                owner.claim_refused(stream_id, elsewhere)
        for owner, stream_id, answer in answered:
            if isinstance(answer, Granted):
                owner.claimed(stream_id, answer.last_id)
    finally:
        for owner in {one.owner for one in answered}:
            owner.claims_answered()


def _replaced(answer: Replaced) -> Unavailable:
    return Unavailable(f"another process serves this shard, since term {answer.term}")


class _RemoteRegistry:
    """A Registry in another shard."""

    def __init__(self, source: str, shard: int, wire: ShardWire) -> None:
        self._source = source
        self._shard = shard
        self._wire = wire

    async def apply(self, commands: Sequence[Command]) -> list[Answer]:
        request = Claims(source=self._source, commands=[encode(command) for command in commands])
        reply = await self._wire.ask(self._shard, "/shard/claims", request, ClaimsAnswered)
        return [decode_answer(answer) for answer in reply.answers]

    async def held(self, partition: int, term: int) -> dict[int, ClaimId] | Replaced:
        request = HeldBy(source=self._source, partition=partition, term=term)
        reply = await self._wire.ask(self._shard, "/shard/held", request, Held)
        if reply.replaced_by:
            return Replaced(reply.replaced_by)
        return {stream_id: ClaimId(partition, *claim) for stream_id, *claim in reply.streams}


class OtherPartition(NamedTuple):
    """A partition in another shard."""

    name: str
    shard: int
    wire: ShardWire

    async def ask(self, verb: str, request: msgspec.Struct, reply: type[T], wait_seconds: float = 0.0) -> T:
        """What a client would ask of this partition alone. Raises as the wire does."""
        path = f"/sources/{quote(self.name, safe='')}/{verb}"
        return await self.wire.ask(self.shard, path, request, reply, wait_seconds)


class PartitionDirectory(Protocol):
    """Where partitions are."""

    @property
    def shard(self) -> int: ...

    async def placed_partitions(self, source: str) -> Sequence[int]:
        """The shards of the source's partitions, in order; empty for a source without a place."""
        ...

    async def connector_of(self, shard: int) -> str: ...

    async def published_sources(self) -> Sequence[str]:
        """Those about which an application declares something, or has done so."""
        ...

    async def declared_source(self, source: str, quota_bytes: int | None) -> DeclaredSource | None:
        """What an application has declared; None: nothing."""
        ...


class PartitionedSources:
    """All partitions and registries of one shard, and the settings of whole sources whose application is in another."""

    def __init__(self, sources: SourceCatalog, directory: PartitionDirectory, wire: ShardWire, term: int) -> None:
        """`term`: of this process in its shard, durable."""
        self._sources = sources
        self._directory = directory
        self._wire = wire
        self._term = term
        self._supervisor: Supervisor = sources.supervisor
        self._partitions: dict[str, SourcePartition] = {}
        self._registries: dict[str, StoredClaims] = {}
        self._damage: dict[str, Damaged] = {}
        self._asked_about: set[str] = set()
        """Whole sources whose settings were asked for: whoever changes them from then on says so."""
        self._declared: set[str] = set()
        """Those of them that an application elsewhere has declared."""
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._configuring: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.listen: Listen = _nobody_listens
        self.is_configured_here: Callable[[str], bool] = lambda _: False
        """Whether the application here declares this source, and the source is here."""
        self._tasks: list[Supervised] = []
        self._is_stopped = False

    def start(self) -> None:
        """Give up what predecessors had, also if no program ever connects here again."""
        self._run("settings of partitions", self._look)
        if names := {of.source for log_ in self._sources if self._is_partition(of := partition_of(log_.name))}:
            self._run("partitions of sources", partial(self._recover, names))
        if names := {log_.name for log_ in self._sources if not self._is_partition(partition_of(log_.name))}:
            self._run("settings of whole sources", partial(self._recover_settings, names))

    def _is_partition(self, of: Partition) -> bool:
        """Whether it is one of several: partition 0 has the registry. Dead letters belong to their source."""
        has_registry = of.number > 0 or self._sources.store.exists(claims_segment(of.source))
        return has_registry and not of.source.endswith(DEAD_LETTERS_SUFFIX)

    async def _recover(self, names: set[str]) -> None:
        pauses, left = Pauses(RETRIES), set(names)
        while left:
            for name in sorted(left):
                try:
                    await self.serve(name)
                    left.discard(name)
                except PenstockError as error:
                    log.debug("source %r waits: %s", name, error)
            if left:
                await asyncio.sleep(pauses.next())

    async def _recover_settings(self, names: set[str]) -> None:
        """Of those that an application elsewhere has declared."""
        pauses = Pauses(RETRIES)
        while True:
            try:
                for name in names.intersection(await self._directory.published_sources()):
                    await self.know(name)
                return
            except PenstockError as error:
                log.debug("the settings of sources are not known: %s", error)
                await asyncio.sleep(pauses.next())

    async def know(self, source: str) -> None:
        """Before a program joins: use the settings of this source, which is here as a whole, if an application
        elsewhere has declared it. Raises Unavailable.
        """
        if source not in self._asked_about:
            await self._configure_whole(source)

    async def _configure_whole(self, source: str) -> None:
        if self.is_configured_here(source):
            return
        async with self._configuring[source]:
            declared = await self._directory.declared_source(source, self._sources.settings.source.quota_bytes)
            if len(self._asked_about) >= _ASKED_ABOUT_MAX:
                self._asked_about.clear()
            self._asked_about.add(source)
            if declared is None:
                self._declared.discard(source)
                return
            self._declared.add(source)
            if declared.settings != self._sources.settings_of(source):
                self._sources.configure(source, declared.settings)

    async def stop(self) -> None:
        self._is_stopped = True
        for task in self._tasks:
            await task.stop()

    @property
    def problems(self) -> list[str]:
        found = [one.problem for one in self._partitions.values() if one.problem]
        return [*found, *(f"the registry of source {name!r} is refused: {e}" for name, e in self._damage.items())]

    async def number_here(self, source: str) -> int | None:
        """Which partition of a source with several of them is here; None: none is, or the source has one alone."""
        shards = await self._directory.placed_partitions(source)
        if len(shards) <= 1 or self._directory.shard not in shards:
            return None
        return shards.index(self._directory.shard)

    async def others(self, source: str) -> list["OtherPartition"]:
        """The partitions of the source that are in other shards. Raises Unavailable."""
        shards = await self._directory.placed_partitions(source)
        return [
            OtherPartition(Partition(source, number).name, shard, self._wire)
            for number, shard in enumerate(shards)
            if shard != self._directory.shard and len(shards) > 1
        ]

    async def serve(self, source: str) -> None:
        """From now on, programs can join the partition of this source that is here. Does nothing for a source with one
        partition. Raises Unavailable.
        """
        number = await self.number_here(source)
        if number is None or source in self._partitions:
            return
        shards, of = await self._directory.placed_partitions(source), Partition(source, number)
        sources = self._sources
        await self._configure(of)
        log_ = sources.configured(of.name)
        registry: Registry = _RemoteRegistry(source, shards[0], self._wire) if number else await self._registry(source)
        if source in self._partitions:  # another session was faster
            return

        async def find(partition: int) -> Address | None:
            try:
                found = await self._directory.connector_of(shards[partition])
                return Address.parse(found) if found else None
            except PenstockError:  # the program asks again
                return None

        made = SourcePartition(of, self._term, log_, sources.completion(of.name), self._when_durable, registry, find)
        log_.partition = self._partitions[source] = made
        sources.join_as[source] = of.name
        # Its log may be new. A process that was replaced finds out here, before it asks for anything.
        self._when_durable(partial(self._run, f"streams of {of.name}", made.run))

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if not self._is_stopped:
            self._tasks.append(self._supervisor.run(name, work))

    async def _configure(self, of: Partition, *, again: bool = False) -> None:
        """Partition 0 is mostly where the application is, whose runtime configures it, and runs its connector."""
        if not of.number and self.is_configured_here(of.source):
            return
        quota = self._sources.settings.source.quota_bytes
        async with self._configuring[of.name]:
            declared = await self._directory.declared_source(of.source, quota)
            if declared is not None and declared.settings != self._sources.settings_of(of.name):
                self._sources.configure(of.name, declared.settings)
            if of.number:
                await self.listen(of, None if declared is None else declared.listener, again=again)

    async def declared(self, request: Declared) -> None:
        """The application's shard has declared something about a source. Raises Unavailable if its partition is not
        here: the shard may just have moved.
        """
        number = await self.number_here(request.source)
        if [*await self._directory.placed_partitions(request.source)] == [self._directory.shard]:
            await self._configure_whole(request.source)
        elif number is None:
            raise Unavailable(f"shard {self._directory.shard} has no partition of source {request.source!r}")
        elif request.source in self._partitions:
            await self._configure(Partition(request.source, number), again=True)
        else:
            await self.serve(request.source)
        await self._sources.durability.caught_up()  # from now on, a restart finds the partition by itself

    async def _look(self) -> None:
        """Whether an application has changed the settings of a partition here."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for one in [*self._partitions.values()]:
                try:
                    await self._configure(one.of)
                except PenstockError as error:
                    log.debug("the settings of %s are not known: %s", one, error)
            for source in [*self._declared]:
                try:
                    await self._configure_whole(source)
                except PenstockError as error:
                    log.debug("the settings of source %r are not known: %s", source, error)

    def _when_durable(self, action: Callable[[], None]) -> None:
        self._sources.durability.after(self._sources.store.journal.end, action)

    # The registries of this shard.

    async def _open(self, source: str) -> StoredClaims:
        sources = self._sources
        try:
            limit = sources.settings.streams_per_source_max
            found = await StoredClaims(source, sources.store, sources.durability, limit).open()
        except Damaged as error:
            log.error("the registry of source %r is refused: %s", source, error)
            self._damage[source] = error
            raise
        self._registries[source] = found
        return found

    async def _registry(self, source: str) -> StoredClaims:
        """Reads it, the first time. Raises Damaged."""
        async with self._opening[source]:
            if source in self._damage:
                raise self._damage[source]
            found = self._registries.get(source)
            return await self._open(source) if found is None else found

    async def _asked(self, source: str) -> StoredClaims:
        """For another shard. Raises Unavailable if the registry is not here: the shard may just have moved."""
        shards = await self._directory.placed_partitions(source)
        if len(shards) <= 1 or shards[0] != self._directory.shard:
            raise Unavailable(f"shard {self._directory.shard} does not have the registry of source {source!r}")
        return await self._registry(source)

    async def claims(self, request: Claims) -> ClaimsAnswered:
        registry = await self._asked(request.source)
        try:
            commands = [decode(command) for command in request.commands]
        except Damaged as error:
            raise RequestError(str(error)) from None
        return ClaimsAnswered([encode_answer(answer) for answer in await registry.apply(commands)])

    async def held(self, request: HeldBy) -> Held:
        registry = await self._asked(request.source)
        found = await registry.held(request.partition, request.term)
        if isinstance(found, Replaced):
            return Held([], found.term)
        return Held([(stream_id, claim.term, claim.number) for stream_id, claim in found.items()])
