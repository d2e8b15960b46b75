"""Random crashes, lost connections and failures of the disk: the committed prefix is what the worker has decided."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.sink.simulation import GOOD, Simulation, Step

POINTS = [f"{when} {what}" for what in ("data", "vote", "decision") for when in ("before", "after")]

steps = st.builds(
    Step,
    commits=st.sampled_from([True, True, True, False]),
    crash_after=st.none() | st.integers(1, 12),
    crash_in_recovery_after=st.none() | st.integers(1, 20),
    is_power_cut=st.booleans(),
    lost_at=st.none() | st.sampled_from(POINTS),
    fails_sync=st.sampled_from([False, False, False, True]),
    is_full=st.sampled_from([False, False, False, True]),
)


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True])
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.lists(steps, max_size=25))
def test_the_committed_prefix_is_always_what_was_decided(has_table: bool, seed: int, script: list[Step]) -> None:
    Simulation(seed, has_table).run(script)


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_crash_in_each_operation_of_a_round_and_of_the_recovery_after_it(has_table: bool, is_power_cut: bool) -> None:
    for operation in range(1, 10):
        for in_recovery in (None, *range(1, 20)):
            for commits in (True, False):
                crash = Step(commits, operation, in_recovery, is_power_cut, None, False, False)
                Simulation(operation, has_table).run([GOOD, crash, GOOD, crash])
