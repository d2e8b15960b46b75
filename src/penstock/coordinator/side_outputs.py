"""Side outputs of an epoch: tasks register what they have staged, and the epoch's merge takes each event once.

With Spark's own sinks there is no merge: what is registered for an epoch becomes part of the output when Spark has
certainly committed it, by whichever generation is running then.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.coordinator.distinct_events import DistinctEvents
from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.burials import left_out
from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.shared import Shared
from penstock.core.errors import DataLoss, PipelineError, RequestError
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.api.side_outputs import MissingPart, ReaderPlan, Registration, SideKey
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import NO_GENERATION, epoch_prefix, output_segment, staging_prefix
from penstock.protocol.stored.side_outputs import (
    BURIED,
    DONE,
    PLANS,
    SIDE,
    copy_prefix,
    counterpart,
    counting,
    done_segment,
    merged_segment,
    pack,
    plan_segment,
    unpack_plan,
    unpack_registrations,
)

PARTS_MAX = 100_000
"""Of one reader in one epoch: as many as a merge may have staged segments."""

_WITHOUT = -1
"""Stands for a sink without a generation."""


@dataclass(frozen=True, slots=True)
class EpochSides:
    """What is planned and registered for an epoch."""

    plans: tuple[ReaderPlan, ...] = ()
    done: tuple[Registration, ...] = ()

    def missing(self, epoch: int, prefix: str) -> list[MissingPart]:
        """The planned parts that no task has finished."""
        keys = {one.key for one in self.done}
        parts = (
            MissingPart(epoch, prefix, SideKey(False, plan.operator, number), plan.decoding, ranges)
            for plan in self.plans
            for number, ranges in enumerate(plan.parts)
        )
        return [part for part in parts if part.key not in keys]

    def by_operator(self) -> list[list[Registration]]:
        """What was staged, in order: readers first, then by operator and partition. Parts of a reader never overlap, so
        each is alone; partitions of an operator may have rows of the same event.
        """
        found: dict[object, list[Registration]] = defaultdict(list)
        for one in sorted(self.done, key=lambda one: one.key):
            if one.staged:
                found[one.key.operator if one.key.is_operator else one.key].append(one)
        return [*found.values()]


class SideOutputs:
    """Everything here that changes or reads an epoch's registrations runs under the pipeline's lock."""

    def __init__(self, shared: Shared, sweep: Callable[[str], int]) -> None:
        """`sweep` deletes all staged segments with a prefix."""
        self._shared = shared
        self._sweep = sweep
        self._distinct = DistinctEvents(shared, sweep)

    # What tasks and drivers ask for.

    async def plan(self, name: str, generation: int | None, epoch: int, plan: ReaderPlan) -> ReaderPlan:
        """Records how a reader divides the epoch. If that is recorded already, returns how: a second load of the same
        input must read the same parts.
        """
        if len(plan.parts) > PARTS_MAX:
            raise RequestError(f"{len(plan.parts)} parts are more than {PARTS_MAX}", "Use fewer partitions.")
        shared = self._shared
        async with shared.lock(name):
            number = self._number(name, generation, epoch)
            segment = plan_segment(epoch_prefix(name, generation, number), plan.operator)
            if not self._is_written(segment):
                self._append(segment, pack(plan))
        await shared.keeper.settled()
        return unpack_plan(await self._whole(segment), segment)

    def plan_buried(self, prefix: str, pipeline: Pipeline, start: int, end: int) -> None:
        """Plans what leaves through `err` because it is buried, unless that is planned already. `prefix`: of the epoch
        that reads between these cuts. Durable with the next commit, or merge.
        """
        found, segment = left_out(pipeline, start, end), plan_segment(prefix, BURIED)
        if not found or self._is_written(segment):
            return
        ranges, reasons = zip(*found, strict=True)
        self._append(segment, pack(ReaderPlan(BURIED, json.dumps({"reasons": reasons}), (ranges,))))

    async def register(
        self, name: str, generation: int | None, epoch: int, given: Registration, prefix: str = ""
    ) -> Registration:
        """Records what a task has staged. Returns the first registration of its key: the task compares. A task that
        registers a key several times gets the first one of the same number. `prefix`: where a missing part was planned.
        Raises PipelineError for a task of an earlier epoch, which nothing waits for.
        """
        own, shared = staging_prefix(name), self._shared
        if any(not one.segment.startswith(own) or one.port not in DEAD_LETTER_PORTS for one in given.staged):
            raise RequestError("what is registered is not a side output of this pipeline")
        if prefix and not (prefix.startswith(own) and self._is_planned(prefix, given.key)):
            raise PipelineError(f"no part of {given.key.operator!r} is missing in epoch {epoch}")
        async with shared.lock(name):
            prefix = prefix or epoch_prefix(name, generation, self._number(name, generation, epoch))
            segment = done_segment(prefix, given.key)
            arrived = await self._registered(segment)
            first = counterpart(arrived, given)
            if first is None:
                self._check_stored(given)
                self._append(segment, pack(given))
            elif _is_another(given, arrived) and first.digest == given.digest:
                self._append(segment, pack(msgspec.structs.replace(given, staged=())))
        # That of a reader need not be durable if it is empty: if it is lost, its part is decoded again. An operator may
        # decide differently the next time, and what it has decided first counts.
        if first is not None or given.staged or given.key.is_operator:
            await shared.keeper.settled()
        return given if first is None else first

    def _check_stored(self, given: Registration) -> None:
        """Raises PipelineError if what would be registered was deleted: its events would be lost."""
        for one in given.staged:
            if not self._is_there(one):
                raise PipelineError(
                    f"{one.segment!r} was deleted before it was registered", "Let Spark retry the task."
                )

    def _is_planned(self, prefix: str, key: SideKey) -> bool:
        return self._shared.store.exists(plan_segment(prefix, key.operator))

    def _is_there(self, piece: Staged) -> bool:
        store = self._shared.store
        return store.exists(piece.segment) and store.length(piece.segment) == piece.length

    def _is_written(self, segment: str) -> bool:
        """A crash may have come between its creation and its first bytes."""
        return self._shared.store.exists(segment) and self._shared.store.length(segment) > 0

    def _append(self, segment: str, data: bytes) -> None:
        """Creates it if it does not exist."""
        store = self._shared.store
        if not store.exists(segment):
            store.create(segment, NO_QUOTA, draining=True)
        store.append(segment, [data], draining=True)
        self._shared.keeper.cover()

    def _number(self, name: str, generation: int | None, epoch: int) -> int:
        """The epoch under which it is stored. With Spark's own sinks, that of the running cut: only cuts are proved,
        and Spark's batches without new input have none of their own.
        """
        shared = self._shared
        pipeline = shared.state.pipelines.get(name) if generation is None else shared.living(name, generation)
        if pipeline is not None and epoch < pipeline.running[1]:
            running = pipeline.running[1]
            raise PipelineError(f"epoch {epoch} of pipeline {name!r} is over: epoch {running} is running")
        if pipeline is None or pipeline.outputs or not pipeline.is_merged_by_proof:
            return epoch
        return min(epoch, pipeline.running[1]) if pipeline.running[1] >= 0 else epoch

    async def missing(self, name: str, generation: int, upto: int) -> list[MissingPart]:
        """The planned parts of epochs up to this one that no task has finished, for Spark's own sinks."""
        async with self._shared.lock(name):
            self._shared.living(name, generation)
            pending = [(epoch, prefix) for epoch, prefixes in self._pending(name, upto) for prefix in prefixes]
            found = [await self._missing(epoch, prefix) for epoch, prefix in pending]
        return [part for parts in found for part in parts]

    async def _missing(self, epoch: int, prefix: str) -> list[MissingPart]:
        return (await self._sides(prefix)).missing(epoch, prefix)

    # What the merge takes.

    async def staged(
        self, name: str, generation: int | None, epoch: int, pipeline: Pipeline
    ) -> tuple[list[Staged], list[MissingPart]]:
        """What is registered for the epoch, in order, each event of an operator once; and the parts that are missing.
        A sink without a generation takes what was registered by one, and the other way round.
        """
        generations = dict.fromkeys((pipeline.generation if generation is None else generation, None))
        staged: list[Staged] = []
        missing: list[MissingPart] = []
        self.plan_buried(epoch_prefix(name, next(iter(generations)), epoch), pipeline, *pipeline.running)
        for one in generations:
            prefix = epoch_prefix(name, one, epoch)
            sides = await self._sides(prefix)
            missing += sides.missing(epoch, prefix)
            if not missing:
                staged += [piece for piece, _ in await self._distinct.of(prefix, sides.by_operator())]
        return ([] if missing else staged), missing

    async def drop_after(self, name: str, epoch: int, *, keep: int | None = None) -> None:
        """The epochs after this one are planned again: what was registered for them no longer counts, except by the
        generation to keep. What a batch without new input has staged may belong to an earlier epoch.
        """
        found = []
        for number, prefixes in self._epochs(name, lambda number: number > epoch):
            own = () if keep is None else (epoch_prefix(name, keep, number), epoch_prefix(name, None, number))
            found += [prefix + SIDE for prefix in prefixes if prefix not in own]
        if not found:
            return
        sides = [await self._sides(prefix) for _, some in self._pending(name, epoch) for prefix in some]
        needed = {piece.segment for side in sides for one in side.done for piece in one.staged}
        for info in [info for prefix in found for info in self._shared.store.segments(prefix)]:
            if info.name not in needed:
                self._sweep(info.name)

    async def collect(self, name: str, upto: int) -> bool:
        """Spark has committed the epochs up to this one with a sink of its own: merge what is registered for them.
        What is merged no longer exists under its staged name, so a crash repeats nothing. An epoch with a missing part
        waits for it, and later ones wait with it. Returns whether one waits.
        """
        shared = self._shared
        pipeline = shared.state.pipelines.get(name)
        if pipeline is None or not pipeline.is_merged_by_proof:
            return False
        for epoch, prefixes in self._pending(name, upto):
            sides = {prefix: await self._sides(prefix) for prefix in prefixes}
            if any(some.missing(epoch, prefix) for prefix, some in sides.items()):
                return True
            for prefix, some in sides.items():
                await self._merge(name, prefix, await self._unmerged(epoch, prefix, some))
            # Only when all are merged: what one generation has staged may be registered where another has planned it.
            for prefix in prefixes if epoch < pipeline.running[1] else ():  # no task of it is running
                self._sweep(prefix)
            shared.keeper.cover()
            await shared.keeper.settled()
        return False

    async def _unmerged(self, epoch: int, prefix: str, sides: EpochSides) -> list[Registration]:
        """The registrations of which nothing is merged yet. Raises DataLoss if one was neither merged nor is there."""
        log = merged_segment(prefix)
        merged = {*(await self._whole(log)).decode().splitlines()} if self._is_written(log) else set[str]()
        found = []
        for one in sides.done:
            if all(piece.segment in merged for piece in one.staged):
                continue
            if all(map(self._is_there, one.staged)):
                found.append(one)
            elif one.format > 1:  # of older ones it is not known which are merged
                raise DataLoss(
                    f"events of epoch {epoch} that {one.key.operator!r} has rejected are lost: their staged segments "
                    "are gone",
                    "Start the pipeline from scratch: penstock pipeline reset NAME",
                )
        return found

    async def _merge(self, name: str, prefix: str, done: Sequence[Registration]) -> None:
        """In one record, which also says what is merged. The originals of copies go with it, into a segment that is
        then deleted.
        """
        store, pairs = self._shared.store, []
        pieces = await self._distinct.of(prefix, EpochSides(done=tuple(done)).by_operator())
        if not pieces:
            return
        scratch = copy_prefix(prefix)
        trash, note, log = f"{scratch}/trash", f"{scratch}/merged", merged_segment(prefix)
        self._append(note, b"".join(f"{piece.segment}\n".encode() for one in done for piece in one.staged))
        for staged, original in pieces:
            pairs.append((output_segment(name, staged.port), staged.segment))
            if original:
                pairs.append((trash, original))
        pairs.append((log, note))
        for segment in dict.fromkeys(target for target, _ in pairs):
            if not store.exists(segment):
                store.create(segment, NO_QUOTA, draining=True)
        store.merge(pairs)
        self._sweep(trash)

    def _pending(self, name: str, upto: int) -> list[tuple[int, list[str]]]:
        return self._epochs(name, lambda number: number <= upto)

    def _epochs(self, name: str, wanted: Callable[[int], bool]) -> list[tuple[int, list[str]]]:
        """The epochs with side outputs, in order, each with the prefixes of its generations, in order. What counts is
        that of one generation, in which the epoch was planned last; a later one may have staged its missing parts.
        """
        found: dict[int, set[int]] = defaultdict(set)
        for info in self._shared.store.segments(staging_prefix(name)):
            generation, epoch, rest = info.name.removeprefix(staging_prefix(name)).split("/", 2)
            if rest.startswith(SIDE) and epoch.isdecimal() and wanted(int(epoch)):
                found[int(epoch)].add(_WITHOUT if generation == NO_GENERATION else int(generation))
        return [
            (epoch, [epoch_prefix(name, None if one == _WITHOUT else one, epoch) for one in sorted(generations)])
            for epoch, generations in sorted(found.items())
        ]

    async def _sides(self, prefix: str) -> EpochSides:
        store = self._shared.store
        names = [info.name for info in store.segments(prefix + SIDE)]
        if not names:
            return EpochSides()
        self._shared.keeper.cover()  # empty registrations may not be durable yet
        await self._shared.keeper.settled()
        plans = [
            unpack_plan(await self._whole(one), one)
            for one in names
            if one.startswith(prefix + PLANS) and self._is_written(one)
        ]
        done = [counting(await self._registered(one)) for one in names if one.startswith(prefix + DONE)]
        return EpochSides(tuple(plans), tuple(one for some in done for one in some))

    async def _registered(self, segment: str) -> list[Registration]:
        """All that have arrived for a key."""
        if not self._is_written(segment):
            return []
        return unpack_registrations(await self._whole(segment), segment)

    async def _whole(self, segment: str) -> bytes:
        """All bytes of the segment, once they are durable."""
        records, end = self._shared.records, self._shared.store.length(segment)
        if records.end(segment) < end:
            self._shared.keeper.cover()
            await self._shared.keeper.settled()
        found = bytearray()
        while len(found) < end:
            found += await records.data(segment, len(found), end - len(found))
        return bytes(found[:end])


def _is_another(given: Registration, arrived: Sequence[Registration]) -> bool:
    """Whether it is of an attempt that registers a key several times, and has not arrived before."""
    return bool(given.attempt) and all((one.attempt, one.token) != (given.attempt, given.token) for one in arrived)
