"""The effects of a replay on the coordinator's state."""

import pytest

from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Command,
    Complete,
    Drop,
    Effect,
    Merge,
    Merges,
    Plan,
    Replay,
    ReplayChosen,
    Reset,
    Start,
    Truncate,
)
from penstock.coordinator.machine.replays import CHOSEN_MAX, is_replayed, waiting_bytes
from penstock.coordinator.machine.state import Pipeline, State
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.core.types import NO_EPOCH

NO_LIMITS = (None, None, None)
S, REPLAYS = "connector/s/0", "pipeline/a/replay.in"
SOURCE = "pipeline:a/replay.in"
STAGED = ((REPLAYS, "copy"),)


def start(request: str = "first", *sources: str) -> Start:
    inputs = {"in": (sources or ("s",), {S: 10}), "other": (("t",), {})}
    return Start("a", request, inputs, ("out", "err", "late"), NO_LIMITS)


def started() -> State:
    return apply(State(), start())[0]


def after(state: State, *commands: Command) -> State:
    for command in commands:
        state, _ = apply(state, command)
    return state


def replay(port: str, begin: int, upto: int, at: int = 0) -> Replay:
    return Replay("a", port, begin, upto, {"in": at}, STAGED)


def chosen(*ranges: tuple[int, int], port: str = "err") -> ReplayChosen:
    return ReplayChosen("a", port, ranges, {"in": 0}, STAGED)


def epoch(state: State, batch: int, **ends: int) -> State:
    generation = state.pipelines["a"].generation
    given = {S if name == "s" else REPLAYS: end for name, end in ends.items()}
    return after(state, Plan("a", generation, "in", given, None), Merge("a", generation, batch, {}))


def pipeline(state: State) -> Pipeline:
    return state.pipelines["a"]


def effects_of(state: State, command: Command) -> tuple[Effect, ...]:
    return apply(state, command)[1]


def test_replayed_copies_are_merged_and_read_by_the_input_from_their_start() -> None:
    state = started()
    assert [one for one in effects_of(state, replay("err", 0, 70, 500)) if isinstance(one, Merges)] == [Merges(STAGED)]
    now = pipeline(after(state, replay("err", 0, 70, 500)))
    assert now.replayed == {"err": 70}
    assert now.inputs["in"].sources == ("s", SOURCE)
    assert now.position(now.planned, REPLAYS) == 500
    assert now.inputs["other"].sources == ("t",)


def test_each_port_continues_where_it_was_and_nothing_is_replayed_twice() -> None:
    state = after(started(), replay("err", 0, 70), replay("late", 0, 30, 60), replay("err", 70, 90, 90))
    assert pipeline(state).replayed == {"err": 90, "late": 30}
    assert pipeline(state).position(NO_EPOCH, REPLAYS) == 0, "it reads on, wherever a later one begins"
    for wrong in (replay("err", 70, 90), replay("err", 0, 90), replay("err", 90, 90), replay("err", 90, 80)):
        with pytest.raises(PipelineError):
            apply(state, wrong)


def test_chosen_dead_letters_are_replayed_once_and_a_replay_in_order_passes_over_them() -> None:
    state = started()
    assert Merges(STAGED) in effects_of(state, chosen((20, 30)))
    state = after(state, chosen((20, 30), (60, 70)), chosen((30, 40)))
    assert pipeline(state).chosen == {"err": ((20, 40), (60, 70))}
    assert pipeline(state).inputs["in"].sources == ("s", SOURCE)
    for wrong in (chosen((20, 30)), chosen((0, 10), (60, 70))):
        with pytest.raises(PipelineError, match="has already been replayed"):
            apply(state, wrong)
    assert [waiting_bytes(pipeline(state), "err", 0, end) for end in (10, 25, 100)] == [10, 20, 70]
    state = after(state, replay("err", 0, 65))
    assert pipeline(state).replayed == {"err": 65}, "a request that is repeated is known by where it ended"
    assert waiting_bytes(pipeline(state), "err", 0, 100) == 30
    for start, end, expected in ((0, 10, True), (30, 40, True), (60, 70, True), (70, 80, False)):
        assert is_replayed(pipeline(state), "err", start, end) == expected
    state = after(state, replay("err", 65, 90))
    assert pipeline(state).chosen == {"err": ((60, 70),)}, "what the replay before has passed is forgotten"
    assert pipeline(after(state, replay("err", 90, 95), chosen((10, 20), port="late"))).chosen == {"late": ((10, 20),)}


def test_a_reset_keeps_what_was_chosen_and_a_drop_forgets_it() -> None:
    state = after(started(), chosen((20, 30)))
    assert pipeline(after(state, Reset("a"))).chosen == {"err": ((20, 30),)}
    assert pipeline(after(state, Drop("a"), start("second"))).chosen == {}


def test_so_many_can_be_chosen_out_of_order_and_no_more() -> None:
    ranges = tuple((number, number + 1) for number in range(1, 2 * CHOSEN_MAX, 2))
    state = after(started(), chosen(*ranges))
    with pytest.raises(LimitExceeded, match="out of order"):
        apply(state, chosen((5000, 5001)))
    state = after(state, chosen((2, 3)))
    assert len(pipeline(state).chosen["err"]) == CHOSEN_MAX - 1, "neighbours count as one"


def test_replaying_into_an_unknown_input_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"no input 'x'"):
        apply(started(), ReplayChosen("a", "err", ((0, 5),), {"x": 0}))
    with pytest.raises(PipelineError, match=r"no input 'x'"):
        apply(started(), Replay("a", "err", 0, 5, {"x": 0}))
    with pytest.raises(PipelineError, match="pipeline 'b' not found"):
        apply(started(), Replay("b", "err", 0, 5, {}))


def test_a_running_query_reads_replays_in_its_next_epoch() -> None:
    state = epoch(started(), 0, s=20)
    state = after(state, replay("err", 0, 70))
    assert pipeline(state).offset("in", 0) == {S: 20, REPLAYS: 0}
    state = epoch(state, 1, s=25, replays=66)
    assert pipeline(state).offset("in", 1) == {S: 25, REPLAYS: 66}
    assert pipeline(state).offset("other", 1) == {}


def test_a_new_generation_continues_reading_replays_without_declaring_them() -> None:
    state = epoch(after(started(), replay("err", 0, 70)), 0, replays=33)
    again = after(state, start("second", "s", "u"))
    assert pipeline(again).inputs["in"].sources == ("s", "u", SOURCE)
    assert pipeline(again).position(0, REPLAYS) == 33
    same = after(again, start("second", "s", "u"))
    assert same is again


def test_a_reset_does_not_read_replays_again() -> None:
    state = epoch(after(started(), replay("err", 0, 70)), 0, s=20, replays=33)
    state = after(state, Reset("a"))
    assert pipeline(state).replayed == {"err": 70}
    state = after(state, start("second"))
    assert pipeline(state).offset("in", NO_EPOCH) == {S: 10, REPLAYS: 33}


def test_completed_replays_are_truncated_like_any_source() -> None:
    state = after(started(), replay("err", 0, 70))
    for batch in range(4):
        state = epoch(state, batch, replays=10 * (batch + 1))
    found = effects_of(state, Complete("a", pipeline(state).generation, 3))
    assert [one.segments for one in found if isinstance(one, Truncate)] == [{REPLAYS: 10}]


def test_dead_letters_without_a_reader_or_a_sink_are_never_truncated() -> None:
    state = started()
    generation = pipeline(state).generation
    for batch in range(4):
        plan = Plan("a", generation, "in", {S: 20 + batch}, None)
        state, effects = apply(after(state, plan), Merge("a", generation, batch, {"err": 100 * batch, "late": batch}))
        truncated = [one.segments for one in effects if isinstance(one, Truncate)]
        assert all("pipeline/a/err" not in segments for segments in truncated)


def test_a_recreated_pipeline_does_not_read_the_replays_of_the_old_one() -> None:
    state = after(started(), replay("err", 0, 70), Drop("a"), start("second"))
    assert pipeline(state).inputs["in"].sources == ("s",)
    state = after(state, replay("err", 0, 70, 66))
    assert pipeline(state).position(NO_EPOCH, REPLAYS) == 66
