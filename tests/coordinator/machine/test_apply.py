"""The effects of single commands on the coordinator's state."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.coordinator.machine import epochs
from penstock.coordinator.machine import state as states
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Ask,
    Attempt,
    Bind,
    Command,
    Complete,
    Decide,
    Drop,
    Expire,
    Follow,
    MarkTime,
    Merge,
    Mirror,
    Park,
    Plan,
    Read,
    Release,
    Reset,
    Retain,
    Start,
    Truncate,
    Unbind,
    decode,
    encode,
    pack,
    unpack,
)
from penstock.coordinator.machine.state import State, source_of
from penstock.core.errors import Fenced, LimitExceeded, PenstockError, PipelineError
from penstock.core.types import NO_EPOCH

NO_LIMITS = (None, None, None)


def started(name: str = "a", **more: Any) -> State:
    given = {"in": (("s",), {"connector/s/0": 10})}
    return apply(State(), Start(name, "first", given, more.get("outputs", ("out",)), NO_LIMITS))[0]


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state, _ = apply(state, command)
    return state


def epoch(state: State, end: int, batch: int | None = None, name: str = "a") -> State:
    """Cut up to `end`, and merged as `batch`."""
    generation = state.pipelines[name].generation
    state = after(state, Plan(name, generation, "in", {"connector/s/0": end}, None))
    return state if batch is None else after(state, Merge(name, generation, batch, {"out": end}))


def test_a_command_round_trips_through_the_ledger() -> None:
    commands: list[Command] = [
        Start("a", "r", {"in": (("s", "t"), {"x": 1})}, ("out",), (1, None, 3)),
        Plan("a", 1, "in", {"connector/s/0": 9}, None),
        Ask("a", 1, "in", 0, 1),
        Read("a", 1, 0, 1),
        Merge("a", None, 3, {"out": 7}),
        Merge("a", 1, 3, {"out": 7}, manifest="m"),
        Mirror("a", 1, "", "m"),
        Retain("time", 5),
        Drop("a"),
        Bind("a", {"x": ("out", "file:x", True, 7)}),
        Unbind("a", "x"),
        Attempt("a"),
        Decide("a", 3, 2, {"x": 9}),
        Follow("a", "y", 2, 9),
        Park("a", "x", 2),
    ]
    for command in commands:
        assert decode(unpack(pack(encode(command)))) == command


def test_staged_segments_are_not_in_the_ledger() -> None:
    assert b"staging" not in pack(encode(Merge("a", 1, 0, {}, (("out", "staging/a/1/0/0-0/out"),))))
    assert b"staging" not in pack(encode(Park("a", "x", 0, (("pipeline/a/parked.x", "staging"),))))


def test_two_inputs_of_one_source_each_begin_at_their_own_start() -> None:
    given = {"old": (("s",), {"connector/s/0": 0}), "new": (("s",), {"connector/s/0": 100})}
    state = after(State(), Start("a", "r", given, (), NO_LIMITS), Plan("a", 1, "old", {"connector/s/0": 60}, None))
    pipeline = state.pipelines["a"]
    assert pipeline.offset("old", 0) == {"connector/s/0": 60}
    assert pipeline.offset("new", NO_EPOCH) == pipeline.offset("new", 0) == {"connector/s/0": 100}


def test_an_epoch_without_new_input_has_no_cut() -> None:
    state = epoch(started(), 20, batch=0)
    state = after(state, Ask("a", 1, "in", 0, 0), Merge("a", 1, 1, {"out": 20}))
    assert state.pipelines["a"].epochs[1][:2] == (0, 0)
    again = after(state, Start("a", "second", {"in": (("s",), {})}, ("out",), NO_LIMITS))
    assert apply(again, Merge("a", 2, 1, {"out": 20}))[0] is again


def test_merging_an_epoch_with_a_different_range_is_an_error() -> None:
    state = epoch(epoch(started(), 20, batch=0), 30)
    with pytest.raises(PipelineError, match="epoch 0 was merged with the input from cut -1 to 0"):
        apply(state, Merge("a", 1, 0, {}))


def test_an_older_generation_is_fenced_from_everything() -> None:
    state = epoch(started(), 20)
    state = after(state, Start("a", "second", {"in": (("s",), {})}, ("out",), NO_LIMITS))
    commands: list[Command] = [
        Plan("a", 1, "in", {"connector/s/0": 50}, None),
        Ask("a", 1, "in", NO_EPOCH, 0),
        Read("a", 1, NO_EPOCH, 0),
        Merge("a", 1, 0, {}),
        Complete("a", 1, 0),
    ]
    for command in commands:
        with pytest.raises(Fenced, match="generation 1 of pipeline 'a' was replaced by generation 2"):
            apply(state, command)


def test_a_pipeline_recreated_after_a_drop_reuses_no_generation_or_incarnation() -> None:
    state = after(started(), Drop("a"))
    state = after(state, Start("a", "again", {}, None, NO_LIMITS))
    assert (state.pipelines["a"].generation, state.pipelines["a"].incarnation) == (2, 2)


def test_what_spark_may_read_again_is_not_truncated() -> None:
    state = started()
    truncated: Mapping[str, int] = {}
    for number in range(6):
        state, _ = apply(state, Plan("a", 1, "in", {"connector/s/0": 20 + 10 * number}, None))
        state, effects = apply(state, Merge("a", 1, number, {"out": number}))
        state, more = apply(state, Ask("a", 1, "in", number, number))
        truncated = next((e.segments for e in (*effects, *more) if isinstance(e, Truncate)), truncated)
    # Epoch 5 is proved: input is kept from the start of epoch 3, which is the end of epoch 2.
    assert state.pipelines["a"].proved == 5
    assert truncated == {"connector/s/0": 40}


def test_a_reset_pipeline_retains_its_input_until_it_starts_again() -> None:
    state = epoch(started(), 20, batch=0)
    state, effects = apply(state, Reset("a"))
    assert not [effect for effect in effects if isinstance(effect, Release)]
    pipeline = state.pipelines["a"]
    assert (pipeline.incarnation, pipeline.planned, pipeline.merged) == (2, NO_EPOCH, NO_EPOCH)
    assert pipeline.position(NO_EPOCH, "connector/s/0") == 10
    state = after(state, Start("a", "again", {"in": (("s",), {"connector/s/0": 77})}, None, NO_LIMITS))
    assert state.pipelines["a"].offset("in", NO_EPOCH) == {"connector/s/0": 77}


def test_only_the_last_cuts_and_batches_are_kept() -> None:
    state = started()
    for number in range(states.CUTS_MAX + 5):
        state = epoch(state, 20 + number, batch=number)
    pipeline = state.pipelines["a"]
    assert [*pipeline.cuts] == [*range(5, states.CUTS_MAX + 5)]
    assert len(pipeline.epochs) == states.EPOCHS_MAX


def test_the_cost_of_a_command_per_source_does_not_grow_with_the_number_of_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def counted(name: str) -> str:
        looked.append(name)
        return source_of(name)

    monkeypatch.setattr(epochs, "source_of", counted)
    starting = {f"connector/s{number}/0": 0 for number in range(300)}
    sources = tuple(f"s{number}" for number in range(300))
    state, effects = apply(State(), Start("p", "r", {"in": (sources, starting)}, (), NO_LIMITS))
    assert len([effect for effect in effects if isinstance(effect, Release)]) == 300
    assert state.released["s7"] == {"connector/s7/0": 0}
    assert len(looked) < 10 * 300


def test_pipelines_that_only_merge_count_toward_the_limit_of_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_retention_times_of_segments_deleted_with_a_pipeline_are_forgotten() -> None:
    state, _ = apply(State(), Retain("time", 10))
    state, _ = apply(state, Merge("p", None, 0, {}))
    state, _ = apply(state, MarkTime(1, {"pipeline/p/out": 100, "connector/s/0": 50}))
    state, _ = apply(state, Drop("p", ("pipeline/p/out",)))
    _, effects = apply(state, Expire(1))
    assert effects == (Truncate({"connector/s/0": 50}),)
