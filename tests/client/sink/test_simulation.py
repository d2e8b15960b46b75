"""Random crashes, lost connections and failures of the disk: the committed prefix is what the worker has decided."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.sink.simulation import GOOD, SMALL_LOG_BYTES, Simulation, Step

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
steps_of_small_logs = st.builds(replace, steps, fails_directory_sync=st.sampled_from([False, False, True]))


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True])
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.lists(steps, max_size=25))
def test_the_committed_prefix_is_always_what_was_decided(has_table: bool, seed: int, script: list[Step]) -> None:
    Simulation(seed, has_table).run(script)


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True])
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.lists(steps_of_small_logs, max_size=40))
def test_nothing_is_lost_when_the_log_is_rewritten_again_and_again_and_its_name_is_not_durable(
    has_table: bool, seed: int, script: list[Step]
) -> None:
    Simulation(seed, has_table, SMALL_LOG_BYTES).run(script)


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_rename_whose_directory_sync_fails_loses_no_later_vote(has_table: bool, is_power_cut: bool) -> None:
    """Whichever round the log is rewritten in."""
    no_sync = replace(GOOD, fails_directory_sync=True)
    crash = replace(GOOD, crash_after=3, is_power_cut=is_power_cut)
    for rounds in range(12):
        Simulation(rounds, has_table, SMALL_LOG_BYTES).run([*[GOOD] * rounds, no_sync, GOOD, crash, no_sync, crash])


@pytest.mark.slow
@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_crash_in_each_operation_of_a_round_and_of_the_recovery_after_it(has_table: bool, is_power_cut: bool) -> None:
    for operation in range(1, 10):
        for in_recovery in (None, *range(1, 20)):
            for commits in (True, False):
                crash = Step(commits, operation, in_recovery, is_power_cut, None, False, False)
                Simulation(operation, has_table).run([GOOD, crash, GOOD, crash])
