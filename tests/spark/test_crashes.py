"""Driver and worker are killed with SIGKILL; `script/test --campaign spark` does it in every window, many times."""

from pathlib import Path

import pytest

from tests.spark.crashes.campaign import kill_and_check
from tests.spark.crashes.places import Place, Victim, Window
from tests.spark.crashes.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(600)]


def test_every_event_has_its_effect_once_when_driver_and_worker_are_killed_in_the_middle_of_an_epoch(
    tmp_path: Path,
) -> None:
    with Scene(tmp_path) as scene:
        kill_and_check(
            scene,
            [
                Place(Victim.DRIVER, Window.AFTER_MERGE, "copy"),
                Place(Victim.WORKER, Window.AFTER_MERGE, "tally"),
                Place(Victim.DRIVER, Window.BEFORE_MERGE, "tally"),
                Place(Victim.WORKER, Window.IN_WRITE, "copy"),
            ],
        )
