"""A few seeds of the cluster's simulation, and that it finds what it is meant to find.

`script/test --campaign cluster-simulation` runs more.
"""

from collections.abc import Callable

import pytest

from tests.cluster import test_lease_state
from tests.cluster.mutations import MUTATIONS, Mutation, Patch, absent_is_dead, held_before_its_term
from tests.cluster.simulation.cluster import simulate_cluster
from tests.ingest import test_stream_claims

SEEDS = 24
"""Even ones and odd ones: these are harsher."""
FAILED_ONCE = (500_438, 501_532, 600_108, 50, 1169)
"""A process found out late that it had taken a shard over, while another one was about to do so. A program got the
answers to a connection that it had given up. An owner that had slept renewed its lease while the leader deleted its
record, so that another one took over at once. A process was killed while it wrote its first record, and its shard was
to be handed to it for ever. A candidate was taken for dead just before it took the shard over.
"""
HUNT_MAX = 300
"""Seeds in which each mutation is found; usually in the first, which is known."""


@pytest.mark.parametrize("seed", [*range(SEEDS), *FAILED_ONCE])
def test_the_invariants_hold_and_everything_settles(seed: int) -> None:
    simulate_cluster(seed)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_finds_that(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    assert hunt(mutation.seed) is not None


@pytest.mark.parametrize(
    ("patch", "test"),
    [
        (absent_is_dead, test_lease_state.test_a_drained_worker_lets_others_go_first),
        (held_before_its_term, test_stream_claims.test_after_a_take_over_nothing_of_the_older_term_counts),
    ],
)
def test_what_the_simulation_hardly_ever_meets_is_found_by_a_test_of_its_own(
    patch: Patch, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    with pytest.raises(AssertionError):
        test()


def hunt(first: int, seeds: int = HUNT_MAX) -> int | None:
    """The first seed that fails."""
    for seed in range(first, first + seeds):
        try:
            simulate_cluster(seed)
        except Exception:
            return seed
    return None
