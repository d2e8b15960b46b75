"""Invariants of sinks after any command, checked on the states alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from penstock.coordinator.machine.commands import Attempt, Bind, Command, Decide, Drop, Follow, Park, Reset, Unbind
from penstock.coordinator.machine.state import Pipeline, Sink, State
from penstock.core.types import NO_EPOCH


@dataclass
class Binding:
    """A sink while it is bound."""

    incarnation: int
    complete: int
    """What was complete when it came."""
    begun: int
    """Where it was in the output then."""
    taken: set[tuple[int, int]] = field(default_factory=set)
    """(incarnation, batch) that it was given, or that were parked."""
    plain: bool = True
    """It has voted all the time, and nothing was parked."""


class SinksModel:
    def __init__(self) -> None:
        self.bindings: dict[tuple[str, str], Binding] = {}
        self.open: dict[str, int] = {}
        """The round of each pipeline that may still be decided."""
        self.latest: dict[str, int] = {}
        """The last round of each name, open or not."""
        self.attempts = 0

    def accepted(self, before: State, after: State, command: Command) -> None:
        for name, old in before.pipelines.items():
            new = after.pipelines.get(name)
            if new is None:
                assert isinstance(command, Drop)
                continue
            for key, sink in old.sinks.items():
                if key in new.sinks:
                    self._moved(name, key, old, new, command)
                else:
                    assert command == Unbind(name, key), "nothing else lets a sink go"
                assert not isinstance(command, Reset) or new.sinks[key] == sink, "a reset leaves it where it is"
        self._rounds(before, after, command)
        self._bound(after)

    def _moved(self, name: str, key: str, old: Pipeline, new: Pipeline, command: Command) -> None:
        was, now, binding = old.sinks[key], new.sinks[key], self.bindings[name, key]
        assert (now.port, now.begun) == (was.port, was.begun)
        assert now.at >= was.at, "never goes back"
        binding.plain &= was.votes and now.votes and not now.parked
        if now.at == was.at:
            assert (now.sent, now.decided, now.parked) == (was.sent, was.decided, was.parked)
            return
        assert isinstance(command, Decide | Follow | Park)
        assert command.pipeline == name
        ends = {number: batch.ends.get(was.port, 0) for number, batch in old.epochs.items()}
        assert now.at == ends[command.epoch], "it moves to the end of a batch"
        assert all(end <= was.at for number, end in ends.items() if number < command.epoch), "in order"
        taken = old.incarnation, command.epoch
        assert taken not in binding.taken, "each batch once"
        binding.taken.add(taken)
        _check_given(key, old, was, now, command)

    def _rounds(self, before: State, after: State, command: Command) -> None:
        match command:
            case Attempt(name):
                number = after.pipelines[name].attempt
                assert number == after.attempts > self.attempts, "no number is used twice"
                self.attempts = self.open[name] = self.latest[name] = number
            case Decide(name, attempt, batch, _):
                assert self.open.pop(name, None) == attempt, "nothing about the round has changed since it began"
                voting = [sink for sink in after.pipelines[name].sinks.values() if sink.votes]
                ends = after.pipelines[name].epochs[batch].ends
                assert all(sink.at >= ends.get(sink.port, 0) for sink in voting), "all or none"
            case Bind(name) | Unbind(name) | Park(name) | Reset(name) | Drop(name):
                if after is not before:
                    self.open.pop(name, None)
        assert after.attempts == self.attempts

    def _bound(self, state: State) -> None:
        """The sinks that are bound now."""
        now = {(name, key): (p, sink) for name, p in state.pipelines.items() for key, sink in p.sinks.items()}
        self.bindings = {
            place: self.bindings.get(place) or Binding(pipeline.incarnation, pipeline.complete, sink.at)
            for place, (pipeline, sink) in now.items()
        }

    def check(self, state: State) -> None:
        for name, pipeline in state.pipelines.items():
            for key, sink in pipeline.sinks.items():
                self._check_complete(self.bindings[name, key], pipeline, sink)
            for (begun, one), (other_begun, other) in combinations(self._plain(name, pipeline), 2):
                if (one.port, begun) == (other.port, other_begun):
                    assert one.at == other.at, "sinks that vote move together"

    def _plain(self, name: str, pipeline: Pipeline) -> Iterator[tuple[int, Sink]]:
        for key, sink in pipeline.sinks.items():
            binding = self.bindings[name, key]
            if binding.plain and sink.votes:
                yield binding.begun, sink

    @staticmethod
    def _check_complete(binding: Binding, pipeline: Pipeline, sink: Sink) -> None:
        lacking = [batch for batch in pipeline.epochs.values() if batch.ends.get(sink.port, 0) > sink.at]
        before = binding.complete if binding.incarnation == pipeline.incarnation else NO_EPOCH
        has = lacking[0].start if lacking else pipeline.merged
        assert pipeline.complete <= max(has, before), "complete is what every sink has"


def _check_given(key: str, old: Pipeline, was: Sink, now: Sink, command: Decide | Follow | Park) -> None:
    match command:
        case Decide(name, attempt, batch, sent):
            assert was.votes
            assert now.sent == sent[key] >= was.sent
            assert (now.decided, now.parked) == (f"{name}:{batch}:{attempt}", was.parked)
        case Follow(_, sink, batch, after):
            assert sink == key
            assert not was.votes
            assert now.sent == after >= was.sent
            assert (now.decided, now.parked) == (was.decided, was.parked)
            ends = old.epochs[batch].ends
            voting = [other for other in old.sinks.values() if other.votes]
            assert all(other.at >= ends.get(other.port, 0) for other in voting), "not before the decision"
        case Park(_, sink, _):
            assert sink == key
            assert (now.sent, now.decided, now.parked) == (was.sent, was.decided, was.parked + 1), "no gap in its ids"
