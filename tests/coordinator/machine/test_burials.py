"""What burying an event does to the coordinator's state."""

import pytest

from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.burials import BURIED_MAX, left_out
from penstock.coordinator.machine.commands import (
    Attach,
    Bury,
    Command,
    Complete,
    Fork,
    Merge,
    Plan,
    Read,
    Reset,
    Start,
)
from penstock.coordinator.machine.state import Pipeline, State
from penstock.core.errors import LimitExceeded, Outdated, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Range

NO_LIMITS = (None, None, None)
S = "connector/s/0"


def start(request: str, outputs: tuple[str, ...] = ("out",)) -> Start:
    return Start("a", request, {"in": (("s",), {})}, outputs, NO_LIMITS)


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state, _ = apply(state, command)
    return state


def started(outputs: tuple[str, ...] = ("out",)) -> State:
    return after(State(), start("first", outputs))


def pipeline(state: State) -> Pipeline:
    return state.pipelines["a"]


def plan(state: State, end: int) -> State:
    return after(state, Plan("a", pipeline(state).generation, "in", {S: end}, None))


def merge(state: State, epoch: int) -> State:
    return after(state, Merge("a", pipeline(state).generation, epoch, {}))


def bury(offset: int, *, undo: bool = False, reason: str = "why", segment: str = S) -> Bury:
    return Bury("a", ((segment, offset, offset + 5),), reason, undo)


def out(state: State) -> list[Range]:
    """What the running batch leaves out."""
    return [one for one, _ in left_out(pipeline(state), *pipeline(state).running)]


def test_an_event_that_is_buried_before_its_epoch_is_planned_is_left_out_of_it() -> None:
    state = after(started(), bury(10))
    assert out(plan(state, 10)) == []
    state = plan(state, 30)
    assert out(state) == [Range(S, 10, 15)]
    assert out(merge(state, 0)) == [Range(S, 10, 15)], "Spark may run the batch again"


def test_an_event_of_the_running_batch_is_left_out_by_the_next_query_and_the_batch_is_not_merged() -> None:
    state = after(plan(started(), 30), bury(10))
    assert out(state) == []
    with pytest.raises(Outdated, match=r"epoch 0 is not committed: its event connector/s/0@10 was buried"):
        merge(state, 0)
    state = after(state, start("second"))
    state = after(state, Read("a", pipeline(state).generation, NO_EPOCH, 0))
    assert out(state) == [Range(S, 10, 15)]
    assert pipeline(merge(state, 0)).merged == 0


def test_the_next_query_of_the_same_generation_leaves_it_out_too() -> None:
    state = after(plan(started(), 30), bury(10))
    state = after(state, Attach("a", pipeline(state).generation))
    assert out(state) == [Range(S, 10, 15)]


def test_burying_it_again_changes_nothing() -> None:
    for state in (started(), plan(started(), 30)):
        once = after(state, bury(10, reason="first"))
        assert after(once, bury(10, reason="second")) is once


def test_an_undo_has_an_effect_until_the_epoch_is_committed() -> None:
    state = after(started(), bury(10), bury(10, undo=True))
    assert pipeline(state).buried == {}
    assert after(state, bury(10, undo=True)) is state
    running = plan(after(started(), bury(10)), 30)
    undone = after(running, bury(10, undo=True))
    assert out(undone) == [Range(S, 10, 15)], "tasks of the running batch have left it out"
    with pytest.raises(Outdated, match="no longer buried"):
        merge(undone, 0)
    assert pipeline(after(undone, start("second"))).buried == {}
    with pytest.raises(PipelineError, match="is committed"):
        after(merge(running, 0), bury(10, undo=True))


def test_an_undo_that_is_undone_leaves_everything_as_it_was() -> None:
    running = plan(after(started(), bury(10)), 30)
    assert after(running, bury(10, undo=True), bury(10)) == running
    waiting = after(plan(started(), 30), bury(10), bury(10, undo=True))
    assert pipeline(waiting).buried == {}


def test_a_committed_event_and_one_that_is_not_read_are_refused() -> None:
    state = merge(plan(started(), 30), 0)
    with pytest.raises(PipelineError, match="connector/s/0@10 is committed"):
        after(state, bury(10))
    with pytest.raises(PipelineError, match="'connector/t/0' is not an input of pipeline 'a'"):
        after(state, bury(40, segment="connector/t/0"))
    with pytest.raises(PipelineError, match="pipeline 'b' not found"):
        after(state, Bury("b", ((S, 40, 45),), "why", undo=False))
    assert pipeline(after(state, bury(30))).buried


def test_one_that_cannot_be_buried_leaves_the_others_as_they_are() -> None:
    state = merge(plan(started(), 30), 0)
    with pytest.raises(PipelineError):
        after(state, Bury("a", ((S, 40, 45), (S, 10, 15)), "why", undo=False))
    assert pipeline(state).buried == {}


def test_it_is_forgotten_when_spark_does_not_read_it_again() -> None:
    state = after(started(), bury(10))
    for epoch in range(4):
        state = merge(plan(state, 30 + epoch), epoch)
        assert pipeline(state).buried
    assert pipeline(plan(state, 40)).buried == {}


def test_with_a_sink_of_spark_a_batch_that_succeeds_after_all_has_processed_the_event() -> None:
    state = after(plan(started(()), 30), bury(10))
    state = after(state, Complete("a", pipeline(state).generation, 0))
    assert pipeline(state).buried == {}
    again = after(plan(started(()), 30), bury(10), start("second", ()))
    again = after(again, Read("a", pipeline(again).generation, NO_EPOCH, 0))
    assert out(again) == [Range(S, 10, 15)]


def test_a_reset_and_a_fork_start_without_buried_events() -> None:
    state = after(merge(plan(started(), 5), 0), bury(10))
    assert pipeline(after(state, Reset("a"))).buried == {}
    assert after(state, Fork("b", "a")).pipelines["b"].buried == {}


def test_there_is_a_limit() -> None:
    many = tuple((S, offset, offset + 5) for offset in range(0, 5 * BURIED_MAX, 5))
    state = after(started(), Bury("a", many, "why", undo=False))
    with pytest.raises(LimitExceeded, match="more than 1000 buried events"):
        after(state, bury(5 * BURIED_MAX))
    assert pipeline(after(state, bury(5, undo=True), bury(5 * BURIED_MAX))).buried
