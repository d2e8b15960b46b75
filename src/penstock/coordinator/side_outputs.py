"""Side outputs of an epoch: tasks register what they have staged, and the epoch's merge takes each event once.

With Spark's own sinks there is no merge: what is registered for an epoch becomes part of the output when Spark has
certainly committed it, by whichever generation is running then.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.coordinator.distinct_events import DistinctEvents
from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.burials import left_out
from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.shared import Shared
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.api.side_outputs import MissingPart, ReaderPlan, Registration, SideKey
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import epoch_prefix, output_segment, staging_prefix
from penstock.protocol.stored.side_outputs import (
    BURIED,
    DONE,
    PLANS,
    SIDE,
    T,
    copy_prefix,
    done_segment,
    pack,
    plan_segment,
    unpack,
)

PARTS_MAX = 100_000
"""Of one reader in one epoch: as many as a merge may have staged segments."""


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
        return await self._first(name, generation, epoch, plan, partial(plan_segment, operator=plan.operator))

    def plan_buried(self, prefix: str, pipeline: Pipeline, start: int, end: int) -> None:
        """Plans what leaves through `err` because it is buried, unless that is planned already. `prefix`: of the epoch
        that reads between these cuts. Durable with the next commit, or merge.
        """
        store, found, segment = self._shared.store, left_out(pipeline, start, end), plan_segment(prefix, BURIED)
        if not found or (store.exists(segment) and store.length(segment)):
            return
        if not store.exists(segment):
            store.create(segment, NO_QUOTA, draining=True)
        ranges, reasons = zip(*found, strict=True)
        plan = ReaderPlan(BURIED, json.dumps({"reasons": reasons}), (ranges,))
        store.append(segment, [pack(plan)], draining=True)
        self._shared.keeper.cover()

    async def register(
        self, name: str, generation: int | None, epoch: int, given: Registration, prefix: str = ""
    ) -> Registration:
        """Records what a task has staged. Returns the first registration of its key: the task compares. `prefix`: where
        a missing part was planned. Raises PipelineError for a task of an earlier epoch, which nothing waits for.
        """
        own = staging_prefix(name)
        if any(not one.segment.startswith(own) or one.port not in DEAD_LETTER_PORTS for one in given.staged):
            raise RequestError("what is registered is not a side output of this pipeline")
        if prefix and not (prefix.startswith(own) and self._is_planned(prefix, given.key)):
            raise PipelineError(f"no part of {given.key.operator!r} is missing in epoch {epoch}")
        place = partial(done_segment, key=given.key)
        # An empty registration need not be durable: if it is lost, its part is decoded again.
        return await self._first(name, generation, epoch, given, place, waits=bool(given.staged), prefix=prefix)

    def _check_stored(self, given: ReaderPlan | Registration) -> None:
        """Raises PipelineError if what would be registered was deleted: its events would be lost."""
        store = self._shared.store
        for one in given.staged if isinstance(given, Registration) else ():
            if not store.exists(one.segment) or store.length(one.segment) != one.length:
                raise PipelineError(
                    f"{one.segment!r} was deleted before it was registered", "Let Spark retry the task."
                )

    def _is_planned(self, prefix: str, key: SideKey) -> bool:
        return self._shared.store.exists(plan_segment(prefix, key.operator))

    async def _first(
        self,
        name: str,
        generation: int | None,
        epoch: int,
        given: T,
        place: Callable[[str], str],
        *,
        waits: bool = True,
        prefix: str = "",
    ) -> T:
        """Stores the value at its place below the epoch's prefix, unless one is stored there. Returns the stored one,
        when it is durable.
        """
        shared = self._shared
        async with shared.lock(name):
            prefix = prefix or epoch_prefix(name, generation, self._number(name, generation, epoch))
            segment = place(prefix)
            if not shared.store.exists(segment):
                self._check_stored(given)
                shared.store.create(segment, NO_QUOTA, draining=True)
            if not shared.store.length(segment):  # a crash may have come in between
                shared.store.append(segment, [pack(given)], draining=True)
                shared.keeper.cover()
                if not waits:
                    return given
        await shared.keeper.settled()
        return await self._read(segment, type(given))

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
            found = [await self._missing(epoch, prefix) for epoch, prefix in self._pending(name, upto)]
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

    async def drop_after(self, name: str, epoch: int) -> None:
        """The epochs after this one are planned again: what was registered for them no longer counts. What a batch
        without new input has staged may belong to an earlier epoch.
        """
        found = [prefix + SIDE for _, prefix in self._epochs(name, lambda number: number > epoch)]
        if not found:
            return
        sides = [await self._sides(prefix) for _, prefix in self._pending(name, epoch)]
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
        for epoch, prefix in self._pending(name, upto):
            sides = await self._sides(prefix)
            if sides.missing(epoch, prefix):
                return True
            done = (one for one in sides.done if all(shared.store.exists(piece.segment) for piece in one.staged))
            self._merge(name, prefix, await self._distinct.of(prefix, EpochSides(done=tuple(done)).by_operator()))
            if epoch < pipeline.running[1]:  # no task of it is running
                self._sweep(prefix)
            shared.keeper.cover()
            await shared.keeper.settled()
        return False

    def _merge(self, name: str, prefix: str, pieces: Sequence[tuple[Staged, str | None]]) -> None:
        """In one record. The originals of copies go with it, into a segment that is then deleted."""
        store, pairs = self._shared.store, []
        trash = f"{copy_prefix(prefix)}/trash"
        for staged, original in pieces:
            for segment in (output_segment(name, staged.port), *([trash] if original else ())):
                if not store.exists(segment):
                    store.create(segment, NO_QUOTA, draining=True)
            pairs.append((output_segment(name, staged.port), staged.segment))
            if original:
                pairs.append((trash, original))
        if pairs:
            store.merge(pairs)
        self._sweep(trash)

    def _pending(self, name: str, upto: int) -> list[tuple[int, str]]:
        return self._epochs(name, lambda number: number <= upto)

    def _epochs(self, name: str, wanted: Callable[[int], bool]) -> list[tuple[int, str]]:
        """The epochs with side outputs, and their prefixes, in order. An epoch that was planned again by a newer
        generation has those of that one alone.
        """
        found = set()
        for info in self._shared.store.segments(staging_prefix(name)):
            generation, epoch, rest = info.name.removeprefix(staging_prefix(name)).split("/", 2)
            if rest.startswith(SIDE) and epoch.isdecimal() and wanted(int(epoch)):
                found.add((int(epoch), f"{staging_prefix(name)}{generation}/{epoch}/"))
        return sorted(found)

    async def _sides(self, prefix: str) -> EpochSides:
        store = self._shared.store
        names = [info.name for info in store.segments(prefix + SIDE)]
        if not names:
            return EpochSides()
        self._shared.keeper.cover()  # empty registrations may not be durable yet
        await self._shared.keeper.settled()
        whole = [one for one in names if self._shared.store.length(one)]
        plans = [await self._read(one, ReaderPlan) for one in whole if one.startswith(prefix + PLANS)]
        done = [await self._read(one, Registration) for one in whole if one.startswith(prefix + DONE)]
        return EpochSides(tuple(plans), tuple(done))

    async def _read(self, segment: str, kind: type[T]) -> T:
        length = self._shared.records.end(segment)
        return unpack(await self._shared.records.data(segment, 0, length), kind, segment)
