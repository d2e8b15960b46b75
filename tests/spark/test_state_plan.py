"""Which plan a checkpoint's state belongs to, and what a changed plan takes over from it: without Spark."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import RequestError
from penstock.core.types import NO_EPOCH
from penstock.spark.run.checkpoints import PLAN, LocalCheckpoint
from penstock.spark.run.state_plan import (
    Companion,
    StatefulOperator,
    StatePlan,
    WindowState,
    changes_taken_over,
    check_compatible,
    differences,
)


def plan(aggregates: dict[str, str], lateness_us: int = 0, name: str = "hourly", **facts: str) -> StatePlan:
    shown = {"keys": "k string", "aggregates": ", ".join(aggregates.values()), "allowed_lateness": f"{lateness_us}us"}
    return StatePlan(
        ("in",), (StatefulOperator("windows", shown | facts, 16, WindowState(name, aggregates, lateness_us)),)
    )


OLD = plan({"n": "count() int64"})
NEW = plan({"n": "count() int64", "total": "sum(v) int64"}, 60)


def closed_to(state: StatePlan) -> Any:
    return state.closed_to().get("hourly")


def test_added_and_removed_aggregates_and_a_changed_lateness_are_compatible_and_reported() -> None:
    assert differences(OLD, NEW) == differences(NEW, OLD) == []
    assert changes_taken_over(OLD, NEW) == [
        "windows 'hourly': total is added, null in windows that have events already",
        "windows 'hourly': allowed_lateness changes from 0us to 60us",
    ]
    assert "windows 'hourly': total is removed with its state" in changes_taken_over(NEW, OLD)


def test_an_aggregate_that_computes_something_else_is_incompatible_and_the_options_are_named() -> None:
    with pytest.raises(RequestError) as caught:
        check_compatible("p", OLD, plan({"n": "count(v) int64"}, 60))
    assert str(caught.value).splitlines()[1:] == ["  windows: aggregates: n: stored count() int64; now count(v) int64"]
    assert "penstock pipeline reset p" in caught.value.hint
    assert "penstock pipeline fork p NEW" in caught.value.hint
    assert differences(OLD, plan({"n": "count() int64"}, keys="k int")) == ["windows: keys: stored k string; now k int"]


def ordered(**facts: str) -> StatePlan:
    return StatePlan(("in",), (StatefulOperator("ordered", {"keys": "k string", **facts}, 16),))


def test_columns_of_ordered_events_may_come_and_go_but_not_change_their_type() -> None:
    old, new = ordered(**{"column a": "string", "column b": "int"}), ordered(**{"column b": "int", "column c": "int"})
    assert differences(old, new) == []
    assert changes_taken_over(old, new) == [
        "ordered: the column a is removed with its state",
        "ordered: the column c is added, null in events that are buffered already",
    ]
    other = ordered(**{"column a": "string", "column b": "bigint"})
    assert differences(old, other) == ["ordered: column b: stored int; now bigint"]
    assert differences(old, ordered(keys="other string")) == ["ordered: keys: stored k string; now other string"]


def test_a_plan_of_an_earlier_version_must_first_run_unchanged() -> None:
    (operator,) = OLD.operators
    earlier = replace(OLD, operators=(replace(operator, windows=None),))
    assert differences(earlier, OLD) == []
    found = differences(earlier, NEW)
    assert len(found) == 2
    assert all(one.endswith("run the unchanged pipeline for an epoch first)") for one in found)


def test_facts_of_sparks_operators_that_an_earlier_version_stored_are_not_compared() -> None:
    stored = {"name": "groupBy", "facts": {"keys": "stream string"}, "buckets": None, "windows": None}
    text = json.dumps({"format": 2, "loads": ["in"], "operators": [stored]})
    earlier = Companion.parse(text, "p").plan
    now = StatefulOperator("groupBy", {"keys": "stream", "aggregates": "count(…)"}, types={"stream": "string"})
    assert differences(earlier, StatePlan(("in",), (now,))) == []
    assert differences(earlier, StatePlan(("in",), (replace(now, name="join"),)))
    assert Companion.parse(Companion(StatePlan(("in",), (now,))).text(), "p").plan.operators == (now,)


def test_a_type_that_is_known_only_now_or_only_then_is_no_difference() -> None:
    known, unknown, other = (
        StatePlan(("in",), (StatefulOperator("groupBy", {"keys": "k"}, types=types),))
        for types in ({"k": "string"}, {}, {"k": "int"})
    )
    assert differences(known, unknown) == differences(unknown, known) == []
    assert differences(known, other) == ["groupBy: type of k: stored string; now int"]


def test_the_lateness_of_windows_that_share_a_name_does_not_change() -> None:
    twice, longer = (
        StatePlan(("in",), (*plan({"n": "count()"}, us).operators, *plan({"n": "count()"}, 5).operators))
        for us in (5, 60)
    )
    assert "give each its own name" in differences(twice, longer)[0]


def test_with_more_lateness_purged_windows_stay_closed_permanently() -> None:
    taken = plan({}, 60).taking_over(plan({}, 10), 1000)
    assert closed_to(taken) == 990
    assert closed_to(plan({}, 60).taking_over(taken, 2000)) == 990, "an unchanged plan purges nothing by itself"
    assert closed_to(plan({}, 70).taking_over(taken, 2000)) == 1940
    assert closed_to(plan({}, 5).taking_over(taken, 2000)) == 990
    assert closed_to(plan({}, 60).taking_over(plan({}, 10), None)) is None, "without a watermark nothing is purged"


def test_after_any_last_batch_the_plan_of_the_state_is_known(tmp_path: Path) -> None:
    checkpoint = LocalCheckpoint(tmp_path)
    assert checkpoint.committed() == NO_EPOCH
    checkpoint.write(PLAN, Companion(OLD, NEW.taking_over(OLD, 1000), since=3).text())
    stored = Companion.parse(checkpoint.read(PLAN) or "", "p")
    (tmp_path / "commits").mkdir()
    for batch, expected in ((2, OLD), (3, stored.following), (10, stored.following)):
        (tmp_path / "commits" / str(batch)).touch()
        assert stored.current(checkpoint.committed()) == expected
    assert closed_to(stored.current(3)) == 1000
    assert Companion.parse(Companion(OLD).text(), "p") == Companion(OLD)
