"""Sources that are unlinked from a pipeline and linked again: it continues after what it has read."""

from penstock.coordinator.machine.apply import apply, left
from penstock.coordinator.machine.commands import Plan, Reset, Start
from penstock.coordinator.machine.state import State
from penstock.protocol.api.pipelines import Segments

A, B = "connector/a/0", "connector/b/0"
NO_LIMITS = (None, None, None)


def start(state: State, request: str, sources: tuple[str, ...], starting: Segments | None = None) -> State:
    given = {"in": (sources, starting or {})}
    return apply(state, Start("p", request, given, ("out",), NO_LIMITS))[0]


def plan(state: State, ends: Segments) -> State:
    generation = state.pipelines["p"].generation
    return apply(state, Plan("p", generation, "in", ends, None))[0]


def offset(state: State) -> dict[str, int]:
    pipeline = state.pipelines["p"]
    return pipeline.offset("in", pipeline.planned)


def test_an_unlinked_source_is_in_no_later_cut() -> None:
    state = plan(start(State(), "1", ("a", "b")), {A: 5, B: 7})
    state = start(state, "2", ("b",))
    assert offset(state) == {B: 7}
    state = plan(state, {B: 8})
    assert state.pipelines["p"].cuts[1].segments == {B: 8}
    assert state.pipelines["p"].cuts[0].segments == {A: 5, B: 7}, "a cut never changes"


def test_a_source_that_is_linked_again_continues_where_it_was() -> None:
    state = start(plan(start(State(), "1", ("a", "b")), {A: 5, B: 7}), "2", ("b",))
    state = start(plan(state, {B: 8}), "3", ("a", "b"), {A: 0})
    assert offset(state) == {A: 5, B: 8}


def test_a_source_that_is_linked_again_continues_at_its_first_stored_event_if_that_is_later() -> None:
    state = start(plan(start(State(), "1", ("a", "b")), {A: 5, B: 7}), "2", ("b",))
    state = start(plan(state, {B: 8}), "3", ("a", "b"), {A: 6})
    assert offset(state) == {A: 6, B: 8}


def test_a_source_that_stays_linked_keeps_its_position() -> None:
    state = start(State(), "1", ("a",), {A: 3})
    state = start(state, "2", ("a", "b"), {A: 9, B: 4})
    assert offset(state) == {A: 3, B: 4}


def test_an_input_that_is_removed_and_added_again_continues_where_it_was() -> None:
    def both(state: State, request: str) -> State:
        given = {"left": (("a",), {A: 0}), "right": (("b",), {B: 0})}
        return apply(state, Start("p", request, given, ("out",), NO_LIMITS))[0]

    state = both(State(), "1")
    generation = state.pipelines["p"].generation
    state = apply(state, Plan("p", generation, "left", {A: 5, B: 7}, None))[0]
    state = apply(state, Start("p", "2", {"left": (("a",), {})}, ("out",), NO_LIMITS))[0]
    state = both(state, "3")
    pipeline = state.pipelines["p"]
    assert pipeline.offset("left", pipeline.planned) == {A: 5}
    assert pipeline.offset("right", pipeline.planned) == {B: 7}


def test_a_source_may_move_from_one_input_to_another() -> None:
    state = plan(start(State(), "1", ("a", "b")), {A: 5, B: 7})
    given = {"in": (("b",), {}), "more": (("a",), {A: 0})}
    state = apply(state, Start("p", "2", given, ("out",), NO_LIMITS))[0]
    pipeline = state.pipelines["p"]
    assert pipeline.offset("more", pipeline.planned) == {A: 5}
    assert pipeline.offset("in", pipeline.planned) == {B: 7}


def test_after_a_reset_positions_of_unlinked_sources_are_forgotten() -> None:
    state = start(plan(start(State(), "1", ("a", "b")), {A: 5, B: 7}), "2", ("b",))
    assert left(state.pipelines["p"]) == {A: 5}
    state = start(apply(state, Reset("p"))[0], "3", ("a", "b"), {A: 0, B: 0})
    assert offset(state) == {A: 0, B: 0}
