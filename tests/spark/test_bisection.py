"""The items that fail are found by trying halves, whatever fails, and items that fail only together as a run."""

from collections.abc import Sequence
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.run.bisection import Failing, failing


class Tried:
    """Fails if one of some items is there, or all items of a group."""

    def __init__(self, alone: set[int], together: frozenset[int] = frozenset()) -> None:
        self.alone = alone
        self.together = together
        self.trials: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int, but: Sequence[int]) -> str | None:
        assert start < end
        self.trials.append((start, end))
        items = {*range(start, end)} - {*but}
        if bad := sorted(items & self.alone):
            return f"item {bad[0]}"
        return "together" if self.together and self.together <= items else None


def found(count: int, tried: Tried) -> list[Failing[str]]:
    return [*failing(count, tried)]


def test_nothing_is_found_if_all_pass_at_once() -> None:
    tried = Tried(set())
    assert found(1000, tried) == []
    assert tried.trials == [(0, 1000)]


def test_one_of_many_takes_as_many_trials_as_it_can_be_halved() -> None:
    for item in (0, 1, 700, 999):
        tried = Tried({item})
        assert found(1000, tried) == [Failing(item, item + 1, f"item {item}")]
        assert len(tried.trials) <= 3 + ceil(log2(1000))


def test_the_only_item_need_not_be_tried_twice() -> None:
    tried = Tried({0})
    assert found(1, tried) == [Failing(0, 1, "item 0")]
    assert tried.trials == [(0, 1)]


def test_items_that_fail_together_are_the_ends_of_a_run() -> None:
    (run,) = found(1000, Tried(set(), frozenset({120, 700})))
    assert (run, run.is_single) == (Failing(120, 701, "together"), False)


def test_what_fails_together_is_found_after_what_fails_alone_between_it() -> None:
    runs = found(100, Tried({50}, frozenset({20, 80})))
    assert runs == [Failing(50, 51, "item 50"), Failing(20, 81, "together")]


@given(st.data())
def test_all_items_that_fail_alone_are_found_in_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 200))
    alone = data.draw(st.sets(st.integers(0, count - 1), max_size=6))
    tried = Tried(alone)
    runs = found(count, tried)
    assert [(run.start, run.end, run.how) for run in runs] == [(at, at + 1, f"item {at}") for at in sorted(alone)]
    assert len(tried.trials) <= 1 + len(alone) * (3 + ceil(log2(max(2, count))))


@given(st.data())
def test_a_run_that_fails_together_is_as_short_as_it_can_be(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 200))
    together = frozenset(data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=4)))
    alone = data.draw(st.sets(st.integers(0, count - 1), max_size=3))
    runs = found(count, Tried(alone, together))
    singles, others = [run for run in runs if run.is_single], [run for run in runs if not run.is_single]
    assert {run.start for run in singles} <= alone, "what passes alone is not blamed"
    if together & alone:
        assert {run.start for run in singles} == alone
        assert others == []
    else:
        assert (min(together), max(together) + 1) in [(run.start, run.end) for run in others]
