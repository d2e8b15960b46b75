"""Drivers that do anything in any order: the part of the state machine test that is about cuts and merges."""

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.coordinator.ledger import SnapshotReader, encode_state
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.burials import is_read_now, left_out
from penstock.coordinator.machine.commands import (
    Ask,
    Attach,
    Bury,
    Command,
    Complete,
    Drop,
    Effect,
    Fork,
    Merge,
    Merges,
    Plan,
    Read,
    Release,
    Reset,
    Retain,
    Start,
    Truncate,
    decode,
    encode,
    pack,
    unpack,
)
from penstock.coordinator.machine.epochs import answer
from penstock.coordinator.machine.state import Pipeline, Sink, State, source_of
from penstock.core.errors import Outdated, RequestError
from penstock.core.types import NO_EPOCH

NAMES = ["a", "b", "c"]
SOURCES = ["s", "t", "pipeline:a/out"]
SEGMENTS = {"s": ["connector/s/0", "connector/s/1"], "t": ["connector/t/0"], "pipeline:a/out": ["pipeline/a/out"]}
NO_LIMITS = (None, None, None)


def readers(state: State, source: str) -> list[Pipeline]:
    return [pipeline for pipeline in state.pipelines.values() if source in pipeline.sources]


def sinks_of(state: State, segment: str) -> list[Sink]:
    """The sinks that receive what is in an output segment."""
    bound = [(name, sink) for name, pipeline in state.pipelines.items() for sink in pipeline.sinks.values()]
    return [sink for name, sink in bound if f"pipeline/{name}/{sink.port}" == segment]


class EpochsMachine(RuleBasedStateMachine):
    """Commands of old and new drivers, legal or not. `returned` has every cut; `lengths` are those of a store."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.returned: dict[tuple[int, int], Any] = {}
        self.merged: dict[tuple[int, int], tuple[int, int]] = {}
        self.released: dict[str, dict[str, int]] = {}
        self.truncated: dict[str, int] = {}
        self.lengths: dict[tuple[str, str], int] = {}
        self.commands: list[Command] = []
        self.requests = 0

    def do(self, command: Command) -> tuple[Effect, ...]:
        before, copy = self.state, self.copied()
        try:
            self.state, effects = apply(self.state, command)
        except (RequestError, Outdated):
            assert self.state is before
            assert self.copied() == copy, "a refused command changes nothing"
            return ()
        assert self.copied_of(before) == copy, "a state never changes, it is followed by another one"
        self.check_fence(before, command)
        self.commands.append(command)
        self.accepted(before, command)
        for effect in effects:
            self.follow(effect)
        self.remember()
        return effects

    def accepted(self, before: State, command: Command) -> None:
        """Further checks after a command."""

    def copied(self) -> bytes:
        return self.copied_of(self.state)

    @staticmethod
    def copied_of(state: State) -> bytes:
        return b"".join(map(pack, encode_state(state)))

    def check_fence(self, before: State, command: Command) -> None:
        generation = getattr(command, "generation", None)
        if generation is not None:
            assert before.pipelines[command.pipeline].generation == generation  # type: ignore[union-attr]

    def follow(self, effect: Effect) -> None:
        match effect:
            case Release(source, None):
                assert not readers(self.state, source)
                self.released.pop(source, None)
            case Release(source, segments):
                assert segments is not None
                old = self.released.get(source, {})
                assert all(segments.get(name, 0) >= offset for name, offset in old.items()), "never goes back"
                self.released[source] = dict(segments)
                for name in segments:
                    if segments[name] > old.get(name, 0):
                        complete = [p.position(p.complete, name) for p in readers(self.state, source)]
                        assert segments[name] <= min(complete), "never passes a complete cut"
            case Truncate(segments):
                for name, offset in segments.items():
                    floors = [p.position(p.floor, name) for p in readers(self.state, source_of(name))]
                    sinks = sinks_of(self.state, name)
                    assert floors or any(not sink.begun for sink in sinks), "what was there before all sinks stays"
                    assert offset <= min([*floors, *(sink.at for sink in sinks)]), "never past what somebody needs"
                    self.truncated[name] = max(offset, self.truncated.get(name, 0))
            case _:
                pass

    def remember(self) -> None:
        for pipeline in self.state.pipelines.values():
            for epoch, cut in pipeline.cuts.items():
                known = self.returned.setdefault((pipeline.incarnation, epoch), cut)
                assert known == cut, "the same start has the same end"
            for number, batch in pipeline.epochs.items():
                key = pipeline.incarnation, number
                assert self.merged.setdefault(key, (batch.start, batch.end)) == (batch.start, batch.end)

    def generation(self, name: str, behind: int) -> int:
        pipeline = self.state.pipelines.get(name)
        return (pipeline.generation if pipeline else 1) - behind

    @rule(
        name=st.sampled_from(NAMES),
        sources=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=2, unique=True),
        outputs=st.sampled_from([None, (), ("out",), ("out",), ("out", "late"), ("out", "late")]),
        again=st.booleans(),
        inputs=st.sampled_from([("in",), ("in", "other")]),
        start=st.none() | st.integers(0, 50),
    )
    def start(
        self, name: str, sources: list[str], outputs: Any, again: bool, inputs: tuple[str, ...], start: int | None
    ) -> None:
        pipeline = self.state.pipelines.get(name)
        request = pipeline.request if again and pipeline and pipeline.request else f"request {self.requests}"
        self.requests += 1
        segments = [] if start is None else [segment for source in sources for segment in SEGMENTS[source]]
        starting = dict.fromkeys(segments, start or 0)
        given = {key: (tuple(sources), starting) for key in inputs}
        self.do(Start(name, request, given, outputs, NO_LIMITS))
        if pipeline and request == pipeline.request:
            assert self.state.pipelines[name].generation == pipeline.generation

    @rule(
        name=st.sampled_from(NAMES),
        behind=st.sampled_from([0, 0, 0, 1]),
        key=st.sampled_from(["in", "in", "other"]),
        add=st.integers(0, 30),
        watermark=st.sampled_from([None, 1, 5]),
    )
    def plan(self, name: str, behind: int, key: str, add: int, watermark: int | None) -> None:
        pipeline = self.state.pipelines.get(name)
        names = [] if pipeline is None else [name for source in pipeline.sources for name in SEGMENTS.get(source, [])]
        grown = {name: pipeline.position(pipeline.planned, name) + add for name in names} if pipeline else {}
        grown |= self.replays(name, pipeline, add) if pipeline else {}
        self.do(Plan(name, self.generation(name, behind), key, grown, watermark))

    def replays(self, name: str, pipeline: Pipeline, add: int) -> dict[str, int]:
        """How far a cut goes in the segments that dead letters were replayed into, if there is something new."""
        found = {}
        for key in pipeline.inputs:
            segment, length = f"pipeline/{name}/replay.{key}", self.lengths.get((name, f"replay.{key}"), 0)
            at = pipeline.position(pipeline.planned, segment)
            if source_of(segment) in pipeline.sources and length > at:
                found[segment] = min(at + add, length)
        return found

    @rule(name=st.sampled_from(NAMES), behind=st.sampled_from([0, 0, 1]), key=st.sampled_from(["in", "other"]))
    def ask(self, name: str, behind: int, key: str) -> None:
        if (pipeline := self.state.pipelines.get(name)) is None:
            return
        start = max(NO_EPOCH, pipeline.planned - behind)
        end = answer(pipeline, key, start)
        self.do(Ask(name, pipeline.generation, key, start, start if end is None else end))

    @rule(name=st.sampled_from(NAMES), start=st.integers(-2, 3), end=st.integers(-2, 3))
    def read(self, name: str, start: int, end: int) -> None:
        self.do(Read(name, self.generation(name, 0), start, end))

    @rule(
        name=st.sampled_from(NAMES),
        behind=st.sampled_from([None, 0, 0, 0, 1]),
        next_batch=st.sampled_from([0, 1, 1, 1, 2]),
        port=st.sampled_from(["out", "out", "late"]),
        size=st.integers(0, 9),
    )
    def merge(self, name: str, behind: int | None, next_batch: int, port: str, size: int) -> None:
        pipeline = self.state.pipelines.get(name)
        last = pipeline.last_epoch if pipeline and pipeline.last_epoch is not None else -1
        ends = {each: self.lengths.get((name, each), 0) for each in (*(pipeline.ports if pipeline else ()), port)}
        ends[port] += size
        generation = None if behind is None else self.generation(name, behind)
        batch = max(0, last + next_batch)
        known = pipeline is not None and batch in pipeline.epochs
        command = Merge(name, generation, batch, ends, ((port, "staged"),))
        outdated = pipeline is not None and any(
            one.is_left_out != one.is_wanted and is_read_now(pipeline, *place) for place, one in pipeline.buried.items()
        )
        effects = self.do(command)
        merges = [effect for effect in effects if isinstance(effect, Merges)]
        if merges:
            assert not known, "a batch is merged once"
            assert not outdated, "what was buried while it was running is in neither output"
            self.lengths |= {(name, each): end for each, end in ends.items()}
            after = self.state.pipelines[name]
            assert merges == [Merges(((f"pipeline/{name}/{port}", "staged"),))]
            numbers = [*after.epochs]
            assert numbers == [*range(numbers[0], numbers[-1] + 1)]
            ranges = [*after.epochs.values()]
            assert all(a.end == b.start for a, b in pairwise(ranges)), "contiguous"

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), merges=st.booleans())
    def run(self, name: str, count: int, merges: bool) -> None:
        """What a driver does if nothing goes wrong."""
        for _ in range(count):
            self.plan(name, 0, self.leader(name), 1, 5)
            if merges:
                self.merge(name, 0, 1, "out", 1)

    def leader(self, name: str) -> str:
        pipeline = self.state.pipelines.get(name)
        return (pipeline.leader if pipeline else None) or "in"

    @rule(name=st.sampled_from(NAMES), behind=st.sampled_from([0, 0, 1]), back=st.integers(-1, 2))
    def complete(self, name: str, behind: int, back: int) -> None:
        pipeline = self.state.pipelines.get(name)
        epoch = max(NO_EPOCH, pipeline.planned - back) if pipeline else NO_EPOCH
        self.do(Complete(name, self.generation(name, behind), epoch))

    @rule(name=st.sampled_from(NAMES), rarely=st.integers(0, 4))
    def reset(self, name: str, rarely: int) -> None:
        if not rarely:
            self.do(Reset(name))

    @rule(name=st.sampled_from(NAMES), origin=st.sampled_from(NAMES))
    def fork(self, name: str, origin: str) -> None:
        self.do(Fork(name, origin))

    @rule(name=st.sampled_from(NAMES), rarely=st.integers(0, 4), outputs=st.booleans())
    def drop(self, name: str, rarely: int, outputs: bool) -> None:
        if rarely:
            return
        self.do(Drop(name))
        if outputs and not readers(self.state, f"pipeline:{name}/out"):
            self.lengths = {key: length for key, length in self.lengths.items() if key[0] != name}

    @rule(
        name=st.sampled_from(NAMES),
        at=st.lists(st.tuples(st.sampled_from(["connector/s/0", "connector/t/0"]), st.integers(0, 60)), min_size=1),
        ahead=st.booleans(),
        undo=st.booleans(),
    )
    def bury(self, name: str, at: list[tuple[str, int]], ahead: bool, undo: bool) -> None:
        """Mostly events that are not committed yet. What the running batch leaves out stays the same."""
        pipeline = self.state.pipelines.get(name)
        if pipeline is None:
            return
        shift = {one: pipeline.position(pipeline.planned if ahead else pipeline.running[0], one) for one, _ in at}
        before = left_out(pipeline, *pipeline.running)
        self.do(Bury(name, tuple((one, shift[one] + add, shift[one] + add + 1) for one, add in at), "why", undo))
        assert left_out(self.state.pipelines[name], *pipeline.running) == before

    @rule(name=st.sampled_from(NAMES))
    def attach(self, name: str) -> None:
        self.do(Attach(name, self.generation(name, 0)))

    @rule(mode=st.sampled_from(["complete", "keep"]))
    def retain(self, mode: str) -> None:
        self.do(Retain(mode, 0))

    @precondition(lambda self: self.state.pipelines)
    @invariant()
    def epochs_are_in_order(self) -> None:
        for pipeline in self.state.pipelines.values():
            assert pipeline.floor <= pipeline.complete <= pipeline.planned
            assert pipeline.proved <= pipeline.planned
            assert pipeline.floor in pipeline.cuts
            assert pipeline.complete in pipeline.cuts
            assert pipeline.generation <= self.state.generations
            for (segment, offset), one in pipeline.buried.items():
                assert one.is_left_out or one.is_wanted
                assert offset >= pipeline.position(pipeline.floor, segment), "Spark may read it again"
                if pipeline.is_committed(segment, offset):
                    assert one.is_left_out, "what was not left out is not reported as a dead letter"

    @invariant()
    def a_snapshot_is_the_state(self) -> None:
        head, *rest = [unpack(pack(entry)) for entry in encode_state(self.state)]
        reader = SnapshotReader(head)
        assert all(map(reader.add, rest))
        assert reader.state == self.state

    def teardown(self) -> None:
        state = State()
        for command in self.commands:
            state, _ = apply(state, decode(unpack(pack(encode(command)))))
        assert state == self.state, "the ledger brings it back"
