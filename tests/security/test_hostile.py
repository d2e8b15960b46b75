"""A short form of `script/test --campaign hostile`: some seconds of fuzzing with a fixed seed, each attack for a moment
while a good client works, and some thousand segments.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.security.hostile.attacks import ATTACKS, AttackProcess
from tests.security.hostile.fuzz import PRINCIPALS, fuzz
from tests.security.hostile.inputs import routes
from tests.security.hostile.segments import SNAPSHOTS, measure_stalls
from tests.security.hostile.table import GoodClient
from tests.security.hostile.target import Target, running_target

pytestmark = pytest.mark.process

SEED = 1
SLICE_SECONDS = 1.5
EVENTS = 200


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture(scope="module")
def attack_process(target: Target) -> Iterator[AttackProcess]:
    process = AttackProcess(target)
    yield process
    process.close()


def test_the_fuzzer_knows_the_body_of_every_route_that_changes_something() -> None:
    for route in routes():
        if route.methods != ("GET", "HEAD"):
            assert route.body is not None, f"{route.path}: its requests are not fuzzed with valid bodies"
            assert issubclass(route.body, msgspec.Struct)


def test_fuzzing_breaks_no_invariant(target: Target) -> None:
    slices: list[str] = []
    fuzz(target, SEED, len(PRINCIPALS) * SLICE_SECONDS, SLICE_SECONDS, lambda principal, _: slices.append(principal))
    assert slices == [*PRINCIPALS]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_good_client_makes_progress_during(attack: str, target: Target, attack_process: AttackProcess) -> None:
    client = GoodClient(target)
    with attack_process.running(attack):
        client.append(EVENTS)
        client.send(EVENTS)
        target.check_alive()
    target.check()


def test_the_worker_serves_clients_while_it_makes_snapshots_of_many_segments(tmp_path: Path) -> None:
    """Whether anything stalls is measured by the campaign: a busy machine stalls everything."""
    found = measure_stalls(tmp_path, segments=5000, new_segments=500)
    assert found.segments >= 5500
    assert found.snapshots >= SNAPSHOTS
    assert found.health_requests > 0
    assert "snapshot.py" not in found.log
