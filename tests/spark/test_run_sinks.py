"""`penstock run --sink`: the output of a pipeline has reached its sinks when the command ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.connectors.file import read_committed_parts
from tests.core.test_logs import LINE
from tests.spark.asking import get
from tests.spark.sending import send
from tests.support.java import need_spark
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until
from tests.worker.test_flow_metrics import metrics

pytestmark = [pytest.mark.process, pytest.mark.spark]

COPY = """
from penstock.spark import pipeline

@pipeline(sinks={{"out": "file:{folder}/declared"}})
def copy(lines):
    return lines
"""

TWO_PORTS = """
from pyspark.sql import functions as F
from penstock.spark import pipeline

@pipeline(
    outputs=["out", "late"],
    sinks={{"out": "file:{folder}/declared", "late": {{"second": "file:{folder}/second"}}}},
)
def copy(lines):
    return lines.withColumn("port", F.lit("late"))
"""


STILL_OPEN = """
from penstock import windows

@pipeline
def per_hour(doors):
    rows = doors.select("event_time", "segment", "offset")
    return windows.aggregate(rows, windows.tumbling("1 hour"), buckets=1, n=windows.count())
"""


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    need_spark()


def run(folder: Path, worker: RunningWorker, *arguments: str, text: str = COPY) -> subprocess.CompletedProcess[str]:
    file = folder / "copying.py"
    file.write_text(text.format(folder=folder))
    options = ["--worker", f"127.0.0.1:{worker.ports['http']}", "--master", "local[2]", "--available-now"]
    return subprocess.run(
        [sys.executable, "-m", "penstock", "run", str(file), *options, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"},
    )


def committed(path: Path) -> bytes:
    return b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(path))


def test_all_sinks_have_everything_when_the_run_ends_and_a_port_can_be_added_with_its_sink(
    worker: RunningWorker, tmp_path: Path
) -> None:
    """The first run also has windows, of which one stays open: that is reported."""
    connector = f"127.0.0.1:{worker.ports['connector']}"
    send(connector, "lines", "one", [b"first", b"second"])
    send(connector, "doors", "front", [b"bell"])
    done = run(tmp_path, worker, "--sink", f"copy/out=sqlite:{tmp_path}/last.db?table=latest", text=COPY + STILL_OPEN)
    assert done.returncode == 0, done.stderr
    check_delivered(worker, tmp_path)
    said = [line for line in done.stderr.splitlines() + done.stdout.splitlines() if "penstock.run: " in line]
    assert any("starting Spark" in line for line in said)
    assert all(re.match(LINE, line) for line in said)
    still_open = (
        "per_hour: 1 window stays open until the next run; "
        "to close it for good, run this while it runs: penstock source end doors"
    )
    assert any(line.endswith(still_open) for line in done.stderr.splitlines())
    assert done.stderr.splitlines()[-1].endswith("everything is delivered")
    sending = threading.Thread(target=send, args=(connector, "lines", "two", [b"third"]))
    sending.start()  # it ends when the result is at the sinks
    until(lambda: get(worker, "/status")["sources"]["lines"]["messages"] == 3)
    done = run(tmp_path, worker, text=TWO_PORTS)
    assert done.returncode == 0, done.stderr
    sending.join(60)
    assert not sending.is_alive()
    assert committed(tmp_path / "declared") == b"first\nsecond\n"
    assert committed(tmp_path / "second") == b"third\n"


def check_delivered(worker: RunningWorker, folder: Path) -> None:
    """Check the first run: at the sinks, in what the worker reports about them, and in its metrics."""
    assert committed(folder / "declared") == b"first\nsecond\n"
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        reported = {one.sink: (one.guarantee, one.sent) for one in client.sinks()}
        assert client.epochs("copy") == []
    assert reported == {"file": ("exactly-once", 11), "sqlite": ("idempotent", 11)}
    value = metrics(worker)
    assert value("pipeline_rows_in_total", pipeline="copy") == 2
    assert value("pipeline_rows_out_total", pipeline="copy", port="out") == 2
    assert value("sink_rows_total", pipeline="copy", sink="file") == 2
    assert value("sink_rows_total", pipeline="copy", sink="sqlite") == 2
    assert value("pipeline_end_to_end_latency_seconds_count", pipeline="copy") == 1
