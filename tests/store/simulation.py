"""Seeded simulations of the store. A seed gives the same run each time.

script/test --campaign store --seeds 1000
script/test --campaign store --seeds 1 --first 17        replays seed 17
"""

from tests.store.damage import DamageSimulation
from tests.store.driver import Simulation


def simulate(seed: int) -> None:
    """Operations, crashes and faults of the disk, against a model."""
    _run(Simulation, seed)


class NotingSimulation(Simulation):
    notes = True


def simulate_notes(seed: int) -> None:
    """Like `simulate`, with appends that share a record with merges."""
    _run(NotingSimulation, seed)


def simulate_damage(seed: int) -> None:
    """Operations, then flipped bits: right bytes or an error, never wrong bytes."""
    _run(DamageSimulation, seed)


def _run(kind: type[Simulation], seed: int) -> None:
    # A crash that the driver does not handle is a bug in the driver, and must not look like the end of the process.
    try:
        kind(seed).run()
    except Exception:
        raise
    except BaseException as crash:
        if isinstance(crash, KeyboardInterrupt):
            raise
        raise AssertionError(f"seed {seed}: {crash}") from crash
