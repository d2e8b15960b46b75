"""After the end of Spark's JVM another process continues the pipelines; here it never gets as far as to start Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from penstock.application.driver import Follower
from penstock.cli import spark_successor
from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.run_setup import Place, RunOptions
from penstock.cli.spark_run import Ended, Lost, SparkRun
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.api.deployment import Deployed, Deployment
from penstock.spark import Pipeline, pipeline
from penstock.spark.run.attempt import RestartPolicy, Restarts, RunSettings
from penstock.spark.run.failures import Failure
from penstock.spark.run.runner import RunningPipeline, Standing
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

pytestmark = pytest.mark.process

NOWHERE = "127.0.0.1:1"


@pipeline
def counts(lines: Any) -> Any:
    return lines


def standing(**changed: Any) -> Standing:
    known: dict[str, Any] = {
        "generation": None,
        "inputs": {"lines": ("lines",)},
        "restarts": Restarts(1, 0),
        "restart_at": 0.0,
        "last_failure": Failure("Spark's JVM was ended by SIGKILL", is_outage=True),
        "given_up": None,
        "rows": 50,
        "is_bound": True,
    }
    return Standing(**known | changed)


DEPLOYED = Deployed(revision=0, state="running", deployment=Deployment())


def continued(load: Callable[[Deployed], Sequence[Pipeline]], folder: Path, worker: FoundWorker | None = None) -> Any:
    place = Place(None, folder, str(folder / "checkpoints"))
    options = RunOptions(
        place=place,
        worker=None,
        worker_options=(),
        trigger_ms=None,
        available_now=False,
        seconds_max=None,
        master="local[1]",
        conf={},
    )
    run = SparkRun(worker=NOWHERE, load=load, follow=Follower, options=options)
    lost = Lost(DEPLOYED, {"counts": standing(), "ended": standing(restart_at=None)}, {})
    return spark_successor._continued(worker or FoundWorker(NOWHERE, {}), run, lost)


# What a successor does in these tests, in a process of its own.


def refuse(deployed: Deployed) -> NoReturn:
    raise RequestError(f"revision {deployed.revision} cannot be loaded", "Mend it.")


def end_at_once(_: Deployed) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hang(file: Path, _: Deployed) -> NoReturn:
    file.write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_successor, "RestartPolicy", partial(RestartPolicy, pause_seconds_first=0.01))


@pytest.mark.parametrize(
    ("load", "reported"),
    [
        (refuse, "revision 0 cannot be loaded\nMend it."),
        (end_at_once, "the process of Spark's driver was ended by SIGKILL"),
    ],
)
def test_a_successor_that_does_not_start_is_tried_again_after_a_pause(
    load: Any, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    found = continued(load, tmp_path)
    assert isinstance(found, Lost)
    counted, ended = found.standings["counts"], found.standings["ended"]
    assert counted.restarts == Restarts(2, 0), "an outage, which has no limit"
    assert counted.restart_at is not None
    assert began < counted.restart_at <= time.monotonic(), "it is due now"
    assert ended == standing(restart_at=None)
    assert f"counts failed 2 times in a row, and is restarted in 0 s: {reported}" in capsys.readouterr().out


def test_ctrl_c_ends_the_successor(tmp_path: Path) -> None:
    file = tmp_path / "started"

    def interrupt() -> None:
        until(file.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert continued(partial(hang, file), tmp_path) == Ended(signal.SIGINT)
    assert not is_alive(int(file.read_text()))


def test_the_end_of_the_worker_ends_the_successor(tmp_path: Path) -> None:
    class Gone(FoundWorker):
        def check(self) -> None:
            if file.exists() and file.read_text():
                raise Unavailable("the worker has exited with code 1")

    file = tmp_path / "started"
    with pytest.raises(Unavailable):
        continued(partial(hang, file), tmp_path, Gone(NOWHERE, {}))
    assert not is_alive(int(file.read_text()))


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_the_worker_knows_why_a_pipeline_does_not_run_until_the_successor_runs_it(
    worker: RunningWorker, client: CoordinatorClient
) -> None:
    http = f"127.0.0.1:{worker.ports['http']}"

    def failure() -> str:
        (found,) = client.pipelines()
        return "" if found.failure is None else found.failure.text

    def start() -> int:
        return client.start("counts", {"lines": InputSpec(["lines"])}, ["out"]).generation

    with spark_successor._reported(http, {"counts": standing(generation=start())}):
        until(lambda: failure() == "Spark's JVM was ended by SIGKILL")
        start()
        until(lambda: not failure())
    assert not failure()


def test_a_pipeline_continues_as_it_stood() -> None:
    settings = RunSettings(worker=NOWHERE, checkpoints="nowhere", cores=1)

    def restored(given: Standing) -> RunningPipeline:
        return RunningPipeline(None, counts, settings, standing=given)  # type: ignore[arg-type]

    now = time.monotonic()
    due, waiting, done = (restored(standing(restart_at=at)) for at in (now - 1, now + 1000, None))
    assert [one.is_due(now) for one in (due, waiting, done)] == [True, False, False]
    assert due.rows == 50
    assert waiting.hand_over() == standing(restart_at=now + 1000)
    lost = restored(standing(given_up=RequestError("it has failed", "Mend it."), restart_at=None)).hand_over()
    assert lost.given_up is not None
    assert (str(lost.given_up), lost.given_up.hint, lost.restart_at) == ("it has failed", "Mend it.", None)
