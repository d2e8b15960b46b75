"""Any sequence of commands keeps the coordinator's promises."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.coordinator.ledger.snapshot import SnapshotReader, encode_state
from penstock.coordinator.machine import releasing
from penstock.coordinator.machine import state as states
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Ask,
    Command,
    Complete,
    Drop,
    Expire,
    MarkTime,
    Merge,
    Plan,
    Read,
    Reset,
    Retain,
    Start,
    decode,
    encode,
    pack,
    unpack,
)
from penstock.coordinator.machine.effects import Effect, Merges, Release, Truncate
from penstock.coordinator.machine.epochs import answer
from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.core.errors import Fenced, LimitExceeded, PenstockError, PipelineError, RequestError

NAMES = ["a", "b", "c"]
SOURCES = ["s", "t", "pipeline:a/out"]
SEGMENTS = {"s": ["connector/s/0", "connector/s/1"], "t": ["connector/t/0"], "pipeline:a/out": ["pipeline/a/out"]}
NO_LIMITS = (None, None, None)


def readers(state: State, source: str) -> list[Pipeline]:
    return [pipeline for pipeline in state.pipelines.values() if source in pipeline.sources]


class Machine(RuleBasedStateMachine):
    """Commands of all kinds, legal and not, from drivers old and new; `cuts` remembers what was ever told."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.told: dict[tuple[int, int], Any] = {}
        self.merged: dict[tuple[int, int], tuple[int, int]] = {}
        self.released: dict[str, dict[str, int]] = {}
        self.truncated: dict[str, int] = {}
        self.requests = 0

    def do(self, command: Command) -> tuple[Effect, ...]:
        before, copy = self.state, self.copied()
        try:
            self.state, effects = apply(self.state, command)
        except RequestError:
            assert self.state is before
            assert self.copied() == copy, "a refused command changes nothing"
            return ()
        assert self.copied_of(before) == copy, "a state never changes, it is followed by another one"
        self.check_fence(before, command)
        for effect in effects:
            self.follow(effect)
        self.remember()
        return effects

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
                    assert offset <= min(floors), "never past what a pipeline may read again"
                    self.truncated[name] = max(offset, self.truncated.get(name, 0))
            case _:
                pass

    def remember(self) -> None:
        for pipeline in self.state.pipelines.values():
            for epoch, cut in pipeline.cuts.items():
                known = self.told.setdefault((pipeline.incarnation, epoch), cut)
                assert known == cut, "the same start has the same end"
            for number, batch in pipeline.batches.items():
                key = pipeline.incarnation, number
                assert self.merged.setdefault(key, (batch.start, batch.end)) == (batch.start, batch.end)

    def generation(self, name: str, behind: int) -> int:
        pipeline = self.state.pipelines.get(name)
        return (pipeline.generation if pipeline else 1) - behind

    @rule(
        name=st.sampled_from(NAMES),
        sources=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=2, unique=True),
        outputs=st.sampled_from([None, (), ("out",)]),
        again=st.booleans(),
        inputs=st.sampled_from([("in",), ("in", "other")]),
        start=st.integers(0, 50),
    )
    def start(
        self, name: str, sources: list[str], outputs: Any, again: bool, inputs: tuple[str, ...], start: int
    ) -> None:
        pipeline = self.state.pipelines.get(name)
        request = pipeline.request if again and pipeline and pipeline.request else f"request {self.requests}"
        self.requests += 1
        starting = {segment: start for source in sources for segment in SEGMENTS[source]}
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
        ends = {} if pipeline is None else pipeline.segments(pipeline.planned)
        grown = {segment: offset + add for segment, offset in ends.items()}
        self.do(Plan(name, self.generation(name, behind), key, grown, watermark))

    @rule(name=st.sampled_from(NAMES), behind=st.sampled_from([0, 0, 1]), key=st.sampled_from(["in", "other"]))
    def ask(self, name: str, behind: int, key: str) -> None:
        if (pipeline := self.state.pipelines.get(name)) is None:
            return
        start = max(0, pipeline.planned - behind)
        end = answer(pipeline, key, start)
        self.do(Ask(name, pipeline.generation, key, start, start if end is None else end))

    @rule(name=st.sampled_from(NAMES), start=st.integers(-1, 3), end=st.integers(-1, 3))
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
        last = pipeline.last_batch if pipeline and pipeline.last_batch is not None else -1
        ends = pipeline.batches[last].ends.get(port, 0) if pipeline and last >= 0 else 0
        generation = None if behind is None else self.generation(name, behind)
        batch = max(0, last + next_batch)
        known = pipeline is not None and batch in pipeline.batches
        command = Merge(name, generation, batch, {port: ends + size}, ((port, "staged"),))
        effects = self.do(command)
        merges = [effect for effect in effects if isinstance(effect, Merges)]
        if merges:
            assert not known, "a batch is merged once"
            after = self.state.pipelines[name]
            assert merges == [Merges(((f"pipeline/{name}/{port}", "staged"),))]
            numbers = [*after.batches]
            assert numbers == [*range(numbers[0], numbers[-1] + 1)]
            ranges = [*after.batches.values()]
            assert all(a.end == b.start for a, b in pairwise(ranges)), "contiguous"

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), merges=st.booleans())
    def run(self, name: str, count: int, merges: bool) -> None:
        """What a driver does that nothing goes wrong with."""
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
        epoch = max(0, pipeline.planned - back) if pipeline else 0
        self.do(Complete(name, self.generation(name, behind), epoch))

    @rule(name=st.sampled_from(NAMES), rarely=st.integers(0, 4))
    def reset(self, name: str, rarely: int) -> None:
        if not rarely:
            self.do(Reset(name))

    @rule(name=st.sampled_from(NAMES), rarely=st.integers(0, 4))
    def drop(self, name: str, rarely: int) -> None:
        if not rarely:
            self.do(Drop(name))

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

    @invariant()
    def a_snapshot_is_the_state(self) -> None:
        head, *rest = [unpack(pack(entry)) for entry in encode_state(self.state)]
        reader = SnapshotReader(head)
        assert all(map(reader.add, rest))
        assert reader.state == self.state


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def started(name: str = "a", **more: Any) -> State:
    given = {"in": (("s",), {"connector/s/0": 10})}
    return apply(State(), Start(name, "first", given, more.get("outputs", ("out",)), NO_LIMITS))[0]


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state, _ = apply(state, command)
    return state


def epoch(state: State, end: int, batch: int | None = None, name: str = "a") -> State:
    """Cut up to `end`; merged as `batch`."""
    generation = state.pipelines[name].generation
    state = after(state, Plan(name, generation, "in", {"connector/s/0": end}, None))
    return state if batch is None else after(state, Merge(name, generation, batch, {"out": end}))


def test_a_command_comes_back_from_the_ledger_as_it_was() -> None:
    commands: list[Command] = [
        Start("a", "r", {"in": (("s", "t"), {"x": 1})}, ("out",), (1, None, 3)),
        Plan("a", 1, "in", {"connector/s/0": 9}, None),
        Ask("a", 1, "in", 0, 1),
        Read("a", 1, 0, 1),
        Merge("a", None, 3, {"out": 7}),
        Retain("time", 5),
        Drop("a"),
    ]
    for command in commands:
        assert decode(unpack(pack(encode(command)))) == command


def test_the_segments_that_were_staged_are_not_in_the_ledger() -> None:
    assert b"staging" not in pack(encode(Merge("a", 1, 0, {}, (("out", "staging/a/1/0/0-0/out"),))))


def test_two_inputs_of_one_source_each_begin_where_they_were_told() -> None:
    given = {"old": (("s",), {"connector/s/0": 0}), "new": (("s",), {"connector/s/0": 100})}
    state = after(State(), Start("a", "r", given, (), NO_LIMITS), Plan("a", 1, "old", {"connector/s/0": 60}, None))
    pipeline = state.pipelines["a"]
    assert pipeline.offset("old", 1) == {"connector/s/0": 60}
    assert pipeline.offset("new", 0) == pipeline.offset("new", 1) == {"connector/s/0": 100}


def test_a_batch_that_moved_nothing_holds_no_epoch() -> None:
    state = epoch(started(), 20, batch=0)
    state = after(state, Ask("a", 1, "in", 1, 1), Merge("a", 1, 1, {"out": 20}))
    assert state.pipelines["a"].batches[1][:2] == (1, 1)
    again = after(state, Start("a", "second", {"in": (("s",), {})}, ("out",), NO_LIMITS))
    assert apply(again, Merge("a", 2, 1, {"out": 20}))[0] is again


def test_a_batch_that_was_merged_with_other_epochs_is_an_error() -> None:
    state = epoch(epoch(started(), 20, batch=0), 30)
    with pytest.raises(PipelineError, match="batch 0 was merged with the epochs after 0 up to 1"):
        apply(state, Merge("a", 1, 0, {}))


def test_an_older_generation_is_fenced_from_everything() -> None:
    state = epoch(started(), 20)
    state = after(state, Start("a", "second", {"in": (("s",), {})}, ("out",), NO_LIMITS))
    commands: list[Command] = [
        Plan("a", 1, "in", {"connector/s/0": 50}, None),
        Ask("a", 1, "in", 0, 1),
        Read("a", 1, 0, 1),
        Merge("a", 1, 0, {}),
        Complete("a", 1, 1),
    ]
    for command in commands:
        with pytest.raises(Fenced, match="generation 1 of pipeline 'a' was followed by generation 2"):
            apply(state, command)


def test_a_pipeline_that_is_dropped_and_made_again_has_no_old_number() -> None:
    state = after(started(), Drop("a"))
    state = after(state, Start("a", "again", {}, None, NO_LIMITS))
    assert (state.pipelines["a"].generation, state.pipelines["a"].incarnation) == (2, 2)


def test_what_spark_may_read_again_is_not_truncated() -> None:
    state = started()
    truncated: Mapping[str, int] = {}
    for number in range(6):
        state, _ = apply(state, Plan("a", 1, "in", {"connector/s/0": 20 + 10 * number}, None))
        state, effects = apply(state, Merge("a", 1, number, {"out": number}))
        state, more = apply(state, Ask("a", 1, "in", number + 1, number + 1))
        truncated = next((e.segments for e in (*effects, *more) if isinstance(e, Truncate)), truncated)
    # Epoch 6 is proved: what epoch 4 begins with is kept, which is where epoch 3 ends.
    assert state.pipelines["a"].proved == 6
    assert truncated == {"connector/s/0": 40}


def test_a_reset_pipeline_holds_back_what_it_held_until_it_starts_again() -> None:
    state = epoch(started(), 20, batch=0)
    state, effects = apply(state, Reset("a"))
    assert not [effect for effect in effects if isinstance(effect, Release)]
    pipeline = state.pipelines["a"]
    assert (pipeline.incarnation, pipeline.planned, pipeline.merged) == (2, 0, 0)
    assert pipeline.position(0, "connector/s/0") == 10
    state = after(state, Start("a", "again", {"in": (("s",), {"connector/s/0": 77})}, None, NO_LIMITS))
    assert state.pipelines["a"].offset("in", 0) == {"connector/s/0": 77}


def test_only_the_last_cuts_and_batches_are_kept() -> None:
    state = started()
    for number in range(states.CUTS_MAX + 5):
        state = epoch(state, 20 + number, batch=number)
    pipeline = state.pipelines["a"]
    assert [*pipeline.cuts] == [*range(6, states.CUTS_MAX + 6)]
    assert len(pipeline.batches) == states.BATCHES_MAX


def test_a_command_costs_no_more_for_each_source_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def counted(name: str) -> str:
        looked.append(name)
        return source_of(name)

    monkeypatch.setattr(releasing, "source_of", counted)
    starting = {f"connector/s{number}/0": 0 for number in range(300)}
    sources = tuple(f"s{number}" for number in range(300))
    state, effects = apply(State(), Start("p", "r", {"in": (sources, starting)}, (), NO_LIMITS))
    assert len([effect for effect in effects if isinstance(effect, Release)]) == 300
    assert state.released["s7"] == {"connector/s7/0": 0}
    assert len(looked) < 10 * 300


def test_a_sink_alone_is_no_way_around_the_number_of_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.coordinator.machine.apply.PIPELINES_MAX", 1)
    state, _ = apply(State(), Merge("one", None, 0, {}))
    apply(state, Merge("one", None, 1, {}))
    with pytest.raises(LimitExceeded):
        apply(state, Merge("two", None, 0, {}))


def test_every_error_has_a_hint() -> None:
    state = started()
    commands: list[Command] = [Reset("nobody"), Plan("a", 7, "in", {}, None), Plan("a", 1, "in", {}, None)]
    for command in commands:
        with pytest.raises(PenstockError) as caught:
            apply(state, command)
        assert caught.value.hint


def test_times_of_segments_that_are_deleted_with_a_pipeline_are_forgotten() -> None:
    state, _ = apply(State(), Retain("time", 10))
    state, _ = apply(state, Merge("p", None, 0, {}))
    state, _ = apply(state, MarkTime(1, {"pipeline/p/out": 100, "connector/s/0": 50}))
    state, _ = apply(state, Drop("p", ("pipeline/p/out",)))
    _, effects = apply(state, Expire(1))
    assert effects == (Truncate({"connector/s/0": 50}),)
