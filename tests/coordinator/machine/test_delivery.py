"""Which sink gets which epoch, and what a decision requires."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.connectors.sink_api import Position, SinkReport
from penstock.coordinator.machine import delivery
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Adopt,
    Ask,
    Attempt,
    Bind,
    Command,
    Decide,
    Drop,
    Follow,
    Merge,
    Merges,
    Park,
    Plan,
    Release,
    Reset,
    Retain,
    Start,
    Truncate,
    Unbind,
)
from penstock.coordinator.machine.delivery import next_round, next_to_follow, transaction_id, undelivered, voters
from penstock.coordinator.machine.state import EPOCHS_MAX, Accepted, Pipeline, Sink, State
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.delivery.positions import Decided, Fit, compare

A, OUT = "connector/s/0", "pipeline/a/out"
NO_LIMITS = (None, None, None)
VOTES, FOLLOWS = True, False


class Ledger:
    """Applies commands in order; has the effects of the last one."""

    def __init__(self, *commands: Command) -> None:
        self.state = State()
        self.effects: tuple[Any, ...] = ()
        self.do(*commands)

    def do(self, *commands: Command) -> None:
        for command in commands:
            self.state, self.effects = apply(self.state, command)

    def refuses(self, command: Command, match: str) -> None:
        with pytest.raises(PipelineError, match=match):
            apply(self.state, command)

    @property
    def pipeline(self) -> Pipeline:
        return self.state.pipelines["a"]

    def sink(self, name: str) -> Sink:
        return self.pipeline.sinks[name]

    def epoch(self, **ends: int) -> None:
        """Cut and merged. The outputs end at these offsets afterwards."""
        last = self.pipeline.last_epoch
        generation, planned = self.pipeline.generation, self.pipeline.planned
        self.do(Plan("a", generation, "in", {A: planned + 2}, None))
        self.do(Merge("a", generation, 0 if last is None else last + 1, ends))

    def attempt(self) -> int:
        self.do(Attempt("a"))
        return self.state.attempts

    def decide(self, batch: int, **sent: int) -> None:
        self.do(Decide("a", self.attempt(), batch, sent))

    def truncated(self) -> Mapping[str, int]:
        return next((effect.segments for effect in self.effects if isinstance(effect, Truncate)), {})

    def released(self) -> list[Any]:
        return [effect.segments for effect in self.effects if isinstance(effect, Release)]


def start(request: str = "r", outputs: tuple[str, ...] | None = ("out", "late"), name: str = "a") -> Start:
    return Start(name, request, {"in": (("s",), {A: 0})}, outputs, NO_LIMITS)


def bind(at: int = 0, **sinks: bool) -> Bind:
    """To the port `out`."""
    return Bind("a", {name: ("out", f"file:{name}", votes, at) for name, votes in sinks.items()})


class TestBinding:
    def test_binding_a_sink_registers_its_pipeline_before_the_first_start(self) -> None:
        book = Ledger(bind(x=VOTES))
        assert (book.pipeline.incarnation, book.pipeline.generation, book.pipeline.outputs) == (1, 1, None)
        book.do(start())
        book.epoch(out=10)
        assert (book.pipeline.generation, book.pipeline.merged, book.pipeline.complete) == (2, 0, NO_EPOCH)

    def test_a_sink_that_is_bound_again_keeps_its_position_and_the_round_stays_open(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=10)
        attempt = book.attempt()
        same, _ = apply(book.state, bind(x=VOTES, at=10))
        assert same is book.state
        book.do(Decide("a", attempt, 0, {"x": 3}))

    def test_a_new_url_applies_to_later_epochs_and_ends_the_open_round(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=10)
        book.decide(0, x=3)
        before = book.sink("x")
        book.epoch(out=20)
        attempt = book.attempt()
        book.do(Bind("a", {"x": ("out", "file:elsewhere", VOTES, 20)}))
        after = book.sink("x")
        assert (after.url, after.at, after.sent, after.decided) == ("file:elsewhere", 10, 3, before.decided)
        book.refuses(Decide("a", attempt, 1, {"x": 5}), "no longer open")

    def test_a_sink_cannot_change_its_port_and_the_port_must_be_declared(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.refuses(Bind("a", {"x": ("late", "file:x", VOTES, 0)}), "already bound to port 'out'")
        book.refuses(Bind("a", {"y": ("nowhere", "file:y", VOTES, 0)}), "no output port 'nowhere'")

    def test_a_start_that_does_not_declare_the_port_of_a_sink_is_refused(self) -> None:
        book = Ledger(Bind("a", {"x": ("late", "file:x", VOTES, 0)}))
        book.refuses(start(outputs=("out",)), "no output port 'late'")
        book.refuses(start(outputs=()), "no output port 'late'")
        book.do(start(outputs=None), start("again", outputs=("late",)))

    def test_if_one_sink_is_invalid_none_is_bound(self) -> None:
        book = Ledger(start())
        sinks = {"x": ("out", "file:x", VOTES, 0), "y": ("nowhere", "file:y", VOTES, 0)}
        book.refuses(Bind("a", sinks), "no output port")
        assert not book.pipeline.sinks

    def test_the_number_of_sinks_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delivery, "SINKS_MAX", 2)
        book = Ledger(bind(x=VOTES, y=VOTES))
        with pytest.raises(LimitExceeded):
            apply(book.state, bind(z=VOTES))

    def test_a_sink_bound_late_starts_after_what_is_merged_and_undoes_no_completion(self) -> None:
        book = Ledger(start())
        book.epoch(out=10)
        book.do(bind(x=VOTES, at=10))
        assert (book.pipeline.complete, book.pipeline.delivered, next_round(book.pipeline)) == (0, 0, None)
        book.epoch(out=20)
        assert (book.pipeline.complete, next_round(book.pipeline)) == (0, 1)

    def test_unbinding_a_sink_completes_epochs_that_waited_only_for_it(self) -> None:
        book = Ledger(start(), bind(x=VOTES, y=VOTES))
        book.epoch(out=10)
        book.do(Unbind("a", "x"))
        assert book.pipeline.complete == NO_EPOCH
        book.do(Unbind("a", "y"))
        assert book.pipeline.complete == 0
        assert book.released() == [{A: 1}]
        book.refuses(Unbind("a", "y"), "has no sink 'y'")
        book.refuses(Unbind("b", "y"), "pipeline 'b' not found")


class TestRounds:
    def test_a_decision_moves_all_voting_sinks_and_completes_the_epoch(self) -> None:
        book = Ledger(start(), bind(x=VOTES, y=VOTES))
        book.epoch(out=10)
        assert [*voters(book.pipeline, book.pipeline.epochs[0])] == ["x", "y"]
        assert not book.released()
        book.decide(0, x=3, y=4)
        assert [(s.at, s.sent, s.decided) for s in book.pipeline.sinks.values()] == [(10, 3, "a:0:1"), (10, 4, "a:0:1")]
        assert (book.pipeline.delivered, book.pipeline.complete, book.released()) == (0, 0, [{A: 1}])
        book.refuses(Decide("a", 1, 0, {"x": 3, "y": 4}), "no longer open")

    def test_only_the_next_epoch_is_decided_and_by_exactly_the_sinks_that_lack_it(self) -> None:
        book = Ledger(start(), bind(x=VOTES, y=VOTES))
        book.epoch(out=10)
        book.epoch(out=20)
        attempt = book.attempt()
        book.refuses(Decide("a", attempt, 1, {"x": 3, "y": 4}), "not the next one")
        book.refuses(Decide("a", attempt, 0, {"x": 3}), "have voted, but")
        book.refuses(Decide("a", attempt, 0, {"x": 3, "y": 3, "z": 3}), "have voted, but")
        book.do(Decide("a", attempt, 0, {"x": 3, "y": 3}))
        book.refuses(Decide("a", book.attempt(), 1, {"x": 2, "y": 3}), "has 3 bytes, so it cannot have 2")

    def test_a_sink_without_output_in_an_epoch_does_not_vote(self) -> None:
        book = Ledger(start(), bind(x=VOTES), Bind("a", {"y": ("late", "file:y", VOTES, 0)}))
        book.epoch(out=10, late=0)
        book.decide(0, x=3)
        assert book.pipeline.complete == 0
        book.epoch(out=10, late=0)
        assert (book.pipeline.complete, next_round(book.pipeline)) == (1, None)
        book.epoch(out=10, late=5)
        book.decide(2, y=5)
        assert (book.sink("x").decided, book.sink("y").decided) == ("a:0:1", transaction_id("a", 2, 2))

    @pytest.mark.parametrize(
        "between",
        [bind(z=VOTES, at=10), Unbind("a", "y"), Park("a", "y", 0), Reset("a"), Attempt("a"), Drop("a")],
        ids=lambda command: type(command).__name__,
    )
    def test_a_command_that_changes_a_round_ends_it(self, between: Command) -> None:
        book = Ledger(start(), bind(x=VOTES, y=VOTES))
        book.epoch(out=10)
        attempt = book.attempt()
        book.do(between)
        for sent in ({"x": 3}, {"x": 3, "y": 3}):
            book.refuses(Decide("a", attempt, 0, sent), "no longer open|not found")

    def test_commands_unrelated_to_a_round_leave_it_open(self) -> None:
        book = Ledger(start(), bind(x=VOTES, f=FOLLOWS))
        book.epoch(out=10)
        attempt = book.attempt()
        book.epoch(out=20)
        book.do(start("again"))
        book.do(Decide("a", attempt, 0, {"x": 3}))
        assert book.sink("x").sent == 3

    def test_attempt_numbers_are_never_reused_even_after_a_reset_or_drop(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        seen = [book.attempt(), book.attempt()]
        for command in (Reset("a"), Drop("a")):
            book.do(command, bind(x=VOTES))
            seen.append(book.attempt())
        assert seen == [1, 2, 3, 4]
        book.refuses(Attempt("nobody"), "pipeline .* not found")
        assert book.state.attempts == 4

    def test_a_decision_without_a_round_is_refused(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=10)
        book.refuses(Decide("a", 0, 0, {"x": 3}), "no longer open")


class TestFollowing:
    def test_a_non_voting_sink_gets_an_epoch_only_after_the_voting_sinks(self) -> None:
        book = Ledger(start(), bind(x=VOTES, f=FOLLOWS))
        book.epoch(out=10)
        book.epoch(out=20)
        assert next_to_follow(book.pipeline, "f") is None
        book.refuses(Follow("a", "f", 0, 3), "not the next one")
        book.decide(0, x=3)
        assert (book.pipeline.complete, next_to_follow(book.pipeline, "f")) == (NO_EPOCH, 0)
        book.refuses(Follow("a", "f", 1, 3), "not the next one")
        book.refuses(Follow("a", "x", 1, 3), "not the next one")
        book.do(Follow("a", "f", 0, 3))
        assert (book.pipeline.complete, book.sink("f").sent, next_to_follow(book.pipeline, "f")) == (0, 3, None)

    def test_a_sink_that_becomes_voting_catches_up_first(self) -> None:
        book = Ledger(start(), bind(x=VOTES, f=FOLLOWS))
        for number in range(2):
            book.epoch(out=10 * (number + 1))
            book.decide(number, x=number)
        book.do(bind(f=VOTES))
        assert next_round(book.pipeline) == 0
        book.decide(0, f=1)
        book.decide(1, f=2)
        assert book.pipeline.complete == 1


class TestParking:
    def test_epochs_are_parked_in_order_and_once(self) -> None:
        book = Ledger(start(), bind(x=VOTES, y=VOTES))
        book.epoch(out=10)
        book.epoch(out=20)
        book.refuses(Park("a", "x", 1), "the next epoch for sink 'x' is 0, not 1")
        book.do(Park("a", "x", 0, (("pipeline/a/parked.x", "copy"),)))
        assert Merges((("pipeline/a/parked.x", "copy"),)) in book.effects
        book.refuses(Park("a", "x", 0), "the next epoch for sink 'x' is 1, not 0")
        assert (book.sink("x").at, book.sink("x").sent, book.sink("x").parked) == (10, 0, 1)
        book.decide(0, y=3)
        assert book.pipeline.complete == 0
        book.decide(1, x=3, y=6)
        book.refuses(Park("a", "x", 1), "no epoch waits for sink")

    def test_an_epoch_can_be_parked_for_a_non_voting_sink_without_a_decision(self) -> None:
        book = Ledger(start(), bind(x=VOTES, f=FOLLOWS))
        book.epoch(out=10)
        book.do(Park("a", "f", 0))
        book.decide(0, x=3)
        assert book.pipeline.complete == 0


class TestWhatIsKept:
    def test_after_a_reset_sinks_stay_and_the_first_epoch_delivers_what_was_undelivered(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=10)
        book.epoch(out=20)
        book.decide(0, x=3)
        before = book.sink("x")
        book.do(Reset("a"), start("again"))
        assert book.sink("x") == before
        assert (next_round(book.pipeline), book.pipeline.complete) == (None, NO_EPOCH)
        book.epoch(out=25)
        assert (next_round(book.pipeline), book.pipeline.complete) == (0, NO_EPOCH)
        book.decide(0, x=6)
        assert (book.sink("x").at, book.sink("x").decided, book.pipeline.complete) == (25, "a:0:2", 0)

    def test_a_drop_forgets_sinks(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.do(Drop("a"), start("again"))
        assert not book.pipeline.sinks

    def test_output_is_kept_for_the_slowest_sink(self) -> None:
        book = Ledger(start(), bind(x=VOTES, f=FOLLOWS))
        book.epoch(out=10)
        book.decide(0, x=3)
        assert not book.truncated()
        book.do(Follow("a", "f", 0, 3))
        assert book.truncated() == {OUT: 10}

    def test_output_older_than_all_sinks_is_kept(self) -> None:
        book = Ledger(start())
        book.epoch(out=10)
        book.do(bind(x=VOTES, at=10))
        book.epoch(out=20)
        book.decide(1, x=3)
        assert not book.truncated()

    def test_output_is_truncated_for_a_sink_that_replaced_the_first(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=10)
        book.decide(0, x=3)
        book.do(bind(y=VOTES, at=10))
        book.do(Unbind("a", "x"))
        book.epoch(out=20)
        book.decide(1, y=3)
        assert book.truncated() == {OUT: 20}

    def test_a_pipeline_that_reads_the_output_truncates_nothing_that_a_later_sink_needs(self) -> None:
        book = Ledger(start())
        book.epoch(out=10)
        book.do(bind(x=VOTES, at=10))
        book.do(Start("reader", "r", {"in": (("pipeline:a/out",), {OUT: 0})}, (), NO_LIMITS))
        generation = book.state.pipelines["reader"].generation
        for end in range(11, 20):
            book.do(Plan("reader", generation, "in", {OUT: end}, None))
            assert book.truncated().get(OUT, 0) <= 10
        assert book.state.pipelines["reader"].position(book.state.pipelines["reader"].floor, OUT) > 10
        book.do(Unbind("a", "x"))
        assert book.truncated()[OUT] > 10

    def test_a_pipeline_that_has_read_no_output_yet_retains_all_of_it(self) -> None:
        book = Ledger(bind(x=VOTES), start())
        book.do(Start("reader", "r", {"in": (("pipeline:a/out",), {})}, (), NO_LIMITS))
        book.epoch(out=10)
        book.decide(0, x=3)
        assert not book.truncated()
        book.do(Drop("reader"))
        assert book.truncated() == {OUT: 10}

    def test_a_changed_retention_truncates_what_was_delivered_before(self) -> None:
        book = Ledger(Retain("keep", 0), start(), bind(x=VOTES))
        book.epoch(out=10)
        book.decide(0, x=3)
        assert not book.truncated()
        book.do(Retain("complete", 0))
        assert book.truncated()[OUT] == 10

    def test_an_epoch_is_not_forgotten_before_every_sink_has_it(self) -> None:
        book = Ledger(start(), bind(x=VOTES))
        book.epoch(out=1)
        book.do(Ask("a", 1, "in", 0, 0))  # from now on batches without a cut, as Spark runs them to close windows
        for number in range(1, EPOCHS_MAX):
            book.do(Merge("a", 1, number, {"out": number + 1}))
        assert len(undelivered(book.pipeline)) == EPOCHS_MAX
        following = Merge("a", 1, EPOCHS_MAX, {"out": EPOCHS_MAX + 1})
        with pytest.raises(LimitExceeded, match="1000 epochs wait for their sinks"):
            apply(book.state, following)
        book.decide(0, x=3)
        book.do(following)
        assert [*book.pipeline.epochs] == [*range(1, EPOCHS_MAX + 1)]
        assert (book.pipeline.delivered, next_round(book.pipeline)) == (0, 1)


class TestAdopting:
    """A sink whose data is an older or newer copy continues from what it has."""

    def book(self) -> Ledger:
        book = Ledger(start(), bind(x=VOTES, y=VOTES, z=FOLLOWS))
        for epoch, end in enumerate((10, 20, 30)):
            book.epoch(out=end)
            book.decide(epoch, x=3 * (epoch + 1), y=3 * (epoch + 1))
        return book

    def adopt(self, sink: str = "x", **changes: Any) -> Adopt:
        older = Adopt("a", sink, (9, "a:2:3"), 10, 3, "a:0:1", 3, "", "ada", 7)
        return replace(older, **changes)

    def test_rewinding_a_sink_affects_only_that_sink(self) -> None:
        book = self.book()
        complete = book.pipeline.complete
        book.do(self.adopt())
        assert (book.sink("x").at, book.sink("x").sent, book.sink("x").decided) == (10, 3, "a:0:1")
        assert next_round(book.pipeline) == 1
        assert voters(book.pipeline, book.pipeline.epochs[1]).keys() == {"x"}
        assert book.pipeline.complete == complete
        book.decide(1, x=6)
        book.decide(2, x=9)
        assert (book.sink("x").at, book.sink("x").sent, next_round(book.pipeline)) == (30, 9, None)

    def test_attempts_that_the_sink_knows_are_not_reused(self) -> None:
        book = self.book()
        book.do(self.adopt(at=30, sent=20, decided="a:7:12", attempts=12))
        assert book.attempt() == 13

    def test_adopting_a_sink_ends_an_open_round(self) -> None:
        book = self.book()
        book.epoch(out=40)
        attempt = book.attempt()
        book.do(self.adopt())
        book.refuses(Decide("a", attempt, 3, {"x": 12, "y": 12}), "no longer open")

    def test_the_last_ten_accepted_differences_are_remembered(self) -> None:
        book = self.book()
        before = (9, "a:2:3")
        for number in range(delivery.ACCEPTED_MAX + 1):
            book.do(self.adopt(before=before, at=30, sent=number, accepted="gap", time_us=number))
            before = (number, "a:0:1")
        accepted = book.sink("x").accepted
        assert [one.time_us for one in accepted] == [*range(1, delivery.ACCEPTED_MAX + 1)]
        assert accepted[0] == Accepted("gap", "ada", 1, 0)

    def test_adopting_a_sink_that_has_changed_or_does_not_vote_or_would_skip_is_refused(self) -> None:
        book = self.book()
        book.refuses(self.adopt(before=(6, "a:1:2")), "has changed in the meantime")
        book.refuses(self.adopt("z", before=(0, "")), "has changed in the meantime")
        book.refuses(self.adopt(at=31), "cannot continue at 31")
        book.refuses(self.adopt("nobody"), "has no sink 'nobody'")

    def test_a_sink_that_is_bound_later_knows_the_earlier_attempts(self) -> None:
        book = self.book()
        book.do(Unbind("a", "x"), bind(x=VOTES, at=30))
        assert book.sink("x").decided == "a:-1:3"

    def test_a_sink_with_data_of_a_pipeline_without_epochs_is_ahead_of_the_ledger(
        self,
    ) -> None:
        """The worker's data was lost, and another pipeline has already continued from what its sink has."""
        book = self.book()
        book.do(Bind("b", {"x": ("out", "file:b", VOTES, 0)}))
        assert book.state.attempts
        decided = Decided(book.state.pipelines["b"].sinks["x"].decided.encode(), 0, book.state.attempts)
        assert compare(SinkReport(Position(b"b:0:1", 10)), decided) is Fit.NEWER

    def test_a_sink_with_a_new_url_is_marked_as_moved_until_the_next_decision(self) -> None:
        book = self.book()
        book.do(Bind("a", {"x": ("out", "file:elsewhere", VOTES, 30)}))
        assert book.sink("x").moved
        book.epoch(out=40)
        book.decide(3, x=12, y=12)
        assert not book.sink("x").moved
