"""Driver and worker are killed with SIGKILL, checkpoints lose what was not synced, an old driver resumes.

The tests are about one system, which goes on from one to the next: each looks at everything that was ever sent.
`script/test --campaign spark` kills in every window, many times.
"""

import signal
from collections.abc import Iterator

import pytest

from tests.spark.crashes.campaign import check, kill_and_check
from tests.spark.crashes.places import Place, Victim, Window
from tests.spark.crashes.power_cut import cut_power
from tests.spark.crashes.scene import PIPELINES, Scene

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900), pytest.mark.xdist_group("crashes")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("crashes")) as running:
        yield running


def test_every_event_takes_effect_once_when_the_worker_is_killed_in_the_middle_of_an_epoch(scene: Scene) -> None:
    kill_and_check(
        scene,
        [
            Place(Victim.WORKER, Window.AFTER_MERGE, "tally"),
            Place(Victim.WORKER, Window.AFTER_REGISTRATION, "windowed"),
            Place(Victim.WORKER, Window.IN_WRITE, "copy"),
        ],
    )


def test_the_driver_is_killed_and_unsynced_checkpoint_files_vanish_and_nothing_is_lost_or_repeated(
    scene: Scene,
) -> None:
    """Without its entry in the commit log, an epoch is as one whose driver is killed after the merge."""
    scene.start_sender()
    scene.wait_for_progress()
    removed: list[str] = []
    for window, pipeline in ((Window.AFTER_COMMIT_LOG, "tally"), (Window.AFTER_OFFSET_LOG, "copy")):
        scene.kill_at(Place(Victim.DRIVER, window, pipeline), restart=False)
        for name in PIPELINES:
            removed += cut_power(scene.checkpoint / name, scene.pipeline(name)["merged"])
        scene.start_driver()
    assert removed, "of one of them at least: a driver may have merged before it was killed"
    check(scene)


def test_an_old_driver_that_resumes_after_a_new_one_has_started_can_merge_nothing(scene: Scene) -> None:
    """It was about to merge: the new one runs this epoch again."""
    scene.start_sender()
    scene.wait_for_progress()
    scene.stop_driver_at(Place(Victim.DRIVER, Window.BEFORE_MERGE, "windowed"))
    generations = {name: scene.pipeline(name)["generation"] for name in PIPELINES}
    scene.start_driver()
    scene.wait_until(lambda: all(scene.pipeline(n)["generation"] > generations[n] for n in PIPELINES), "the second")
    scene.signal_driver(signal.SIGCONT, -2)
    assert scene.drivers[-2].wait(120) != 0
    check(scene)
