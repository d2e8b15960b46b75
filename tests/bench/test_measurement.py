"""The statistics that benchmarks report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.measurement import Cpu, Measurement, percentile, ratios


def test_events_and_megabytes_are_of_the_measured_seconds() -> None:
    measurement = Measurement(events=1_000_000, seconds=0.5, event_bytes=100)
    assert measurement.events_per_s == 2_000_000
    assert measurement.mb_per_s == 200


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_at_least_that_share_does_not_exceed_the_percentile(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values) - 1e-6


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 20, 30], [5, 5, 60]) == [2, 4, 0.5]


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


def test_cpu_is_cores_busy_over_the_time_between() -> None:
    assert Cpu(3.0, 1.5).since(Cpu(1.0, 1.0), seconds=2.0) == Cpu(1.0, 0.25)
