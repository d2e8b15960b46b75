"""Commands talk to the worker that was meant: the one that is named, this directory's own, or, if the user agrees, the
one on the default port.
"""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.access.file import AccessFile
from penstock.cli import connect
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import PenstockError, RequestError, Unauthenticated, Unavailable
from penstock.protocol.api.deployment import Deployment
from tests.support.running_worker import RunningWorker, running_worker

CHANGING = [
    ["stop", "--no-wait"],
    ["pause", "orders"],
    ["resume", "orders"],
    ["source", "end", "orders"],
    ["source", "watermark", "orders", "2026-01-31T12:00:00Z"],
    ["pipeline", "reset", "p"],
    ["pipeline", "drop", "p"],
    ["sink", "add", "p", "file:results"],
    ["sink", "remove", "p", "file"],
    ["epoch", "retry", "p"],
    ["epoch", "park", "p", "1"],
    ["dead-letters", "replay", "p"],
    ["dead-letters", "bury", "p", "--at", "s@0"],
    ["segment", "create", "s"],
    ["segment", "append", "s", "event"],
    ["segment", "seal", "s"],
    ["segment", "truncate", "s", "1"],
    ["segment", "delete", "s"],
    ["send", "lines", "--source", "orders", "--stream", "lines"],
    ["apply", "app.yaml"],
]
LOOKING = [["status"], ["pipeline", "list"], ["sink", "list"], ["epoch", "list"], ["segment", "list"]]

APPLICATION = "connector:\n  - {id: out, type: 'null', codec: json}\n"


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningWorker]:
    """Somebody else's, on the default port; we are in a directory of our own, without a worker."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "lines").write_text("line\n")
    (here / "app.yaml").write_text(APPLICATION)
    monkeypatch.chdir(here)
    monkeypatch.delenv("PENSTOCK_WORKER", raising=False)
    with running_worker(tmp_path / "other") as running:
        monkeypatch.setattr(connect, "DEFAULT_WORKER", http_of(running))
        yield running


def http_of(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def run(*words: str, answer: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words], input=answer)


def journal_end(worker: RunningWorker) -> int:
    with CoordinatorClient(http_of(worker)) as client:
        return client.status().store.journal_end


@pytest.mark.parametrize("words", CHANGING, ids=lambda words: "-".join(words[:2]))
def test_nothing_is_changed_at_a_worker_that_nobody_has_chosen(
    other: RunningWorker, tmp_path: Path, words: list[str]
) -> None:
    before = journal_end(other)
    refused = run(*words).exception
    assert isinstance(refused, RequestError)
    assert f"worker {http_of(other)}: no application, data in {tmp_path / 'other'}" in str(refused)
    assert "--yes" in refused.hint
    assert journal_end(other) == before


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: "-".join(words))
def test_a_command_that_only_reads_reports_whose_worker_it_is(
    other: RunningWorker, tmp_path: Path, words: list[str]
) -> None:
    done = run(*words)
    assert done.exit_code == 0
    expected = f"no worker runs on ./penstock-data; this is worker {http_of(other)}: no application"
    assert done.stderr.startswith(expected)


@pytest.mark.parametrize("how", ["--yes", "--worker", "--data", "PENSTOCK_WORKER"])
def test_a_worker_that_was_chosen_is_changed_after_it_was_named(
    other: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    chosen = {
        "--yes": ["--yes"],
        "--worker": ["--worker", http_of(other)],
        "--data": ["--data", str(tmp_path / "other")],
    }
    if how == "PENSTOCK_WORKER":
        monkeypatch.setenv(how, http_of(other))
    with ApplicationClient(http_of(other)) as client:
        client.apply(Deployment(), "shop.yaml")
    done = run("segment", "create", "mine", *chosen.get(how, []))
    assert done.stdout == "created mine\n"
    assert done.stderr == f"worker {http_of(other)}: application shop.yaml, data in {tmp_path / 'other'}\n"


def test_the_worker_of_this_directory_comes_before_the_default_port(other: RunningWorker) -> None:
    with running_worker(Path("penstock-data")) as own:
        done = run("segment", "create", "mine")
        assert done.exit_code == 0, done.exception
        assert done.stderr == f"worker {http_of(own)}: no application, data in ./penstock-data\n"
        assert run("status").stderr == ""
        with SegmentClient(own.address) as client:
            assert client.info("mine").length == 0


def test_the_default_worker_is_our_own_if_it_serves_this_directory(
    other: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_worker(Path("penstock-data")) as own:
        Path("penstock-data/ports.json").unlink()
        monkeypatch.setattr(connect, "DEFAULT_WORKER", http_of(own))
        assert run("segment", "create", "mine").exit_code == 0


@pytest.mark.parametrize("words", [["status"], ["pipeline", "list"], ["stop", "--no-wait"]])
def test_a_worker_that_nobody_has_chosen_and_that_refuses_us_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_worker(tmp_path / "other", access=AccessFile(tmp_path / "other")) as running:
        monkeypatch.setattr(connect, "DEFAULT_WORKER", http_of(running))
        refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, Unauthenticated)
    assert str(refused).startswith(f"no worker runs on ./penstock-data, and the one on {http_of(running)} refuses")
    assert "--data DIR" in refused.hint


def test_ports_of_a_worker_that_was_killed_do_not_lead_to_the_one_that_has_them_now(other: RunningWorker) -> None:
    """As after a SIGKILL and a start of another worker on the same ports."""
    left = {"format": 1, **other.ports, "id": "of one that was killed"}
    Path("penstock-data").mkdir()
    Path("penstock-data/ports.json").write_text(json.dumps(left))
    for chosen in ([], ["--yes"], ["--data", "penstock-data"]):
        refused = run("segment", "create", "mine", *chosen).exception
        assert isinstance(refused, Unavailable)
        assert "its port is now used by another one" in str(refused)
    Path("penstock-data/ports.json").write_text(json.dumps({**left, "http": 1}))
    refused = run("status", "--data", "penstock-data").exception
    assert isinstance(refused, PenstockError)
    assert "it was killed, or is just stopping" in str(refused)


def test_a_source_is_ended_only_at_the_worker_that_its_lines_go_to(other: RunningWorker) -> None:
    Path("lines").write_text("one\n")
    elsewhere = ("--address", "127.0.0.1:1", "--worker", http_of(other), "--end")
    refused = run("send", "lines", "--source", "s", "--stream", "lines", *elsewhere).exception
    assert isinstance(refused, RequestError)
    assert "is not the connector port of the worker" in str(refused)
    with CoordinatorClient(http_of(other)) as client:
        assert client.status().sources == {}


def test_pipelines_are_named_where_there_is_no_application(other: RunningWorker) -> None:
    with CoordinatorClient(http_of(other)) as client:
        client.start("counts", {"in": InputSpec(["sensors"])}, ["out"])
        client.announce({"later": ["sensors"]})
    said = run("segment", "create", "mine", "--yes").stderr
    assert said.startswith(f"worker {http_of(other)}: pipelines counts, later, data in ")


@pytest.mark.process
@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 1)])
def test_on_a_terminal_it_asks(other: RunningWorker, answer: bytes, status: int) -> None:
    code = f"from penstock.cli import connect, main; connect.DEFAULT_WORKER = {http_of(other)!r}; main()"
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code, "segment", "create", "mine"], stdin=theirs, stderr=subprocess.PIPE, text=True
        ) as process:
            os.write(ours, answer)
            _, said = process.communicate(timeout=200)
        assert process.returncode == status
        assert "It is not the worker of ./penstock-data. Change it?" in said
        segments = [one["name"] for one in connect.get_json(http_of(other), "/segments?prefix=mine")["segments"]]
        assert segments == (["mine"] if status == 0 else [])
    finally:
        os.close(ours)
        os.close(theirs)
