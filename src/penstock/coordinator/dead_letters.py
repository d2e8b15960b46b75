"""Lists the dead letters of pipelines and sources, and replays those of pipelines, each exactly once even after a
crash.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.commands import Replay, ReplayChosen
from penstock.coordinator.machine.replays import check_replay, is_chosen, is_replayed, waiting_bytes
from penstock.coordinator.machine.state import Pipeline, source_of
from penstock.coordinator.shared import Shared
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.dead_letters import DeadLetter, DeadLetterList, DeadLetterPort, Replayed
from penstock.protocol.stored.bulk import encode_events
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS, ERR, StoredDeadLetter, dead_letters_in
from penstock.protocol.stored.event import StoredEvent
from penstock.protocol.stored.names import (
    COORDINATOR_PREFIX,
    REPLAY_PREFIX,
    check_pipeline_name,
    output_segment,
    replay_source,
    source_dead_letters,
)


@dataclass(frozen=True, slots=True)
class Sorted:
    """Original events of dead letters, encoded, by the input that read them."""

    events: dict[str, bytes] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    """Dead letters without an input: they were created from rows, or no input reads their source any more."""


def sort_by_input(name: str, pipeline: Pipeline, dead_letters: Iterable[StoredDeadLetter], key: str | None) -> Sorted:
    """Raises RequestError if several inputs read the source of a dead letter, and `key` is not one of them."""
    events: dict[str, list[StoredEvent]] = {}
    left_out = 0
    for dead_letter in dead_letters:
        found = input_of(name, pipeline, dead_letter.segment, key)
        if found is not None:
            events.setdefault(found, []).append(dead_letter.event)
        else:
            left_out += 1
    count = sum(map(len, events.values()))
    return Sorted({found: encode_events(parts) for found, parts in events.items()}, count, left_out)


def input_of(name: str, pipeline: Pipeline, segment: str | None, key: str | None) -> str | None:
    if key is not None and key not in pipeline.inputs:
        raise RequestError(f"pipeline {name!r} has no input {key!r}", f"It has: {', '.join(pipeline.inputs)}.")
    source = _source(segment)
    found = [one for one, spec in pipeline.inputs.items() if source in spec.sources]
    if len(found) > 1 and key not in found:
        raise RequestError(f"several inputs read {source}: {', '.join(found)}", "Name one of them: --input NAME")
    chosen = key if key in found else next(iter(found), None)
    if chosen is not None:
        check_pipeline_name(REPLAY_PREFIX + chosen, "port")
    return chosen


def _source(segment: str | None) -> str:
    """The source of a segment; "", which no input reads, for anything else."""
    try:
        return source_of(segment) if segment else ""
    except RequestError:
        return ""


LIST_MAX = 1000
"""Dead letters in one reply."""

_COPIES_PREFIX = f"{COORDINATOR_PREFIX}replaying/"
_STEP_BYTES = 4 << 20
"""Bytes to read and copy per step, unless a single record is longer."""
_UNWRITTEN_BYTES_MAX = 16 << 20
"""Limit for copies that are not durable yet: they are in memory."""


class DeadLetters:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def listed(
        self, name: str, ports: Sequence[str], limit: int, *, oldest: bool, before: int | None = None
    ) -> DeadLetterList:
        """The newest or the oldest `limit` dead letters of each port, in order; `before`: the newest of those that end
        there or earlier.
        """
        pipeline = known(self._shared.state, name)
        _check_limit(limit)
        found, infos = [], []
        for port in map(_checked_port, ports):
            about = self._port(name, pipeline, port)
            found.append(about)
            segment = output_segment(name, port)
            dead_letters = await (
                self._first(segment, about, limit) if oldest else self._last(segment, about, limit, before)
            )
            infos += [
                DeadLetter.of(port, one, replayed=is_replayed(pipeline, port, one.start, one.end))
                for one in dead_letters
            ]
        return DeadLetterList(found, infos)

    async def show(self, name: str, port: str, at: int) -> DeadLetter:
        """The dead letter that starts there. Raises PipelineError if there is none."""
        pipeline = known(self._shared.state, name)
        found = await self._one(name, pipeline, _checked_port(port), at)
        is_done = is_replayed(pipeline, port, found.start, found.end)
        return DeadLetter.of(port, found, replayed=is_done, with_value=True)

    async def _one(self, name: str, pipeline: Pipeline, port: str, at: int) -> StoredDeadLetter:
        found = await self._at(output_segment(name, port), self._port(name, pipeline, port), at)
        if found is None:
            raise PipelineError(
                f"no dead letter of port {port!r} starts at {at}", f"List them: penstock dead-letters list {name}"
            )
        return found

    async def _at(self, segment: str, about: DeadLetterPort, at: int) -> StoredDeadLetter | None:
        if about.start <= at < about.end and self._shared.records.begins_an_event(segment, at):
            record = self._shared.store.record(segment, at)
            data = await self._shared.records.data(segment, at, record.end - at)
            return next(dead_letters_in(data, at), None)
        return None

    async def listed_of_source(
        self, source: str, limit: int, *, oldest: bool, before: int | None = None
    ) -> DeadLetterList:
        """As `listed`, of what could not become an event of the source. Raises RequestError for a source that does not
        exist.
        """
        _check_limit(limit)
        segment, about = self._of_source(source)
        found = await (self._first(segment, about, limit) if oldest else self._last(segment, about, limit, before))
        return DeadLetterList([about], [DeadLetter.of_source(one) for one in found])

    async def show_of_source(self, source: str, at: int) -> DeadLetter:
        """The one that starts there. Raises RequestError if there is none."""
        found = await self._at(*self._of_source(source), at)
        if found is None:
            raise RequestError(
                f"no dead letter of source {source!r} starts at {at}", f"List them: penstock dead-letters list {source}"
            )
        return DeadLetter.of_source(found, with_value=True)

    def _of_source(self, source: str) -> tuple[str, DeadLetterPort]:
        segment, records = source_dead_letters(source), self._shared.records
        if not self._shared.store.exists(segment) and not self._shared.sources.segments(source):
            raise RequestError(f"source {source!r} not found", "List them: penstock status")
        return segment, DeadLetterPort(ERR, records.begin(segment), 0, records.end(segment), waiting=0)

    def _port(self, name: str, pipeline: Pipeline, port: str) -> DeadLetterPort:
        segment, records = output_segment(name, port), self._shared.records
        start, end = records.begin(segment), records.end(segment)
        waiting = waiting_bytes(pipeline, port, start, end)
        return DeadLetterPort(port, start, pipeline.replayed.get(port, 0), end, waiting)

    async def _first(self, segment: str, about: DeadLetterPort, limit: int) -> list[StoredDeadLetter]:
        """Record by record: those of a source may have marks instead of events."""
        found: list[StoredDeadLetter] = []
        at = about.start
        while at < about.end and len(found) < limit:
            end = min(about.end, int(self._shared.store.record(segment, at).end))
            data = await self._shared.records.data(segment, at, end - at)
            found += dead_letters_in(data[: end - at], at)
            at = end
        return found[:limit]

    async def _last(
        self, segment: str, about: DeadLetterPort, limit: int, before: int | None = None
    ) -> list[StoredDeadLetter]:
        """The last dead letters of a segment, found by reading backwards, record by record."""
        found: list[StoredDeadLetter] = []
        end = about.end if before is None else min(before, about.end)
        while end > about.start and len(found) < limit:
            start = max(about.start, int(self._shared.store.record(segment, end - 1).start))
            data = await self._shared.records.data(segment, start, end - start)
            found = [*dead_letters_in(data[: end - start], start), *found]
            end = start
        return found[max(0, len(found) - limit) :]

    async def _read(self, segment: str, start: int, end: int) -> AsyncIterator[list[StoredDeadLetter]]:
        """All dead letters between two offsets, at each of which one starts or ends; in batches."""
        at = start
        while at < end:
            length = max(_STEP_BYTES, self._shared.store.record(segment, at).end - at)
            data = await self._shared.records.data(segment, at, length)
            dead_letters = await asyncio.to_thread(_parsed, data[: end - at], at)
            if not dead_letters and len(data) >= end - at:
                raise RequestError(
                    f"no dead letter ends at {end} in segment {segment!r}", "Use an end that a list has returned."
                )
            at = dead_letters[-1].end if dead_letters else at + len(data)
            yield dead_letters

    async def replay(self, name: str, port: str, after: int, upto: int, key: str | None = None) -> Replayed:
        """Replays the dead letters between two offsets: from where the last replay has ended to the end of a dead
        letter, except those that were replayed by choice. Their events become part of what the inputs read in the
        journal record of the ledger entry. The same call again does nothing and returns the same. `key` is the input
        for events that several inputs could read.
        """
        pipeline = known(self._shared.state, name)
        if pipeline.replayed.get(_checked_port(port), 0) == upto > after:
            return await self._sorted_all(name, port, after, upto, key)
        check_replay(pipeline, Replay(name, port, after, upto, {}))
        if upto > (end := self._shared.records.end(output_segment(name, port))):
            raise PipelineError(
                f"port {port!r} of pipeline {name!r} ends at offset {end}: no dead letter ends at {upto}",
                f"List them: penstock dead-letters list {name} --port {port}",
            )
        async with self._copying(name) as copies:
            found = await self._sorted_all(name, port, after, upto, key, copies)
            if not found.count:
                raise _nothing(name, port, found.left_out)
            async with self._shared.lock(name):
                if known(self._shared.state, name).chosen.get(port) != pipeline.chosen.get(port):
                    raise _overtaken(name, port)
                self._shared.keeper.commit(Replay(name, port, after, upto, *copies.merging()))
        await self._shared.keeper.settled()
        return found

    async def replay_chosen(self, name: str, port: str, at: Sequence[int], key: str | None = None) -> Replayed:
        """Replays the dead letters that start at these offsets, as safely as `replay`; those without an input stay
        where they are. The same call again does nothing and returns the same. Raises PipelineError, and replays none,
        if only some of them were replayed before.
        """
        pipeline, ranges, left_out = known(self._shared.state, name), [], 0
        async with self._copying(name) as copies:
            for offset in _checked_choice(at):
                one = await self._one(name, pipeline, _checked_port(port), offset)
                found = await asyncio.to_thread(sort_by_input, name, pipeline, [one], key)
                left_out += found.left_out
                if found.count:
                    ranges.append((one.start, one.end))
                if not is_replayed(pipeline, port, one.start, one.end):
                    await copies.append(found)
            if not ranges:
                raise _nothing(name, port, left_out)
            async with self._shared.lock(name):
                pipeline = known(self._shared.state, name)
                if all(is_replayed(pipeline, port, *one) for one in ranges):
                    copies.discard()  # a request that was sent twice
                else:
                    self._shared.keeper.commit(ReplayChosen(name, port, tuple(ranges), *copies.merging()))
        await self._shared.keeper.settled()
        return Replayed(len(ranges), left_out)

    @asynccontextmanager
    async def _copying(self, name: str) -> AsyncIterator["_Copies"]:
        copies = _Copies(self._shared, name)
        try:
            yield copies
        except BaseException:
            copies.discard()
            raise

    async def _sorted_all(
        self, name: str, port: str, after: int, upto: int, key: str | None, copies: "_Copies | None" = None
    ) -> Replayed:
        """Count the dead letters to replay. With `copies`, also copy their events."""
        count = left_out = 0
        async for found in self._sorted(name, port, after, upto, key):
            if copies is not None:
                await copies.append(found)
            count += found.count
            left_out += found.left_out
        return Replayed(count, left_out)

    async def _sorted(self, name: str, port: str, after: int, upto: int, key: str | None) -> AsyncIterator[Sorted]:
        """The dead letters by input, in batches. Skips what retention by time or size has removed, and those that were
        replayed by choice.
        """
        pipeline, segment = known(self._shared.state, name), output_segment(name, port)
        start = max(after, min(self._shared.records.begin(segment), upto))
        async for dead_letters in self._read(segment, start, upto):
            left = (one for one in dead_letters if not is_chosen(pipeline, port, one.start, one.end))
            yield await asyncio.to_thread(sort_by_input, name, pipeline, left, key)

    def sweep(self) -> None:
        """Delete unfinished copies that a crash has left."""
        for info in self._shared.store.segments(_COPIES_PREFIX):
            self._shared.store.delete(info.name)


class _Copies:
    """The replayed events of each input, in a segment of their own until they are merged."""

    def __init__(self, shared: Shared, name: str) -> None:
        self._shared = shared
        self._name = name
        self._segments: dict[str, str] = {}
        self._unwritten = 0

    async def append(self, found: Sorted) -> None:
        store = self._shared.store
        for key, events in found.events.items():
            if key not in self._segments:
                self._segments[key] = f"{_COPIES_PREFIX}{uuid4()}"
                store.create(self._segments[key], NO_QUOTA, draining=True)
            store.append(self._segments[key], [events], draining=True)
            self._unwritten += len(events)
        if self._unwritten >= _UNWRITTEN_BYTES_MAX:
            self._shared.keeper.cover()
            await self._shared.keeper.settled()
            self._unwritten = 0

    def merging(self) -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
        """Input → where its replay segment ends now (it is created if it is missing); and what is merged into them."""
        store, starts, pairs = self._shared.store, {}, []
        for key, copy in self._segments.items():
            target = str(replay_source(self._name, key).segment)
            if not store.exists(target):
                store.create(target, NO_QUOTA, draining=True)
            starts[key] = int(store.length(target))
            pairs.append((target, copy))
        return starts, tuple(pairs)

    def discard(self) -> None:
        for copy in self._segments.values():
            if self._shared.store.exists(copy):
                self._shared.store.delete(copy)


def _parsed(data: bytes, offset: int) -> list[StoredDeadLetter]:
    return [*dead_letters_in(data, offset)]


def _check_limit(limit: int) -> None:
    if not 0 <= limit <= LIST_MAX:
        raise RequestError(f"{limit} dead letters cannot be listed at once", f"Ask for up to {LIST_MAX}.")


def _checked_port(port: str) -> str:
    if port not in DEAD_LETTER_PORTS:
        raise RequestError(
            f"port {port!r} has no dead letters", f"The ports with them are: {', '.join(DEAD_LETTER_PORTS)}."
        )
    return check_pipeline_name(port, "port")


def _checked_choice(at: Sequence[int]) -> list[int]:
    """In order, each once."""
    if not 0 < len(at) <= LIST_MAX:
        raise RequestError(f"{len(at)} dead letters cannot be replayed at once", f"Choose 1 to {LIST_MAX}.")
    return sorted(set(at))


def _overtaken(name: str, port: str) -> PipelineError:
    return PipelineError(
        f"dead letters of {name}/{port} were replayed by choice at the same time",
        f"See which are left, and replay them: penstock dead-letters list {name} --port {port}",
    )


def _nothing(name: str, port: str, left_out: int) -> PipelineError:
    if left_out:
        return PipelineError(
            f"none of the {left_out} dead letters of port {port!r} can be replayed: no input of pipeline {name!r} "
            "reads their source",
            f"List them: penstock dead-letters list {name} --port {port}",
        )
    return PipelineError(f"port {port!r} of pipeline {name!r} has no dead letters there that are not replayed yet")
