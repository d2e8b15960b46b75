"""After any crash everything acknowledged is there once, and nothing in part; damage never yields wrong bytes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.store.driver import Simulation
from tests.store.simulation import simulate, simulate_damage, simulate_notes

# Each of these seeds has failed: on an earlier version of the store, or with the line removed that fixes it.
CRASH_SEEDS = [
    7, 15,  # the first bytes of a new chapter were not written again
    11, 16, 19,  # a row that begins below the start was moved, and left a dead run behind
    31,  # a moved row was read at its new position before it was written there
    65, 67,  # compaction read a moved row at its old position after that was dropped
    115, 145, 266,  # the index of a chapter that was not written yet was read from the disk
    279, 365,  # a chapter's name was not synced when records in it were acknowledged
    465, 734,  # a chapter that was not written yet was compacted
]  # fmt: skip
DAMAGE_SEEDS = [
    3, 26,  # an empty segment that may have lost bytes could not be freed by a truncation
    38, 382,  # a name was reused, and the end of the segment that had it before was lost
    80, 138,  # bytes that were lost had been truncated
    114, 165,  # the damage of a merged segment was forgotten
    189, 222,  # the first bytes of a segment were the lost ones
    237, 283, 556,  # a read that ended where bytes may be lost reported that it was at the tail
    1030, 1771,  # a merged segment had been created in damaged bytes
    501986,  # the name of a changed segment was lost with its creation
    505500,  # the record of a move was damaged, and its segment was looked up in a file that was gone
    3381,  # the damaged head of an empty append made its segment refuse appends
]  # fmt: skip


@pytest.mark.parametrize("seed", [*range(40), *CRASH_SEEDS])
def test_acknowledged_records_survive_any_crash_and_others_survive_whole_or_not_at_all(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", range(30))
def test_merges_and_the_note_that_records_them_survive_a_crash_together_or_not_at_all(seed: int) -> None:
    simulate_notes(seed)


@pytest.mark.parametrize("seed", [*range(60), *DAMAGE_SEEDS])
def test_damaged_reads_return_the_right_bytes_or_an_error_and_damage_stays_contained(seed: int) -> None:
    simulate_damage(seed)


def test_a_seed_replays_exactly() -> None:
    runs = [Simulation(7), Simulation(7)]
    for simulation in runs:
        simulation.run(100)
    assert runs[0].journal.end == runs[1].journal.end
    assert runs[0].files.operations == runs[1].files.operations
    assert runs[0].state == runs[1].state


class StoreMachine(RuleBasedStateMachine):
    """The same driver and the same model; Hypothesis chooses the actions, and shrinks a failing run."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.simulation = Simulation(seed)

    @rule(
        action=st.sampled_from(["create", "append", "append", "merge", "truncate", "seal", "delete", "set_attributes"])
    )
    def change(self, action: str) -> None:
        self.simulation.survive(getattr(self.simulation, action))

    @rule(action=st.sampled_from(["commit", "commit", "prove", "compact", "read"]))
    def go_on(self, action: str) -> None:
        self.simulation.survive(getattr(self.simulation, action))

    @rule(action=st.sampled_from(["crash_soon", "power_cut", "kill", "fail_sync", "fill_disk", "free_disk"]))
    def go_wrong(self, action: str) -> None:
        self.simulation.survive(getattr(self.simulation, action))

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.power_cut()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
