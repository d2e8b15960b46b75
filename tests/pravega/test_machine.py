"""The controller's state machine."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pravega import machine
from penstock.pravega.machine import (
    Abort,
    Begin,
    Command,
    Commit,
    CreateScope,
    CreateStream,
    DeleteScope,
    DeleteStream,
    Effects,
    NoteTime,
    Reason,
    Refusal,
    RemoveWriter,
    Scale,
    SealStream,
    TruncateStream,
    UpdateStream,
    apply,
)
from penstock.pravega.state import Config, Noted, State, Stream, TimeMark

SECOND = 1 << 32
"""Added to a number, the id of a segment of the second epoch."""


class Controlled:
    """A state and the commands that are applied to it."""

    def __init__(self, segments: int = 1) -> None:
        self.state = State()
        self(CreateScope("sc"))
        self.created = self(CreateStream("sc", "st", Config(segments_min=segments)))

    def __call__(self, command: Command) -> Effects:
        self.state, effects = apply(self.state, command)
        return effects

    @property
    def stream(self) -> Stream:
        return self.state.scopes["sc"]["st"]

    def refuses(self, command: Command) -> Reason:
        before = self.state
        with pytest.raises(Refusal) as refused:
            self(command)
        assert self.state is before
        return refused.value.reason

    def scale(self, *ranges: tuple[float, float], sealed: tuple[int, ...] | None = None) -> Effects:
        old = tuple(one.id for one in self.stream.active) if sealed is None else sealed
        return self(Scale("sc", "st", old, ranges))


def test_scopes_are_created_once_and_deleted_when_empty() -> None:
    run = Controlled()
    assert run.refuses(CreateScope("sc")) is Reason.SCOPE_EXISTS
    assert run.refuses(DeleteScope("sc")) is Reason.NOT_EMPTY
    assert run.refuses(DeleteScope("none")) is Reason.NO_SCOPE
    run(CreateScope("other"))
    run(DeleteScope("other"))
    assert [*run.state.scopes] == ["sc"]


@pytest.mark.parametrize("name", ["", "a/b", "connector", "pipeline", "staging", "coordinator", "x" * 101])
def test_a_scope_s_name_is_never_a_prefix_of_the_worker_s_own_segments(name: str) -> None:
    assert Controlled().refuses(CreateScope(name)) is Reason.INVALID_NAME


def test_a_stream_begins_with_segments_that_share_the_keys_evenly() -> None:
    run = Controlled(segments=4)
    assert run.created.create == tuple(f"sc/st/{number}.#epoch.0" for number in range(4))
    assert [one.range for one in run.stream.active] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]
    assert run.refuses(CreateStream("sc", "st", Config())) is Reason.STREAM_EXISTS
    assert run.refuses(CreateStream("none", "st", Config())) is Reason.NO_SCOPE
    assert run.refuses(CreateStream("sc", "a/b", Config())) is Reason.INVALID_NAME
    assert run.refuses(CreateStream("sc", "x", Config(segments_min=machine.SEGMENTS_MAX + 1))) is Reason.LIMIT
    run(UpdateStream("sc", "st", Config(tags=("a",))))
    assert run.stream.config.tags == ("a",)


def test_only_a_sealed_stream_is_deleted() -> None:
    run = Controlled(segments=2)
    assert run.refuses(DeleteStream("sc", "st")) is Reason.NOT_SEALED
    assert run(SealStream("sc", "st")).seal == run.created.create
    assert run.stream.active == ()
    assert run.refuses(Begin("sc", "st", "t", 1)) is Reason.SEALED
    assert run(DeleteStream("sc", "st")).delete == run.created.create
    assert run.refuses(SealStream("sc", "st")) is Reason.NO_STREAM


def test_a_scaling_replaces_segments_by_others_for_the_same_keys() -> None:
    run = Controlled()
    effects = run.scale((0, 0.3), (0.3, 0.6), (0.6, 1))
    assert effects.seal == ("sc/st/0.#epoch.0",)
    assert effects.create == ("sc/st/1.#epoch.1", "sc/st/2.#epoch.1", "sc/st/3.#epoch.1")
    effects = run.scale((0, 0.6), sealed=(SECOND + 1, SECOND + 2))
    assert effects.create == ("sc/st/4.#epoch.2",)
    assert [one.range for one in run.stream.active] == [(0, 0.6), (0.6, 1)]
    assert run.stream.epoch == 2


def test_successors_are_known_with_all_that_they_continue() -> None:
    run = Controlled(segments=2)
    run.scale((0, 1))
    (merged,) = run.stream.active
    assert run.stream.successors(0) == {merged: (0, 1)}
    assert run.stream.successors(merged.id) == {}
    run.scale((0, 0.5), (0.5, 1))
    assert [*run.stream.successors(merged.id).values()] == [(merged.id,), (merged.id,)]


@pytest.mark.parametrize(
    ("sealed", "ranges"),
    [
        ((7,), ((0.0, 0.5),)),
        ((), ((0.0, 0.5),)),
        ((0,), ((0.0, 0.4),)),
        ((0,), ((0.0, 0.3), (0.2, 0.5))),
        ((0,), ((0.0, 1.0),)),
        ((0,), ()),
        ((0, 0), ((0.0, 0.5),)),
        ((0, 0), ()),
        ((0, 0), ((0.0, 0.3), (0.2, 0.5))),
        ((0,), ((0.5, 0.0),)),
        ((0,), ((0.0, float("nan")),)),
        ((0, 1), ((0.0, 0.5), (0.5, 1.5))),
        ((0, 1), ((-1.0, 1.0),)),
    ],
)
def test_a_scaling_that_would_lose_keys_is_refused(
    sealed: tuple[int, ...], ranges: tuple[tuple[float, float], ...]
) -> None:
    assert Controlled(segments=2).refuses(Scale("sc", "st", sealed, ranges)) is Reason.PRECONDITION


def test_a_truncation_deletes_what_is_before_the_cut() -> None:
    run = Controlled(segments=2)
    run.scale((0, 1))
    run.scale((0, 0.5), (0.5, 1))
    left, right = run.stream.active
    effects = run(TruncateStream("sc", "st", {0: 5, 1: 6}))
    assert effects.truncate == (("sc/st/0.#epoch.0", 5), ("sc/st/1.#epoch.0", 6))
    assert effects.delete == ()
    effects = run(TruncateStream("sc", "st", {left.id: 7, right.id: 8}))
    assert effects.delete == ("sc/st/0.#epoch.0", "sc/st/1.#epoch.0", "sc/st/2.#epoch.1")
    assert run.stream.head() == {left.id: 7, right.id: 8}
    assert len(run.stream.epochs) == 1
    assert run.stream.epoch == 2
    assert run(TruncateStream("sc", "st", {left.id: 9, right.id: 9})).delete == ()


def test_a_cut_that_mixes_epochs_keeps_what_it_names_and_its_successors() -> None:
    run = Controlled(segments=2)
    run.scale((0, 0.25), (0.25, 0.5), sealed=(0,))
    new = [one.id for one in run.stream.active if one.epoch == 1]
    run.scale((0.5, 1), sealed=(1,))
    last = next(one.id for one in run.stream.active if one.epoch == 2)
    effects = run(TruncateStream("sc", "st", {0: 3, last: 0}))
    assert effects.delete == ("sc/st/1.#epoch.0",)
    assert {one.id for one in run.stream.successors(0)} == {*new}


def test_a_truncation_does_not_move_the_head_back() -> None:
    run = Controlled(segments=2)
    run(TruncateStream("sc", "st", {0: 5, 1: 6}))
    run(TruncateStream("sc", "st", {0: 3, 1: 8}))
    assert run.stream.head() == {0: 5, 1: 8}


@pytest.mark.parametrize("cut", [{}, {0: 1}, {0: 1, 9: 1}, {0: -1, 1: 0}])
def test_a_cut_that_does_not_cover_all_keys_is_refused(cut: dict[int, int]) -> None:
    assert Controlled(segments=2).refuses(TruncateStream("sc", "st", cut)) is Reason.PRECONDITION


def test_a_transaction_has_segments_of_its_own_that_its_commit_merges() -> None:
    run = Controlled(segments=2)
    names = ("sc/st/0.#epoch.0#transaction.ab", "sc/st/1.#epoch.0#transaction.ab")
    assert run(Begin("sc", "st", "ab", 1000)).create == names
    effects = run(Commit("sc", "st", "ab", "w", 5))
    assert effects.merge == (("sc/st/0.#epoch.0", names[0]), ("sc/st/1.#epoch.0", names[1]))
    assert run.stream.ended == {"ab": True}
    assert run.stream.times["w"].time == 5
    assert run.refuses(Commit("sc", "st", "ab")) is Reason.NO_TRANSACTION
    assert run.refuses(Abort("sc", "st", "ab")) is Reason.NO_TRANSACTION


def test_aborting_and_sealing_delete_a_transaction_s_segments() -> None:
    run = Controlled()
    for key in ("ab", "cd"):
        run(Begin("sc", "st", key, 1000))
    assert run(Abort("sc", "st", "ab")).delete == ("sc/st/0.#epoch.0#transaction.ab",)
    assert run(SealStream("sc", "st")).delete == ("sc/st/0.#epoch.0#transaction.cd",)
    assert run.stream.ended == {"ab": False, "cd": False}


def test_a_transaction_that_is_older_than_a_scaling_gets_its_key_ranges_back_for_its_commit() -> None:
    run = Controlled()
    run(Begin("sc", "st", "ab", 1000))
    run.scale((0, 0.5), (0.5, 1))
    effects = run(Commit("sc", "st", "ab", "w", 5))
    assert effects == Effects(
        create=("sc/st/3.#epoch.2", "sc/st/4.#epoch.3", "sc/st/5.#epoch.3"),
        merge=(("sc/st/3.#epoch.2", "sc/st/0.#epoch.0#transaction.ab"),),
        seal=("sc/st/1.#epoch.1", "sc/st/2.#epoch.1", "sc/st/3.#epoch.2"),
    )
    assert [one.range for one in run.stream.active] == [(0, 0.5), (0.5, 1)]
    assert run.stream.epoch == 3
    assert run.stream.times["w"].time == 5


def test_a_commit_that_has_no_room_for_both_of_its_epochs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Controlled()
    run(Begin("sc", "st", "ab", 1000))
    run.scale((0, 0.5), (0.5, 1))
    monkeypatch.setattr(machine, "EPOCHS_MAX", 3)
    assert run.refuses(Commit("sc", "st", "ab")) is Reason.LIMIT


def test_a_writer_s_time_does_not_go_back() -> None:
    run = Controlled()
    run(NoteTime("sc", "st", "w", 5, {0: 10}))
    assert run.refuses(NoteTime("sc", "st", "w", 4, {0: 11})) is Reason.PRECONDITION
    assert run.stream.times["w"].cut == {0: 10}


def test_a_commit_with_an_earlier_time_keeps_the_later_one() -> None:
    run = Controlled()
    run(NoteTime("sc", "st", "w", 5, {0: 10}))
    run(Begin("sc", "st", "ab", 1000))
    run(Commit("sc", "st", "ab", "w", 4))
    assert run.stream.ended == {"ab": True}
    assert run.stream.times["w"] == Noted(5, {0: 10})


def test_the_lowest_time_of_the_active_writers_is_marked_where_all_of_them_are() -> None:
    run = Controlled(2)
    run(NoteTime("sc", "st", "a", 5, {0: 10}))
    run(NoteTime("sc", "st", "b", 3, {1: 7}))
    run(NoteTime("sc", "st", "b", 9, {0: 4, 1: 8}))
    assert [*run.stream.marks] == [TimeMark(5, {0: 10})]
    run(NoteTime("sc", "st", "a", 6, {0: 11}))
    run(RemoveWriter("sc", "st", "a"))
    run(RemoveWriter("sc", "st", "a"))
    assert [*run.stream.marks[1:]] == [TimeMark(6, {0: 11, 1: 8}), TimeMark(9, {0: 4, 1: 8})]
    run(RemoveWriter("sc", "st", "b"))
    assert len(run.stream.marks) == 3


def test_older_marks_of_time_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MARKS_MAX", 10)
    run = Controlled()
    for number in range(100):
        run(NoteTime("sc", "st", "a", number, {0: number}))
    times = [mark.time for mark in run.stream.marks]
    assert len(times) <= 10
    assert times == sorted(times)
    assert times[-5:] == [*range(95, 100)]


def test_the_lengths_of_segments_that_a_truncation_removes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "REMOVED_MAX", 2)
    run = Controlled(2)
    run.scale((0.0, 1.0))
    run(TruncateStream("sc", "st", {SECOND | 2: 0}, {0: 10, 1: 20, SECOND | 2: 5}))
    assert run.stream.removed == {0: 10, 1: 20}
    run.scale((0.0, 1.0))
    run(TruncateStream("sc", "st", {2 * SECOND | 3: 0}, {SECOND | 2: 5, 2 * SECOND | 3: 0}))
    assert run.stream.removed == {1: 20, SECOND | 2: 5}


def test_a_writer_s_name_and_position_are_bounded() -> None:
    run = Controlled()
    long = "w" * (machine.WRITER_CHARS_MAX + 1)
    run(Begin("sc", "st", "ab", 1000))
    assert run.refuses(NoteTime("sc", "st", long, 5, {0: 10})) is Reason.LIMIT
    assert run.refuses(Commit("sc", "st", "ab", long, 5)) is Reason.LIMIT
    assert run.refuses(NoteTime("sc", "st", "w", 5, {0: 10, 7: 1})) is Reason.NO_SEGMENT


def test_limits_are_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Controlled()
    for name in ("SCOPES_MAX", "STREAMS_MAX", "TRANSACTIONS_MAX", "EPOCHS_MAX"):
        monkeypatch.setattr(machine, name, 1)
    run(Begin("sc", "st", "ab", 1))
    assert run.refuses(Begin("sc", "st", "cd", 1)) is Reason.LIMIT
    assert run.refuses(CreateScope("more")) is Reason.LIMIT
    assert run.refuses(CreateStream("sc", "more", Config())) is Reason.LIMIT
    assert run.refuses(Scale("sc", "st", (0,), ((0, 1),))) is Reason.LIMIT
    assert run.refuses(UpdateStream("sc", "st", Config(tags=("x" * 1000,)))) is Reason.LIMIT


@given(st.data())
def test_after_any_scalings_every_key_has_one_segment_and_a_way_from_the_first_to_it(data: st.DataObject) -> None:
    run = Controlled(segments=data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(0, 5))):
        active = run.stream.active
        start = data.draw(st.integers(0, len(active) - 1))
        chosen = active[start : data.draw(st.integers(start + 1, len(active)))]
        low, high, parts = chosen[0].low, chosen[-1].high, data.draw(st.integers(1, 3))
        bounds = [low + (high - low) * part / parts for part in range(parts)] + [high]
        run.scale(*itertools.pairwise(bounds), sealed=tuple(one.id for one in chosen))
    active = run.stream.active
    assert active[0].low == 0
    assert active[-1].high == 1
    assert all(before.high == after.low for before, after in itertools.pairwise(active))
    reached, waiting = set[int](), [*run.stream.head()]
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += [one.id for one in run.stream.successors(number)]
    assert reached == run.stream.segments().keys()
