"""A fork registers a pipeline that starts where another one is, and takes over only its inputs and its watermark."""

import pytest

from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Command, Complete, Drop, Fork, Merge, Plan, Replay, Reset, Start
from penstock.coordinator.machine.state import State
from penstock.core.errors import PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Segments

A, B = "connector/a/0", "connector/b/0"
NO_LIMITS = (None, None, None)


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state = apply(state, command)[0]
    return state


def running(outputs: tuple[str, ...] = ("out",)) -> State:
    inputs = {"left": (("a",), {A: 3}), "right": (("b",), {B: 0})}
    return after(State(), Start("old", "1", inputs, outputs, NO_LIMITS))


def epoch(state: State, number: int, ends: Segments, watermark: int) -> State:
    generation = state.pipelines["old"].generation
    return after(
        state,
        Plan("old", generation, "left/1", ends, watermark),
        Merge("old", generation, number, {"out": 10 * (number + 1)}),
    )


def test_a_fork_starts_after_the_last_committed_epoch_with_its_watermark_but_without_outputs_or_sinks() -> None:
    state = epoch(epoch(running(), 0, {A: 5, B: 7}, 100), 1, {A: 6}, 200)
    state = after(state, Plan("old", state.pipelines["old"].generation, "left/1", {A: 9}, 300))
    forked = after(state, Fork("new", "old"))
    new, old = forked.pipelines["new"], forked.pipelines["old"]
    assert (new.offset("left", NO_EPOCH), new.offset("right", NO_EPOCH)) == ({A: 6}, {B: 7})
    assert (new.watermark, new.outputs, new.sinks, new.epochs) == (200, None, {}, {})
    assert new.incarnation > old.incarnation
    assert new.generation > old.generation
    assert old == state.pipelines["old"]
    started = after(forked, Start("new", "2", {"left": (("a",), {}), "right": (("b",), {})}, ("out",), NO_LIMITS))
    assert started.pipelines["new"].offset("left", NO_EPOCH) == {A: 6}, "the start does not decide it again"


def test_input_of_a_fork_is_not_acknowledged_or_removed_before_the_fork_completes_it() -> None:
    state = after(epoch(running(), 0, {A: 5, B: 7}, 100), Fork("new", "old"))
    for number, end in enumerate(range(10, 60, 10), 1):
        state = epoch(state, number, {A: end, B: end}, 100 + number)
    assert state.pipelines["old"].complete > 1
    assert (state.released["a"][A], state.released["b"][B]) == (5, 7)
    _, effects = apply(state, Drop("new"))
    assert "a" in {getattr(effect, "source", None) for effect in effects}, "a drop lets go of it"


def test_with_sparks_own_sinks_a_fork_starts_after_the_last_proved_epoch() -> None:
    state = running(outputs=())
    generation = state.pipelines["old"].generation
    state = after(
        state,
        Plan("old", generation, "left/1", {A: 5, B: 7}, 100),
        Complete("old", generation, 0),
        Plan("old", generation, "left/1", {A: 9}, 200),
    )
    assert after(state, Fork("new", "old")).pipelines["new"].offset("left", NO_EPOCH) == {A: 5}


def test_a_fork_does_not_read_replayed_dead_letters() -> None:
    state = epoch(running(), 0, {A: 5}, 100)
    state = after(state, Replay("old", "err", 0, 8, {"left": 0}))
    forked = after(state, Fork("new", "old")).pipelines["new"]
    assert forked.inputs["left"].sources == ("a",)
    assert forked.offset("left", NO_EPOCH) == {A: 5}


def test_a_fork_without_a_committed_epoch_or_with_a_taken_name_or_of_an_unknown_pipeline_is_refused() -> None:
    with pytest.raises(PipelineError, match="'old' has not committed an epoch"):
        after(running(), Fork("new", "old"))
    done = epoch(running(), 0, {A: 5}, 100)
    with pytest.raises(PipelineError, match="'new' exists already") as taken:
        after(done, Fork("new", "old"), Fork("new", "old"))
    assert "penstock pipeline drop new" in taken.value.hint
    with pytest.raises(PipelineError, match="'other' not found"):
        after(done, Fork("new", "other"))
    with pytest.raises(PipelineError, match="'old' has not committed an epoch"):
        after(done, Reset("old"), Fork("new", "old"))
