"""Goals: what a ratio is to reach, or must not exceed."""

import pytest

from penstock.bench.goals import goal_cell, missed, spread_cell

GOALS = {"parquet": 1.0, "small_batch": 1.5}
AT_MOST = ("small_batch",)


@pytest.mark.parametrize(
    ("ratios", "short"),
    [
        ({"parquet": 1.0, "small_batch": 1.5}, set()),
        ({"parquet": 0.99, "small_batch": 1.0}, {"parquet"}),
        ({"parquet": 3.0, "small_batch": 1.51}, {"small_batch"}),
        ({"small_batch": 2.0}, {"small_batch"}),
        ({"something else": 0.0}, set()),
    ],
)
def test_a_goal_is_met_at_equality_and_an_upper_limit_from_below(ratios: dict[str, float], short: set[str]) -> None:
    assert missed(ratios, GOALS, AT_MOST) == {name: ratios[name] for name in short}


def test_the_table_tells_limits_from_goals() -> None:
    assert [goal_cell(name, GOALS, AT_MOST) for name in ("parquet", "small_batch", "sink")] == ["≥ 1", "≤ 1.5", ""]


def test_a_cell_shows_the_median_and_the_spread_and_whether_the_goal_was_missed() -> None:
    assert spread_cell([3.0, 1.0, 2.0], is_missed=True) == "[red]2.00[/] (1.00–3.00)"
    assert spread_cell([1.0], is_missed=False) == "[green]1.00[/] (1.00–1.00)"
