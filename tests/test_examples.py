"""The examples and the README's program run as they are shown."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Message, Source
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.spark.run.java import find_java
from tests.spark.sending import outputs
from tests.support.running_worker import RunningWorker

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent


def run(*arguments: str, seconds_max: float = 200) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds_max)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_s_writer_goes_on_where_it_was(worker: RunningWorker, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# write_orders.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "write_orders.py"
    program.write_text(code.replace("127.0.0.1:7101", worker.address))
    for _ in range(2):
        lines = run(str(program)).splitlines()
        assert len(lines) == 1000
        assert lines[-1].endswith("b'order 1000'")


def test_import_lines_stores_each_line_once(worker: RunningWorker, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    example = [str(ROOT / "examples/import_lines.py"), str(lines), "imported", worker.address]
    assert run(*example) == "0 lines were there, 2 are new\n"
    lines.write_text("one\ntwo\nthree\n")
    assert run(*example) == "2 lines were there, 1 are new\n"
    with SegmentClient(worker.address) as client:
        assert [bytes(event.data) for event in client.events("imported")] == [b"one", b"two", b"three"]


def test_follow_prints_what_comes_until_the_segment_is_sealed(worker: RunningWorker) -> None:
    with SegmentClient(worker.address) as client:
        client.create("followed")
        command = [sys.executable, str(ROOT / "examples/follow.py"), "followed", worker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            for number in range(3):
                with client.appender("followed") as appender:
                    appender.append(b"event %d" % number)
                assert following.stdout.readline().endswith(f"event {number}\n")
            client.seal("followed")
            assert following.wait(20) == 0


MINUTE_MS = 60_000

EVENT_TIME = [
    "match_payments",
    "page_views",
    "readings_per_minute",
    "silent_sensors",
    "visits",
    "without_duplicates",
]
"""Pipelines in event time, each in a file of its name."""


def tell(worker: RunningWorker, source: str, **streams: list[tuple[float, bytes]]) -> None:
    """All that the source ever says: pairs of a minute since 1970 and a text."""
    connector, http = (f"127.0.0.1:{worker.ports[name]}" for name in ("connector", "http"))
    program = Source(connector, source=source, http=http)
    for name, said in streams.items():
        messages = [Message(n, text, round(minute * MINUTE_MS)) for n, (minute, text) in enumerate(said)]
        program.stream(name, lambda _, messages=messages: messages)  # type: ignore[misc]
    program.run()
    program.finish()


def click(user: str, page: str) -> bytes:
    return json.dumps({"user": user, "page": page}).encode()


def told(worker: RunningWorker, pipeline: str, *columns: str) -> list[Any]:
    rows = [json.loads(event.payload) for event in outputs(worker.address, pipeline)]
    return sorted([tuple(row[column] for column in columns) for row in rows], key=str)


def run_together(worker: RunningWorker, folder: Path, names: list[str]) -> None:
    """In one `penstock run`, up to all that is there."""
    path = ["import sys", f"sys.path.insert(0, {str(ROOT / 'examples')!r})"]
    (folder / "all.py").write_text("\n".join([*path, *(f"from {name} import {name}" for name in names)]))
    told = ["--worker", f"127.0.0.1:{worker.ports['http']}", "--checkpoint", str(folder / "checkpoints")]
    command = ["-m", "penstock", "run", str(folder / "all.py"), "--available-now", "--master", "local[2]", *told]
    run(*command, seconds_max=500)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_pipelines_in_event_time_close_their_windows(worker: RunningWorker, tmp_path: Path) -> None:
    """All of them in one run, over sources that have ended."""
    pytest.importorskip("pyspark")
    try:
        find_java()
    except RequestError as error:
        pytest.skip(str(error))
    warm, cold = b'{"celsius": 21}', b'{"celsius": 19}'
    tell(worker, "sensors", roof=[(1, warm), (1.5, cold), (2, cold)], cellar=[(100, warm)])
    double = click("ann", "/")
    tell(worker, "clicks", web=[(1, double), (1.2, double), (20, click("ann", "/b")), (60, double), (61, b"no JSON")])
    tell(worker, "orders", shop=[(10, b"1"), (11, b"2")])
    tell(worker, "payments", bank=[(60, b"1"), (100, b"2")])
    run_together(worker, tmp_path, EVENT_TIME)

    day = "1970-01-01T0"
    assert told(worker, "readings_per_minute", "stream", "event_time", "celsius") == [
        ("cellar", f"{day}1:40:59.999Z", 21.0),
        ("roof", f"{day}0:01:59.999Z", 20.0),
        ("roof", f"{day}0:02:59.999Z", 19.0),
    ]
    assert told(worker, "silent_sensors", "sensor", "silent_since") == [
        ("cellar", f"{day}1:40:00.000Z"),
        ("roof", f"{day}0:02:00.000Z"),
    ]
    assert told(worker, "visits", "user", "start", "end", "clicks") == [
        ("ann", f"{day}0:01:00.000Z", f"{day}0:50:00.000Z", 3),
        ("ann", f"{day}1:00:00.000Z", f"{day}1:30:00.000Z", 1),
    ]
    assert told(worker, "match_payments", "number", "paid") == [("1", f"{day}1:00:00.000Z"), ("2", None)]
    payloads = [event.payload for event in outputs(worker.address, "without_duplicates")]
    assert sorted(payloads) == sorted([double, click("ann", "/b"), b"no JSON"]), "one batch: its state is not given up"
    assert told(worker, "page_views", "page", "window_start", "pane", "views", "visitors") == [
        ("/", f"{day}0:01:00.000Z", "on_time", 2, 1),
        ("/", f"{day}1:00:00.000Z", "on_time", 1, 1),
        ("/b", f"{day}0:20:00.000Z", "on_time", 1, 1),
    ]
    assert [event.payload for event in outputs(worker.address, "page_views", "err")] == [b"no JSON"]
