"""Everything acknowledged is in the bucket once, in order; nobody writes after another has taken over; nothing that
nobody needs stays.
"""

import pytest

from tests.store.bucket_simulation import BucketSimulation, simulate_bucket

# Each of these seeds has failed: on an earlier version, or with the line removed that fixes it.
SEEDS = [
    11,  # a candidate's number had been used and deleted, and it took itself for the owner
    13,  # a candidate that was replaced while it opened took a deleted part for damage
    89,  # a checkpoint that the head did not name yet had released parts that a reader went on to use
    117,  # orphans were deleted before the head named the checkpoint that had released them
]


@pytest.mark.parametrize("first", range(0, 300, 10))
def test_what_is_acknowledged_survives_crashes_zombies_and_slow_candidates(first: int) -> None:
    for seed in range(first, first + 10):
        simulate_bucket(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_has_failed_passes(seed: int) -> None:
    simulate_bucket(seed)


def test_a_seed_replays_exactly() -> None:
    runs = [BucketSimulation(7), BucketSimulation(7)]
    for simulation in runs:
        simulation.run(100)
    assert runs[0].journal.end == runs[1].journal.end
    assert runs[0].client.requests == runs[1].client.requests
    assert runs[0].state == runs[1].state
