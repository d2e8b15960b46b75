"""A subscription holds acknowledgements and retention of a source for the pipelines of another shard, whatever becomes
of the messages between the two shards.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.coordinator.ledger import SnapshotReader, encode_state
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Advance,
    Command,
    Complete,
    Drop,
    Place,
    Plan,
    Release,
    Reset,
    Serve,
    Start,
    Subscribe,
    Truncate,
    Unsubscribe,
    decode,
    encode,
    pack,
    unpack,
)
from penstock.coordinator.machine.epochs import truncatable
from penstock.coordinator.machine.state import State, Subscription
from penstock.coordinator.machine.subscriptions import NOTHING, Holdings, holding
from penstock.core.errors import Fenced, PipelineError

S, T = "connector/s/0", "connector/s/1"
NO_LIMITS = (None, None, None)
HOME = 1


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state = apply(state, command)[0]
    return state


def started(state: State, name: str, at: int, request: str = "1") -> State:
    return after(state, Start(name, request, {"in": (("s",), {S: at})}, (), NO_LIMITS))


def epoch(state: State, name: str, end: int) -> State:
    """Cut, and committed by Spark with a sink of its own."""
    generation = state.pipelines[name].generation
    state = after(state, Plan(name, generation, "in/1", {S: end}, None))
    return after(state, Complete(name, generation, state.pipelines[name].planned))


def test_a_subscription_counts_as_a_pipeline_in_what_is_acknowledged_and_removed() -> None:
    state = started(State(), "own", 0)
    state = after(state, Subscribe(HOME, 1, 1, "s", "theirs", {S: 0, T: 0}))
    for end in (10, 20, 30, 40, 50):
        state = epoch(state, "own", end)
    assert (state.released["s"], truncatable(state)) == ({S: 0, T: 0}, {S: 0, T: 0})
    state, effects = apply(state, Advance(HOME, 1, 2, "s", ("theirs",), {S: 30, T: 5}, {S: 7, T: 2}))
    assert state.released["s"] == {S: 30, T: 0}
    assert effects == (Release("s", {S: 30, T: 0}), Truncate({S: 7}))
    state, effects = apply(state, Unsubscribe(HOME, 1, 3, "s"))
    assert state.released["s"] == {S: 50, T: 0}
    assert effects[0] == Release("s", {S: 50, T: 0})


def test_without_pipelines_of_its_own_a_shard_lets_go_of_a_source_at_the_end_of_its_last_subscription() -> None:
    state, effects = apply(State(), Subscribe(HOME, 1, 1, "s", "p", {S: 5}))
    assert effects == (Release("s", {S: 5}), Truncate({S: 5}))
    state = after(state, Subscribe(2, 1, 1, "s", "q", {S: 3}), Unsubscribe(HOME, 1, 2, "s"))
    assert state.released == {"s": {S: 5}}, "what was released stays released"
    assert apply(state, Unsubscribe(2, 1, 2, "s"))[1] == (Release("s", None),)


def test_an_older_message_changes_nothing_and_an_old_process_is_refused() -> None:
    state = after(State(), Subscribe(HOME, 4, 1, "s", "p", {S: 0}), Advance(HOME, 4, 5, "s", ("p",), {S: 9}, {S: 3}))
    assert apply(state, Advance(HOME, 4, 4, "s", ("p",), {S: 99}, {S: 99})) == (state, ())
    assert apply(state, Unsubscribe(HOME, 4, 5, "s")) == (state, ())
    for old in (
        Advance(HOME, 3, 9, "s", ("p",), {S: 99}, {S: 99}),
        Unsubscribe(HOME, 3, 9, "s"),
        Advance(HOME, 3, 9, "another", ("p",), {}, {}),
        Subscribe(HOME, 4, 4, "s", "q", {S: 0}),
    ):
        with pytest.raises(Fenced):
            apply(state, old)
    ended = after(state, Unsubscribe(HOME, 4, 6, "s"))
    assert apply(ended, Advance(HOME, 4, 5, "s", ("p",), {S: 10}, {S: 3})) == (ended, ())
    assert ended.subscriptions[HOME, "s"].done is None


def test_a_second_pipeline_of_the_shard_lowers_what_is_retained() -> None:
    state = after(
        State(),
        Subscribe(HOME, 1, 1, "s", "p", {S: 0}),
        Advance(HOME, 1, 2, "s", ("p",), {S: 50}, {S: 40}),
        Subscribe(HOME, 1, 3, "s", "q", {S: 45}),
    )
    assert state.subscriptions[HOME, "s"] == Subscription(1, 3, ("p", "q"), {S: 45}, {S: 40})
    again = after(state, Subscribe(HOME, 1, 3, "s", "q", {S: 47}))
    assert again.subscriptions[HOME, "s"].done == {S: 45}, "a repeated message does not raise it"


def test_what_only_other_shards_have_not_completed_waits_for_a_pipeline_that_reads_it_again() -> None:
    """The source shard may not have acknowledged what its home shard has once released."""
    home = epoch(started(after(State(), Place("s", 0)), "p", 0), "p", 50)
    assert holding(home, "s").done == {S: 50}
    again, effects = apply(home, Reset("p"))
    assert holding(again, "s").done == {S: 0}
    assert Release("s", {S: 0}) in effects, "it is sent"
    second = started(home, "q", 10)
    assert holding(second, "s").done == {S: 10}
    state, effects = apply(
        after(second, Plan("q", second.pipelines["q"].generation, "in/1", {S: 20}, None)),
        Complete("q", second.pipelines["q"].generation, 0),
    )
    assert holding(state, "s").done == {S: 20}
    assert Release("s", {S: 20}) in effects


def test_a_late_answer_from_before_a_start_does_not_hide_what_it_has_retained_in_vain() -> None:
    holdings = Holdings(HOME, 1)
    holdings.offer("s", NOTHING)
    early = holdings.due("s")
    assert isinstance(early, Unsubscribe)
    source = after(State(), holdings.subscribe("s", "p", {S: 5}), early)
    holdings.started("s", NOTHING)
    holdings.answered(early)
    last = holdings.due("s")
    assert last is not None
    assert after(source, last).subscriptions[HOME, "s"].done is None


def test_the_place_of_a_source_never_changes() -> None:
    state = after(State(), Serve(), Place("s", 3))
    assert apply(state, Place("s", 3)) == (state, ())
    with pytest.raises(PipelineError, match="is in shard 3"):
        apply(state, Place("s", 4))


def test_snapshots_and_ledger_entries_have_subscriptions_places_and_the_term() -> None:
    commands: list[Command] = [
        Serve(),
        Place("t", 2),
        Subscribe(HOME, 1, 1, "s", "p", {S: 5}),
        Advance(HOME, 1, 2, "s", ("p",), {S: 9}, {S: 6}),
        Unsubscribe(2, 1, 1, "s"),
    ]
    assert [decode(unpack(pack(encode(one)))) for one in commands] == commands
    state = after(State(), *commands)
    head, *entries = [unpack(pack(entry)) for entry in encode_state(state)]
    reader = SnapshotReader(head)
    assert all(map(reader.add, entries))
    assert reader.state == state


@dataclass
class Process:
    """One process of the home shard: what it has made durable, and what it sends. A zombie keeps sending."""

    state: State
    holdings: Holdings
    starting: dict[int, Command] = field(default_factory=dict)
    """The number of a Subscribe that was not answered → what waits for the answer."""


class Shards(RuleBasedStateMachine):
    """Messages are lost, repeated, delayed and reordered; replaced processes of the home shard go on sending."""

    def __init__(self) -> None:
        super().__init__()
        self.source = State()
        self.length = self.removed = 0
        self.bag: list[Subscribe | Advance | Unsubscribe] = []
        self.processes: list[Process] = []
        self.requests = 0
        self.serve()

    @property
    def home(self) -> Process:
        return self.processes[-1]

    def commit(self, *commands: Command) -> None:
        self.home.state = after(self.home.state, *commands)
        for source in self.home.state.remote:
            self.home.holdings.offer(source, holding(self.home.state, source))

    @rule()
    def serve(self) -> None:
        """Another process takes over; the one before it does not notice."""
        state = after(self.processes[-1].state if self.processes else State(), Serve())
        self.processes.append(Process(state, Holdings(HOME, state.term)))
        self.commit()

    @rule(length=st.integers(1, 50))
    def append(self, length: int) -> None:
        self.length += length

    @rule(name=st.sampled_from("pq"), latest=st.booleans())
    def ask_to_start(self, name: str, latest: bool) -> None:
        at = self.length if latest else self.removed
        self.requests += 1
        self.ask(name, at, Start(name, str(self.requests), {"in": (("s",), {S: at})}, (), NO_LIMITS))

    def ask(self, name: str, at: int, then: Command) -> None:
        self.commit(Place("s", 0))
        message = self.home.holdings.subscribe("s", name, {S: at})
        self.home.starting[message.number] = then
        self.bag.append(message)

    @precondition(lambda self: self.home.starting)
    @rule()
    def give_up_starting(self) -> None:
        self.home.starting.popitem()
        self.home.holdings.started("s", holding(self.home.state, "s"))

    @precondition(lambda self: self.home.state.pipelines)
    @rule(data=st.data(), part=st.floats(0, 1))
    def run_epoch(self, data: st.DataObject, part: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.home.state.pipelines)))
        pipeline = self.home.state.pipelines[name]
        at = pipeline.position(pipeline.planned, S)
        end = at + int(part * (self.length - at))
        if end > at:
            self.home.state = epoch(self.home.state, name, end)
            self.commit()

    @precondition(lambda self: self.home.state.pipelines)
    @rule(data=st.data(), drops=st.booleans())
    def reset_or_drop(self, data: st.DataObject, drops: bool) -> None:
        """A reset reads from its beginning again: what is there must be retained before it counts."""
        name = data.draw(st.sampled_from(sorted(self.home.state.pipelines)))
        if drops:
            self.commit(Drop(name))
        else:
            self.ask(name, self.home.state.pipelines[name].inputs["in"].starting[S], Reset(name))

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """Any process, also one that was replaced."""
        process = data.draw(st.sampled_from(self.processes[-3:]))
        message = process.holdings.due("s")
        if message is not None:
            self.bag.append(message)

    @precondition(lambda self: self.bag)
    @rule(data=st.data(), keeps=st.booleans(), loses_reply=st.booleans())
    def deliver(self, data: st.DataObject, keeps: bool, loses_reply: bool) -> None:
        number = data.draw(st.integers(0, len(self.bag) - 1))
        message = self.bag[number] if keeps else self.bag.pop(number)
        try:
            self.receive(message)
        except Fenced:
            return
        process = next(one for one in self.processes if one.holdings.term == message.term)
        if loses_reply:
            return
        if isinstance(message, Subscribe):
            self.answer_start(process, message)
        else:
            process.holdings.answered(message)

    def answer_start(self, process: Process, message: Subscribe) -> None:
        waiting = process.starting.pop(message.number, None)
        if waiting is None or process is not self.home:  # a zombie cannot write to its ledger
            return
        if isinstance(waiting, Start) or message.pipeline in self.home.state.pipelines:
            self.commit(waiting)
        process.holdings.started("s", holding(self.home.state, "s"))

    def receive(self, message: Command) -> None:
        before = self.source.released.get("s", {}).get(S, 0)
        self.source = after(self.source, message)
        released = self.source.released.get("s")
        if released is None:  # nobody reads it: all that is durable is acknowledged
            assert not self.home.state.pipelines
        elif released.get(S, 0) > before and self.home.state.pipelines:
            assert released[S] <= self.home.state.released["s"].get(S, 0)

    @rule()
    def remove(self) -> None:
        """Retention, at the source shard."""
        removed = truncatable(self.source).get(S, 0)
        if removed > self.removed:
            self.removed = removed
            for pipeline in self.home.state.pipelines.values():
                assert removed <= pipeline.position(pipeline.floor, S)

    @invariant()
    def a_start_is_retained(self) -> None:
        for pipeline in self.home.state.pipelines.values():
            found = self.source.subscriptions[HOME, "s"]
            assert found.done is not None
            assert found.floor.get(S, 0) <= max(pipeline.position(pipeline.floor, S), self.removed)

    def teardown(self) -> None:
        """Once messages arrive, and nothing starts, the source shard knows what the home shard needs."""
        while self.home.starting:
            self.give_up_starting()
        message = self.home.holdings.due("s")
        if message is not None:
            self.receive(message)
            self.home.holdings.answered(message)
        assert self.home.holdings.due("s") is None
        wanted = holding(self.home.state, "s")
        found = self.source.subscriptions.get((HOME, "s"))
        if wanted.pipelines:
            assert found is not None
            assert (found.pipelines, found.done, found.floor) == wanted
        else:
            assert found is None or found.done is None


TestShards = Shards.TestCase
TestShards.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
