"""`penstock send`."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli import send
from penstock.cli.app import app as cli
from penstock.cli.connect import get_json
from penstock.cli.send import time_us
from penstock.cli.spark_run import Announcement
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.core.errors import LimitExceeded, RequestError, Unavailable
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import stream_id_of
from penstock.protocol.stored import parse_event
from tests.client.source.stored import stored_messages
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

ANSWER_SECONDS_MAX = 120

app = typer.Typer(pretty_exceptions_enable=False)
send.register(app)


def run(file: Path, *options: str) -> Result:
    result = CliRunner().invoke(app, [str(file), "--source", "files", "--stream", "lines", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_lines_are_sent_once_and_it_reports_it(worker: RunningWorker, tmp_path: Path) -> None:
    options = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"line %d\n" % n for n in range(1, 3001)))
    printed = run(file, *options).stdout
    assert printed == "lines: 3,000 lines sent, 0 stored before, acknowledged up to line 3,000\n"
    with file.open("ab") as more:
        more.write(b"\r\nlast")
    printed = run(file, "--whole", "--address", f"127.0.0.1:{worker.ports['connector']}").stdout
    assert printed == "lines: 2 lines sent, 3,000 stored before, acknowledged up to line 3,002\n"
    told = json.loads(run(file, "--whole", "--json", *options).stdout)
    assert told == {"stream": "lines", "sent": 0, "stored_before": 3002, "acknowledged": 3002, "complete": True}
    file.write_bytes(b"another file\n")
    assert "is it the same file?" in run(file, *options).stdout
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.id for m in found] == list(range(1, 3003))
    assert [m.payload for m in found[-3:]] == [b"line 3000", b"", b"last"]


def test_a_last_line_without_a_newline_waits_until_it_has_one(worker: RunningWorker, tmp_path: Path) -> None:
    address = ("--address", f"127.0.0.1:{worker.ports['connector']}")
    file = tmp_path / "lines"
    file.write_bytes(b"whole\nhalf")
    assert "no newline yet" in run(file, *address).stdout
    file.write_bytes(b"whole\nhalf and more\n")
    assert "no newline yet" not in run(file, *address).stdout
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.payload for m in found] == [b"whole", b"half and more"]


def test_the_worker_is_found_by_its_data(worker: RunningWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"")
    printed = run(file, "--data", str(tmp_path / "data")).stdout
    assert printed == "lines: 0 lines sent, 0 stored before, acknowledged up to line 0\n"


def test_a_line_that_is_too_long_is_an_error_that_names_it(worker: RunningWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" + b"x" * (4 << 20) + b"\n")
    with pytest.raises(LimitExceeded, match="line 2"):
        run(file, "--address", f"127.0.0.1:{worker.ports['connector']}")
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.payload for m in found] == [b"short"], "what came before it is stored"


def test_without_a_worker_it_reports_it(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"")
    with pytest.raises(Unavailable):
        run(file, "--worker", "127.0.0.1:1")


def test_what_was_sent_can_be_looked_at(worker: RunningWorker, tmp_path: Path) -> None:
    option = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    run(file, *option)
    segments = [f"connector/files/{route}" for route in range(2)]
    printed = [CliRunner().invoke(cli, ["segment", "cat", name, *option]).stdout for name in segments]
    assert sorted(printed) == ["", "one\ntwo\n"]
    full = [CliRunner().invoke(cli, ["segment", "cat", name, "--full", *option]).stdout for name in segments]
    assert [json.loads(line)["message_id"] for line in "".join(full).splitlines()] == [1, 2]


def times_of(worker: RunningWorker) -> list[int]:
    """In milliseconds, as they were sent."""
    with SegmentClient(worker.address) as client:
        found = [parse_event(one.data) for route in range(2) for one in client.events(f"connector/files/{route}")]
    return [one.event_time // 1000 for one in found if one is not None and one.event_time is not None]


def test_a_line_s_event_time_is_when_it_was_sent(worker: RunningWorker, tmp_path: Path) -> None:
    options = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    file = tmp_path / "lines"
    file.write_text("one\n")
    before = time.time_ns() // 1_000_000
    run(file, *options)
    (first,) = times_of(worker)
    assert before <= first <= time.time_ns() // 1_000_000
    file.write_text("one\ntwo\n")
    run(file, *options)
    assert times_of(worker)[0] == first, "what is stored is not sent again with another time"
    assert len(times_of(worker)) == 2


def test_if_the_worker_uses_arrival_times_lines_are_sent_without_their_own(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"at": 7}\n')
    with running_worker(tmp_path / "data", connector=SourceSettings(event_time_ingest=True)) as worker:
        http = f"127.0.0.1:{worker.ports['http']}"
        follows_clock = []
        before = time.time_ns() // 1_000_000
        for option in ("now", "now", "field=at"):
            run(file, "--worker", http, "--event-time", option)
            follows_clock.append(get_json(http, "/status")["sources"]["files"]["has_arrival_times"])
            file.write_text(file.read_text() + '{"at": 7}\n')
        first, second, third = times_of(worker)
    assert before <= first <= second <= time.time_ns() // 1_000_000
    assert third == 7000
    assert follows_clock == [True, True, False]


def test_a_line_s_event_time_may_be_one_of_its_fields(worker: RunningWorker, tmp_path: Path) -> None:
    options = ("--worker", f"127.0.0.1:{worker.ports['http']}", "--event-time", "field=at")
    file = tmp_path / "lines"
    file.write_text('{"at": "2026-01-31T12:00:00Z"}\n{"at": 1769860800.5}\n{"at": 1769860801000}\n{"id": 4}\n')
    with pytest.raises(RequestError, match="line 4 has no field 'at'; the lines before it are sent"):
        run(file, *options)
    noon = 1_769_860_800_000
    assert times_of(worker) == [noon, noon + 500, noon + 1000]
    file.write_text(file.read_text().replace('{"id": 4}', '{"at": "2026-01-31T12:00:02+00:00"}'))
    run(file, *options)
    assert times_of(worker)[3] == noon + 2000


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("no json", "line 1 is not JSON"),
        ('["at"]', "line 1 is not a JSON object; nothing was sent"),
        ('{"id": 1}', "line 1 has no field 'at'; nothing was sent"),
        ('{"at": true}', "line 1 has no time in its field 'at': True"),
        ('{"at": null}', "line 1 has no time in its field 'at': None"),
        ('{"at": "noon"}', "line 1 has no time in its field 'at': 'noon'"),
        ('{"at": NaN}', "line 1 has no time in its field 'at': nan"),
    ],
)
def test_a_line_without_a_time_is_an_error_that_names_it(
    worker: RunningWorker, tmp_path: Path, line: str, what: str
) -> None:
    file = tmp_path / "lines"
    file.write_text(f"{line}\n")
    with pytest.raises(RequestError) as caught:
        run(file, "--address", f"127.0.0.1:{worker.ports['connector']}", "--event-time", "field=at")
    assert what in str(caught.value)
    status = get_json(f"127.0.0.1:{worker.ports['http']}", "/status")
    assert status["sources"] == {}, "no stream is open that holds back a window"


def test_a_first_line_that_is_too_long_opens_no_stream(worker: RunningWorker, tmp_path: Path) -> None:
    http = f"127.0.0.1:{worker.ports['http']}"
    file = tmp_path / "lines"
    file.write_bytes(b"x" * (4 << 20) + b"\n")
    with pytest.raises(LimitExceeded, match="line 1"):
        run(file, "--worker", http)
    assert get_json(http, "/status")["sources"] == {}


def test_another_way_to_give_event_times_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("line\n")
    with pytest.raises(RequestError, match="--event-time 'field=' is not valid"):
        run(file, "--event-time", "field=")


@pytest.mark.parametrize(
    ("given", "us"),
    [
        (1_769_860_800, 1_769_860_800_000_000),
        (1_769_860_800_123, 1_769_860_800_123_000),
        (1_769_860_800_123_456, 1_769_860_800_123_456),
        (1_769_860_800_123_456_789, 1_769_860_800_123_456),
        (1_769_860_800.25, 1_769_860_800_250_000),
        ("1769860800", 1_769_860_800_000_000),
        (-1.5, -1_500_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000_000),
        ("2026-01-31T13:00:00.5+01:00", 1_769_860_800_500_000),
    ],
)
def test_the_unit_of_a_number_follows_from_its_size(given: object, us: int) -> None:
    assert time_us(given) == us


class Sending:
    """A `penstock send` in a process of its own, and what it has said so far."""

    def __init__(self, worker: RunningWorker, file: Path) -> None:
        self._log = file.with_suffix(".log")
        command = [sys.executable, "-m", "penstock", "send", str(file), "--source", "files", "--stream", "lines"]
        command += ["--worker", f"127.0.0.1:{worker.ports['http']}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until_it_says(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def run_epochs(client: CoordinatorClient, name: str, while_: Callable[[], bool]) -> None:
    """What a driver does, without Spark."""
    run = client.start(name, {"in": InputSpec(["files"])}, ["out"])
    at = client.initial(name, run.generation, "in")
    while while_():
        cut = client.cut(name, run.generation, "in", at, wait_ms=100).offset
        if cut != at:
            assert cut.epoch is not None
            client.merge(name, cut.epoch, [], generation=run.generation)
        at = cut


@pytest.mark.process
def test_it_waits_for_a_pipeline_that_is_starting_so_that_its_result_is_durable_when_it_returns(
    worker: RunningWorker, client: CoordinatorClient, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("line\n")
    starting = Announcement(f"127.0.0.1:{worker.ports['http']}", {"counts": ["files"]})
    with Sending(worker, file) as sending:
        sending.until_it_says("waiting for counts: Spark is starting, ready in about ")
        starting.stop()
        assert client.status().sources == {}, "nothing is sent that nobody would be known to read"
        run_epochs(client, "counts", lambda: sending.process.poll() is None)
        assert sending.process.returncode == 0, sending.said
        assert "acknowledged up to line 1" in sending.said
    (counts,) = client.pipelines()
    assert counts.complete >= 0, "the line's epoch"


@pytest.mark.process
def test_it_reports_what_acknowledgements_wait_for(
    worker: RunningWorker, client: CoordinatorClient, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("line\n")
    alone = run(file, "--worker", f"127.0.0.1:{worker.ports['http']}")
    assert "no pipeline reads files: lines are acknowledged when they are stored" in alone.stderr
    started = client.start("counts", {"in": InputSpec(["files"])}, ["out"])
    client.heartbeat("counts", started.generation, stopped=True)
    file.write_text("line\nmore\n")
    with Sending(worker, file) as sending:
        sending.until_it_says("waiting for counts: it is STOPPED; start it with penstock run")
        client.drop("counts")
        assert sending.process.wait(ANSWER_SECONDS_MAX) == 0
