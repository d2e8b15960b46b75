"""Everything acknowledged is in the bucket once, in order; nobody writes after another has taken over; nothing that
nothing needs stays.
"""

from collections import Counter

import pytest

from tests.store.bucket_mutations import MUTATIONS, Mutation, hunt
from tests.store.bucket_simulation import RARE, BadCacheSimulation, BucketSimulation, simulate_bucket


@pytest.mark.parametrize("first", range(0, 300, 10))
def test_what_is_acknowledged_survives_crashes_zombies_and_slow_candidates(first: int) -> None:
    for seed in range(first, first + 10):
        simulate_bucket(seed)


def test_a_seed_that_has_failed_succeeds() -> None:
    """A file was removed while a fold was about to read bytes of it that only the bucket had."""
    simulate_bucket(9964)


def test_what_is_rare_happens() -> None:
    seen = Counter[str]()
    for seed in range(40):
        simulation = BucketSimulation(seed)
        simulation.run()
        seen += simulation.seen
    assert set(seen) == set(RARE)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_finds_that(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    assert hunt(mutation.seed) is not None


@pytest.mark.parametrize("kind", [BucketSimulation, BadCacheSimulation])
def test_a_seed_replays_exactly(kind: type[BucketSimulation]) -> None:
    runs = [kind(7), kind(7)]
    for simulation in runs:
        simulation.run(100)
    assert runs[0].journal.end == runs[1].journal.end
    assert runs[0].client.requests == runs[1].client.requests
    assert runs[0].state == runs[1].state
