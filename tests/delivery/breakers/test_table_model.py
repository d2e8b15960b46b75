"""Breakers and started streams against a model that works differently: in whatever order things happen, a stream may
send exactly when the model allows it, and watchers are called for each change.

The model records only the last signals: it computes the answer from them each time.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.started_streams import StartedStreams
from penstock.delivery.breakers.table import Breakers
from penstock.protocol.api.deployment import BreakerSpec

SOURCES = ("a", "b")
SINKS = ("x", "y")
STREAMS = [StreamRef("a", 1), StreamRef("a", 2), StreamRef("b", 1)]
SPECS = {
    "x": BreakerSpec(),
    "y": BreakerSpec(failing_streams=2, within_seconds=1.0, probe_after_seconds=2.0, probe_after_seconds_max=5.0),
}

_streams = st.sampled_from(STREAMS)
_sinks = st.sampled_from(SINKS)
_sets = st.frozensets(_sinks)


@dataclass
class Model:
    """`lives`: the sinks of each started stream. `signals`: the last signal of a sink for a stream, `open` or `closed`;
    without a signal it is closed. `whole`: the last signal of a sink for itself.
    """

    lives: dict[StreamRef, frozenset[str]] = field(default_factory=dict)
    signals: dict[tuple[str, StreamRef], str] = field(default_factory=dict)
    asked: set[tuple[str, StreamRef]] = field(default_factory=set)
    whole: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SINKS, "closed"))
    paused: set[tuple[str, int | None]] = field(default_factory=set)
    failures: list[tuple[str, StreamRef, float]] = field(default_factory=list)

    def may_send(self, stream: StreamRef) -> bool:
        if stream not in self.lives:
            return False
        if {(stream.connector, None), (stream.connector, stream.stream_id)} & self.paused:
            return False
        signals = [self.whole[sink] for sink in self.lives[stream]]
        signals += [self.signals.get((sink, stream), "closed") for sink in self.lives[stream]]
        signals += ["closed" for sink in self.lives[stream] if (sink, None) in self.paused]
        return set(signals) <= {"open"}

    def ask(self, stream: StreamRef, sinks: frozenset[str]) -> None:
        self.asked |= {(sink, stream) for sink in sinks}

    def forget(self, sink: str, stream: StreamRef) -> None:
        self.asked.discard((sink, stream))
        self.signals.pop((sink, stream), None)
        self.failures = [one for one in self.failures if one[:2] != (sink, stream)]

    def answer(self, sink: str, stream: StreamRef, signal: str) -> None:
        if (sink, stream) in self.asked:
            self.signals[sink, stream] = signal

    def fails(self, sink: str, stream: StreamRef, now: float) -> bool:
        """Whether it is one failure too many."""
        spec = SPECS[sink]
        self.failures.append((sink, stream, now))
        recent = {who for name, who, at in self.failures if name == sink and now - at <= spec.within_seconds}
        if spec.failing_streams is None or len(recent) < spec.failing_streams:
            return False
        self.failures = [one for one in self.failures if one[0] != sink]
        return True


class BreakersAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.breakers = Breakers()
        self.streams = StartedStreams(self.breakers)
        self.now = 0.0
        self.reported: dict[StreamRef, bool] = {}
        self.streams.watchers.append(self.record)
        for sink, spec in SPECS.items():
            self.breakers.configure(sink, spec)
        self.probes: dict[str, StreamRef | None] = {}

    def record(self, stream: StreamRef, may_send: bool) -> None:
        assert self.reported.get(stream, False) is not may_send, "called twice"
        self.reported[stream] = may_send

    # Sources.

    @rule(stream=_streams, sinks=_sets)
    def started(self, stream: StreamRef, sinks: frozenset[str]) -> None:
        self.streams.started(stream, sinks)
        self.model.lives[stream] = sinks
        self.model.ask(stream, sinks)

    @rule(stream=_streams)
    def ended(self, stream: StreamRef) -> None:
        self.streams.ended(stream)
        self.model.lives.pop(stream, None)

    @rule(source=st.sampled_from(SOURCES), sinks=_sets)
    def relinked(self, source: str, sinks: frozenset[str]) -> None:
        self.streams.relinked(source, sinks)
        for stream in [one for one in self.model.lives if one.connector == source]:
            for sink in self.model.lives[stream] - sinks:
                self.model.forget(sink, stream)
                self.probe_of_stream_is_over(sink, stream)
            self.model.lives[stream] = sinks
            self.model.ask(stream, sinks)

    # Sinks.

    @rule(sink=_sinks, stream=_streams)
    def opened(self, sink: str, stream: StreamRef) -> None:
        self.breakers.opened(sink, stream)
        self.model.answer(sink, stream, "open")
        self.probe_of_stream_is_over(sink, stream)

    @rule(sink=_sinks, stream=_streams)
    def closed(self, sink: str, stream: StreamRef) -> None:
        self.breakers.closed(sink, stream, "it is full")
        self.model.answer(sink, stream, "closed")
        self.probe_of_stream_is_over(sink, stream)

    @rule(sink=_sinks)
    def connected(self, sink: str) -> None:
        self.breakers.available(sink)
        self.model.whole[sink] = "open"
        self.model.failures = [one for one in self.model.failures if one[0] != sink]
        self.whole_probe_is_over(sink)

    @rule(sink=_sinks)
    def disconnected(self, sink: str) -> None:
        self.breakers.unavailable(sink, "the line is dead")
        self.whole_closes(sink)

    @rule(sink=_sinks)
    def lost(self, sink: str) -> None:
        self.breakers.lost(sink, "nobody answers", self.now)
        self.whole_closes(sink)

    @rule(sink=_sinks, stream=_streams)
    def failed(self, sink: str, stream: StreamRef) -> None:
        is_too_many = self.breakers.failed(sink, stream, "its connection is gone", self.now)
        self.model.answer(sink, stream, "closed")
        self.probe_of_stream_is_over(sink, stream)
        assert is_too_many == self.model.fails(sink, stream, self.now)
        if is_too_many:
            self.whole_closes(sink)

    @rule(sink=_sinks, stream=_streams)
    def closing_signal(self, sink: str, stream: StreamRef) -> None:
        if stream not in self.model.lives:
            self.streams.forgotten(sink, stream)
            self.model.forget(sink, stream)
            self.probe_of_stream_is_over(sink, stream)

    # Operators.

    @rule(who=st.sampled_from([*SOURCES, *SINKS]), stream_id=st.sampled_from([None, 1, 2]))
    def pause(self, who: str, stream_id: int | None) -> None:
        self.breakers.pauses.pause(who, stream_id)
        self.model.paused.add((who, stream_id))

    @rule(who=st.sampled_from([*SOURCES, *SINKS]), stream_id=st.sampled_from([None, 1, 2]))
    def resume(self, who: str, stream_id: int | None) -> None:
        self.breakers.pauses.resume(who, stream_id)
        self.model.paused.discard((who, stream_id))

    # Time.

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 60.0]))
    def tick(self, seconds: float) -> None:
        due = self.breakers.due()
        self.now += seconds
        begun = self.breakers.tick(self.now)
        assert bool(begun) == (due is not None and due <= self.now)
        for sink, stream in begun:
            assert sink not in self.probes, "one probe at a time"
            assert (sink, None) not in self.model.paused
            assert (self.model.whole[sink] == "open") == (stream is not None)
            self.probes[sink] = stream

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), outcome=st.sampled_from(["delivered", "lost", "nothing"]))
    def probe_ends(self, data: st.DataObject, outcome: str) -> None:
        sink = data.draw(st.sampled_from(sorted(self.probes)))
        stream = self.probes.pop(sink)
        if outcome == "lost" and stream is not None:
            self.probes[sink] = stream
            self.failed(sink, stream)
        elif outcome == "lost":
            self.breakers.lost(sink, "still nobody answers", self.now)
        else:
            (self.breakers.delivered if outcome == "delivered" else self.breakers.nothing_to_probe)(sink, stream)
            self.opens(sink, stream, forgets=outcome == "delivered")

    def opens(self, sink: str, stream: StreamRef | None, *, forgets: bool) -> None:
        if stream is None:
            self.model.whole[sink] = "open"
            if forgets:
                self.model.failures = [one for one in self.model.failures if one[0] != sink]
        else:
            self.model.answer(sink, stream, "open")

    def probe_of_stream_is_over(self, sink: str, stream: StreamRef) -> None:
        if self.probes.get(sink) == stream and sink in self.probes:
            del self.probes[sink]

    def whole_probe_is_over(self, sink: str) -> None:
        if sink in self.probes and self.probes[sink] is None:
            del self.probes[sink]

    def whole_closes(self, sink: str) -> None:
        """A pending probe can no longer be made."""
        self.model.whole[sink] = "closed"
        self.probes.pop(sink, None)

    # Invariants.

    @invariant()
    def sources_send_exactly_when_the_model_allows_it(self) -> None:
        for stream in STREAMS:
            expected = self.model.may_send(stream)
            assert self.streams.may_send(stream) is expected, (stream, self.streams.why(stream))
            assert (self.streams.why(stream) == "") is expected
            assert self.reported.get(stream, False) is expected

    @invariant()
    def sinks_take_what_is_open_and_one_probe(self) -> None:
        for sink in SINKS:
            paused = (sink, None) in self.model.paused
            for stream in STREAMS:
                is_own = self.model.signals.get((sink, stream)) == "open"
                takes = is_own and self.model.whole[sink] == "open" and not paused
                assert self.breakers.takes(sink, stream) is takes
                probed = sink in self.probes and (is_own if self.probes[sink] is None else self.probes[sink] == stream)
                assert self.breakers.admits(sink, stream) is (takes or (probed and not paused))


TestBreakersAgainstModel = pytest.mark.slow(BreakersAgainstModel.TestCase)
TestBreakersAgainstModel.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
