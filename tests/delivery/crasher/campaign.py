"""Sources, worker, Spark's driver and sinks are killed at random, and what the sinks have committed is compared all the
while with an independent calculation.
"""

import tempfile
import time
from pathlib import Path

from tests.delivery.crasher.checking import CHECKS
from tests.delivery.crasher.killers import Killer, Random
from tests.delivery.crasher.system import System

KILL_SECONDS = 90.0
"""Afterwards everything may finish."""
RATE = 60.0
"""Messages per second of each stream, while its program runs."""
LOOK_SECONDS = 0.1


def run(seed: int) -> None:
    """About two minutes; the pipelines take turns."""
    pipeline = [*CHECKS][seed % len(CHECKS)]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-crasher-") as directory,
        System(Path(directory), pipeline, int(KILL_SECONDS * RATE), RATE) as system,
    ):
        crash_and_check(system, Random(seed, KILL_SECONDS))


def crash_and_check(system: System, killer: Killer) -> None:
    while not system.is_done:
        system.look()
        kill = killer.next(system.share)
        if kill is not None and system.parts[kill.part].exit_status is None:
            system.parts[kill.part].kill()
            time.sleep(kill.down_seconds)
            system.parts[kill.part].start()
        time.sleep(LOOK_SECONDS)
    system.check_end()
