"""What `penstock run` shows while it runs."""

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from penstock.client.coordinator import CoordinatorClient, InputSpec, PipelineStatus, SinkSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.protocol.api.status import Blockage, PipelineRates, RatesStatus
from penstock.spark import pipeline
from penstock.spark.run.failures import Failure
from tests.connectors.http_server import Answer, serving
from tests.delivery.merging import Merging
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

pytest.importorskip("pyspark", reason="PySpark is not installed")

from penstock.cli.spark_run import RunView
from penstock.spark.run.attempt import Planned, Restarts, RunSettings
from penstock.spark.run.progress import Progress
from penstock.spark.run.runner import RunningPipeline
from penstock.spark.run.state_plan import StatePlan

NOWHERE = "127.0.0.1:1"


@pipeline
def counts(lines: Any) -> Any:
    return lines


@pytest.fixture
def running() -> RunningPipeline:
    settings = RunSettings(worker=NOWHERE, checkpoints="nowhere", cores=1)
    pipeline = RunningPipeline(None, counts, settings)  # type: ignore[arg-type]  # it is not started
    pipeline.progress = Progress(7, 7, 1_700_000_000_000_000, 1500, 3000.4, 500, 12, 4096)
    pipeline.rows = 4500
    return pipeline


def without_times(text: str) -> str:
    """Every line that begins an entry has a time and a level."""
    return re.sub(r"(?m)^\d{4}-\d\d-\d\dT[\d:.]+Z (?:INFO|WARNING|ERROR) penstock\.run: ", "", text)


def shown(running: RunningPipeline, *, terminal: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=120, color_system=None)
    with RunView(NOWHERE, console) as view:
        view.show([running])
        view.show([running])
    text = written.getvalue()
    assert terminal or without_times(text) != text
    return text if terminal else without_times(text)


def test_without_a_terminal_it_is_a_line_and_none_twice(running: RunningPipeline) -> None:
    line = "pipeline counts, epoch 7, rows 4,500, rows/s 3,000, watermark 2023-11-14 22:13:20, state 12 rows\n"
    assert shown(running, terminal=False) == line


def test_it_reports_why_windows_are_open(running: RunningPipeline) -> None:
    view = RunView(NOWHERE, Console(file=(written := io.StringIO()), width=200))
    epochs = dict.fromkeys(("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved"), 1)
    told: dict[str, Any] = {"name": "counts", "state": "RUNNING", "lag_bytes": 0, "undelivered_bytes": 0, **epochs}
    told |= {"watermark": None, "blocked": None, "heartbeat_age_seconds": 0.0}
    told |= {"open_windows": 2, "open_windows_wait": "catching up (106 B)"}
    view._known = {"counts": PipelineStatus(**told)}
    with view:
        view.show([running])
    assert "open windows 2, catching up (106 B)\n" in written.getvalue()


def test_the_rate_is_that_of_the_status(running: RunningPipeline) -> None:
    view = RunView(NOWHERE, Console(file=(written := io.StringIO()), width=200))
    epochs = dict.fromkeys(("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved"), 1)
    told: dict[str, Any] = {"name": "counts", "state": "RUNNING", "lag_bytes": 0, "undelivered_bytes": 0, **epochs}
    told |= {"watermark": None, "blocked": None, "heartbeat_age_seconds": 0.0, "inputs": {"in": ["lines"]}}
    view._known = {"counts": PipelineStatus(**told)}
    view._rates = RatesStatus(
        seconds=10.0, sources={}, pipelines={"counts": PipelineRates(rows_in_per_second=42.0)}, sinks={}
    )
    with view:
        view.show([running])
    assert "rows/s 42," in written.getvalue()


def test_what_blocks_a_pipeline_is_reported_once_and_also_its_end(running: RunningPipeline) -> None:
    view = RunView(NOWHERE, Console(file=(written := io.StringIO()), width=200))
    running.restart_at = time.monotonic() + 1000  # no line of numbers
    with view:
        for seconds in (10, 11, 12):
            text = f"pipeline counts: epoch 7 has been running in Spark for {seconds} s"
            view._blockages = [Blockage(kind="spark", link="epoch 7", text=text, pipeline="counts")]
            view.show([running])
        view._blockages = []
        view.show([running])
        view.show([running])
    first, last = without_times(written.getvalue()).splitlines()
    assert first == "pipeline counts: epoch 7 has been running in Spark for 10 s"
    assert last == "counts is no longer blocked"


def test_it_reports_what_a_pipeline_reads_and_emits(running: RunningPipeline) -> None:
    running.planned = Planned(("out", "late"), StatePlan(()))
    assert "counts: lines → pipeline:counts/out, pipeline:counts/late\n" in shown(running, terminal=False)
    running.planned = Planned((), StatePlan(()))
    assert "counts: lines → a sink of Spark's\n" in shown(running, terminal=False)


def test_on_a_terminal_it_is_a_table(running: RunningPipeline) -> None:
    table = shown(running, terminal=True)
    for text in ("pipeline", "counts", "epoch", "7", "3,000", "watermark"):
        assert text in table


def test_a_failure_is_reported_once_with_its_reason_and_the_next_start(running: RunningPipeline) -> None:
    running.last_failure = Failure("ConnectionError: [bad] line")
    running.restarts, running.restart_at = Restarts(1), time.monotonic() + 1000
    told = shown(running, terminal=False)
    assert told == "counts failed, and is restarted in 1000 s: ConnectionError: [bad] line\n"
    running.restarts = Restarts(17)
    told = shown(running, terminal=False)
    assert told == "counts failed 17 times in a row, and is restarted in 1000 s: ConnectionError: [bad] line\n"
    assert "restarts in 1000 s" in shown(running, terminal=True)


def test_no_restart_is_reported_that_will_not_take_place(running: RunningPipeline) -> None:
    running.last_failure = Failure("was replaced by generation 3", is_final=True)
    running.given_up = RequestError("was replaced by generation 3", "Stop this one.")
    assert "restart" not in shown(running, terminal=False)
    running.last_failure, running.given_up = Failure("ConnectionError: no"), None
    running.restarts, running.restart_at = Restarts(1), time.monotonic() + 1000
    running.stop()
    assert "restart" not in shown(running, terminal=False), "the run ends before that"


def test_an_error_in_the_users_code_is_reported_when_it_is_final(running: RunningPipeline) -> None:
    running.last_failure = Failure("ValueError: bad", cause="ValueError counts.py:3")
    assert "ValueError" not in shown(running, terminal=False)
    running.given_up = RequestError("the pipeline 'counts' has failed\nValueError: bad", "Mend it.")
    told = shown(running, terminal=False)
    assert told.count("ValueError: bad\nMend it.\ncounts stays stopped until it is changed") == 1


def test_it_reports_when_a_pipeline_is_ready_and_not_again_while_it_is_stopped(
    worker: RunningWorker, running: RunningPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningPipeline, "is_running", True)
    address = f"127.0.0.1:{worker.ports['http']}"
    with CoordinatorClient(address) as client, ApplicationClient(address) as application:
        started = client.start("counts", {"in": InputSpec(["lines"])}, ["out"])
        client.cut("counts", started.generation, "in", client.initial("counts", started.generation, "in"))
        assert _shown_of(address, running).count("ready: counts reads lines (penstock send --source lines)") == 1
        with RunView(address, Console(file=(written := io.StringIO()), width=200)) as view:
            view.show([running])
            again = client.start("counts", {"in": InputSpec(["lines"])}, ["out"])
            client.cut("counts", again.generation, "in", client.initial("counts", again.generation, "in"))
            for _ in range(2):
                view._asked = 0.0
                view.show([running])
        assert written.getvalue().count("ready: counts reads lines") == 2, "a restart between two looks is one"
        application.drain()
        assert "ready" not in _shown_of(address, running)


def _shown_of(worker: str, running: RunningPipeline) -> str:
    with RunView(worker, Console(file=(written := io.StringIO()), width=200)) as view:
        view.show([running])
        view.show([running])
    return written.getvalue()


def test_it_reports_where_a_pipeline_goes_and_what_is_wrong_there_and_when_it_is_over(
    worker: RunningWorker, running: RunningPipeline
) -> None:
    written = io.StringIO()
    address = f"127.0.0.1:{worker.ports['http']}"
    with (
        RunView(address, Console(file=written, width=200)) as view,
        CoordinatorClient(address) as client,
        SegmentClient(worker.address) as segments,
        serving() as server,
    ):
        server.answers = [Answer(503) for _ in range(1000)]
        client.bind("counts", {"web": SinkSpec("out", f"http://127.0.0.1:{server.port}/in")})
        Merging(client, segments, "counts").epoch([b"one"])
        deadline = time.monotonic() + SECONDS_MAX
        while "READY again" not in written.getvalue():
            assert time.monotonic() < deadline
            view.show([running])
            if "WAITING" in written.getvalue():
                server.answers = []
            time.sleep(0.05)
    lines = without_times(written.getvalue()).splitlines()
    assert f"counts/out → web: http://127.0.0.1:{server.port}/in (at-least-once)" in lines
    assert " WARNING penstock.run: counts/out → web WAITING" in written.getvalue()
    (trouble,) = [line for line in lines if "WAITING" in line]
    assert "503 Service Unavailable" in trouble
    assert lines.index("counts/out → web READY again") > lines.index(trouble)
