"""Any sequence of commands keeps the coordinator's guarantees."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from penstock.coordinator.machine.commands import (
    Attempt,
    Bind,
    Command,
    Decide,
    Follow,
    Merges,
    Park,
    Read,
    Replay,
    ReplayChosen,
    Reset,
    Unbind,
)
from penstock.coordinator.machine.delivery import next_round, next_to_follow, voters
from penstock.coordinator.machine.replays import is_replayed, waiting_bytes
from penstock.coordinator.machine.state import Pipeline, State
from tests.coordinator.machine.epochs_machine import NAMES, EpochsMachine
from tests.coordinator.machine.sinks_model import SinksModel

SINKS = {"v": ("out", True), "w": ("out", True), "late": ("late", True), "f": ("out", False), "g": ("late", False)}
KEYS = [*SINKS]


class Machine(EpochsMachine):
    """With sinks: rounds that are decided, abandoned, or invalidated by other commands."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SinksModel()
        self.was_accepted = False

    def accepted(self, before: State, command: Command) -> None:
        self.was_accepted = True
        self.model.accepted(before, self.state, command)

    def is_accepted(self, command: Command) -> bool:
        self.was_accepted = False
        self.do(command)
        return self.was_accepted

    def pipeline(self, name: str) -> Pipeline:
        return self.state.pipelines.get(name) or Pipeline(incarnation=0, generation=0)

    @rule(
        name=st.sampled_from(NAMES),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True),
        url=st.sampled_from(["one", "one", "one", "two"]),
        odd=st.sampled_from(["", "", "", "", "port", "votes"]),
    )
    def bind(self, name: str, keys: list[str], url: str, odd: str) -> None:
        """As the service does it: a new sink starts where the output ends."""
        sinks = {}
        for key in keys:
            port, votes = SINKS[key]
            port = {"out": "late", "late": "elsewhere"}[port] if odd == "port" else port
            sinks[key] = port, url, votes is not (odd == "votes"), self.lengths.get((name, port), 0)
        old = self.pipeline(name)
        accepted = self.is_accepted(Bind(name, sinks))
        undeclared = old.outputs is not None and any(port not in old.outputs for port, *_ in sinks.values())
        moved = any(key in old.sinks and old.sinks[key].port != port for key, (port, *_) in sinks.items())
        assert accepted != (undeclared or moved)

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS), rarely=st.integers(0, 2))
    def unbind(self, name: str, key: str, rarely: int) -> None:
        if not rarely:
            bound = key in self.pipeline(name).sinks
            assert self.is_accepted(Unbind(name, key)) == bound

    @initialize(keys=st.lists(st.sampled_from(KEYS), unique=True), declared=st.booleans(), late=st.booleans())
    def begin(self, keys: list[str], declared: bool, late: bool) -> None:
        """Mostly with a pipeline that has sinks: without them most commands have no effect."""
        if keys:
            self.wait("a", keys[:1] if late else keys, declared)
            self.wait("a", keys, declared)

    @rule(
        name=st.sampled_from(NAMES),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True),
        declared=st.booleans(),
    )
    def wait(self, name: str, keys: list[str], declared: bool) -> None:
        """Produce output that sinks wait for."""
        if not self.pipeline(name).outputs:
            outputs = ("out", "late") if declared else None
            self.start(name, ["s"], outputs, again=False, inputs=("in",), start=0)
        self.bind(name, keys, "one", "")
        for port in ("out", "late"):
            self.plan(name, 0, self.leader(name), 1, 5)
            pipeline = self.pipeline(name)
            self.do(Read(name, pipeline.generation, pipeline.merged, pipeline.planned))  # all that is not merged yet
            self.merge(name, 0, 1, port, 3)

    @rule(start=st.sampled_from([None, 0]), count=st.integers(0, 7))
    def read_output(self, start: int | None, count: int) -> None:
        """A pipeline that reads what sinks receive: it may have read none of it yet, or be far ahead of them."""
        if "reader" not in self.state.pipelines:
            self.start("reader", ["pipeline:a/out"], (), again=False, inputs=("in",), start=start)
        for _ in range(count):
            self.plan("reader", 0, "in", 3, 5)

    @rule(name=st.sampled_from(NAMES))
    def attempt(self, name: str) -> None:
        assert self.is_accepted(Attempt(name)) == (name in self.state.pipelines)

    @rule(
        name=st.sampled_from(NAMES),
        back=st.sampled_from([0, 0, 0, 1]),
        shift=st.sampled_from([0, 0, 0, -1, 1]),
        sent=st.sampled_from([0, 5, 5, -1]),
        missing=st.sampled_from([False, False, False, True]),
    )
    def decide(self, name: str, back: int, shift: int, sent: int, missing: bool) -> None:
        """The last round with that name, which may be over, or the one before; for the next epoch, or another one."""
        pipeline = self.pipeline(name)
        attempt, batch = self.model.latest.get(name, 0) - back, next_round(pipeline)
        asked = {} if batch is None else voters(pipeline, pipeline.epochs[batch])
        given = {key: sink.sent + sent for key, sink in asked.items()}
        if missing and given:
            given.popitem()
        legal = batch is not None and attempt == self.model.open.get(name) and not (shift or missing)
        legal = legal and all(given[key] >= sink.sent for key, sink in asked.items())
        assert self.is_accepted(Decide(name, attempt, (batch or 0) + shift, given)) == legal

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(1, 3),
        more=st.lists(st.sampled_from(KEYS), unique=True),
        shift=st.sampled_from([0, 0, -1, 1]),
        sent=st.sampled_from([5, -1]),
        missing=st.booleans(),
    )
    def rounds(self, name: str, count: int, more: list[str], shift: int, sent: int, missing: bool) -> None:
        """What delivery does. A refused decision leaves the round as it is."""
        for _ in range(count):
            if more:
                self.wait(name, more, declared=True)
            self.attempt(name)
            self.decide(name, 0, shift, sent, missing)
            self.decide(name, 0, 0, 5, missing=False)
            for key in self.pipeline(name).sinks:
                self.follow_next(name, key, 0, 2)

    @rule(
        name=st.sampled_from(NAMES),
        key=st.sampled_from(KEYS),
        between=st.sampled_from(["bind", "unbind", "park", "reset"]),
    )
    def overtaken(self, name: str, key: str, between: str) -> None:
        """A round that could be decided if nothing happened in between."""
        self.wait(name, [key], declared=True)
        self.attempt(name)
        before = self.state
        match between:
            case "bind":
                self.bind(name, [key], "three", "")
            case "unbind":
                self.unbind(name, key, 0)
            case "park":
                self.park(name, key, 0)
            case _:
                self.do(Reset(name))
                self.run(name, 1, merges=True)
        if self.state is not before:
            assert name not in self.model.open
        self.decide(name, 0, 0, 5, missing=False)

    @rule(
        name=st.sampled_from(NAMES),
        key=st.sampled_from(KEYS),
        shift=st.sampled_from([0, 0, 0, -1, 1]),
        sent=st.sampled_from([0, 5, 5, -1]),
    )
    def follow_next(self, name: str, key: str, shift: int, sent: int) -> None:
        pipeline = self.pipeline(name)
        sink = pipeline.sinks.get(key)
        batch = None if sink is None else next_to_follow(pipeline, key)
        after = sink.sent + sent if sink else 0
        legal = sink is not None and not sink.votes and batch is not None and not shift and sent >= 0
        assert self.is_accepted(Follow(name, key, (batch or 0) + shift, after)) == legal

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS), shift=st.sampled_from([0, 0, -1, 1]))
    def park(self, name: str, key: str, shift: int) -> None:
        pipeline = self.pipeline(name)
        sink = pipeline.sinks.get(key)
        lacking = [] if sink is None else [n for n, b in pipeline.epochs.items() if b.ends.get(sink.port, 0) > sink.at]
        staged = ((f"pipeline/{name}/parked.{key}", "copy"),)
        self.was_accepted = False
        effects = self.do(Park(name, key, (lacking[0] if lacking else 0) + shift, staged))
        assert self.was_accepted == (bool(lacking) and not shift)
        assert [effect for effect in effects if isinstance(effect, Merges)] == [Merges(staged)] * self.was_accepted

    @rule(
        name=st.sampled_from(NAMES),
        port=st.sampled_from(["late", "late", "err"]),
        key=st.sampled_from(["in", "in", "other"]),
        size=st.integers(0, 9),
        behind=st.sampled_from([0, 0, 0, 1]),
    )
    def replay(self, name: str, port: str, key: str, size: int, behind: int) -> None:
        """As the service does it: a new reader starts where the segment ended before."""
        pipeline, target = self.pipeline(name), f"pipeline/{name}/replay.{key}"
        after = pipeline.replayed.get(port, 0) - behind
        start, staged = self.lengths.get((name, f"replay.{key}"), 0), ((target, "copy"),)
        self.was_accepted = False
        effects = self.do(Replay(name, port, after, after + size, {key: start}, staged))
        assert self.was_accepted == (key in pipeline.inputs and size > 0 and not behind)
        assert [effect for effect in effects if isinstance(effect, Merges)] == [Merges(staged)] * self.was_accepted
        if self.was_accepted:
            self.lengths[name, f"replay.{key}"] = start + size
            replayed = self.pipeline(name)
            assert replayed.position(replayed.planned, target) <= start, "nothing of it was read before"
            assert f"pipeline:{name}/replay.{key}" in replayed.inputs[key].sources

    @rule(name=st.sampled_from(NAMES), start=st.integers(0, 30), size=st.integers(1, 3))
    def replay_chosen(self, name: str, start: int, size: int) -> None:
        pipeline = self.pipeline(name)
        end, staged = start + size, ((f"pipeline/{name}/replay.in", "copy"),)
        done = is_replayed(pipeline, "late", start, end)
        overlaps = start < pipeline.replayed.get("late", 0) or any(
            start < last and first < end for first, last in pipeline.chosen.get("late", ())
        )
        if overlaps and not done:
            return  # a dead letter is replayed as a whole
        before = waiting_bytes(pipeline, "late", 0, 1000)
        at = self.lengths.get((name, "replay.in"), 0)
        self.was_accepted = False
        self.do(ReplayChosen(name, "late", ((start, end),), {"in": at}, staged))
        assert self.was_accepted == ("in" in pipeline.inputs and not done)
        if self.was_accepted:
            self.lengths[name, "replay.in"] = at + size
            assert waiting_bytes(self.pipeline(name), "late", 0, 1000) == before - size
            assert is_replayed(self.pipeline(name), "late", start, end)

    @invariant()
    def sinks_are_what_they_should_be(self) -> None:
        self.model.check(self.state)


TestMachine = pytest.mark.slow(Machine.TestCase)
TestMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
