"""The commands, as a person runs them: real processes, a real worker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient, InputSpec
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process


PLAIN = {"COLUMNS": "100", "NO_COLOR": "1"}
FREE_PORTS = ["--connector-port", "0", "--segment-port", "0", "--http-port", "0"]


def penstock(*arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | PLAIN
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=environment,
    )


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


class Segments:
    """`penstock segment VERB` on one worker, in a process of its own; a call, of what must succeed, in this one."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._data = str(worker.data)

    def __call__(self, verb: str, *arguments: str, stdin: str | None = None) -> str:
        command = ["segment", verb, *arguments, "--data", self._data]
        done = CliRunner(env=PLAIN).invoke(app, command, input=stdin, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def command(self, verb: str, *arguments: str) -> str:
        done = self.run(verb, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, verb: str, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        return penstock("segment", verb, *arguments, "--data", self._data, stdin=stdin)


@pytest.fixture
def segment(worker: WorkerProcess) -> Segments:
    return Segments(worker)


def test_a_segment_s_whole_life(segment: Segments) -> None:
    assert segment.command("create", "life") == "created life\n"
    assert segment.command("append", "life", "one", "two", "three") == "appended 3 events to life\n"
    assert segment.command("cat", "life") == "one\ntwo\nthree\n"
    assert segment.command("cat", "life", "--offset", "11") == "two\nthree\n"
    assert segment.command("truncate", "life", "11") == "life now starts at 11\n"
    assert segment.command("cat", "life") == "two\nthree\n"
    assert segment.command("seal", "life") == "sealed life\n"
    assert segment.run("append", "life", "four").returncode == 1
    info = json.loads(segment.command("info", "life", "--json"))
    assert (info["start"], info["length"], info["sealed"]) == (11, 35, True)
    assert "sealed" in segment.command("info", "life")
    assert segment.command("delete", "life", "--yes") == "deleted life\n"
    assert segment.run("info", "life").returncode == 1


def test_what_was_done_is_json_for_programs(segment: Segments) -> None:
    name = "machine/readable"
    assert json.loads(segment("create", name, "--json")) == {"segment": name, "created": True}
    segment("append", name, "one")
    assert json.loads(segment("truncate", name, "11", "--json")) == {"segment": name, "start": 11}
    assert json.loads(segment("seal", name, "--json")) == {"segment": name, "sealed": True}
    asked = segment("delete", name, "--json", "--yes")
    assert json.loads(asked) == {"segment": name, "deleted": True}


def test_list_shows_what_there_is(segment: Segments) -> None:
    for name in ("list/b", "list/a"):
        segment("create", name)
    assert [s["name"] for s in json.loads(segment("list", "list/", "--json"))] == ["list/a", "list/b"]
    assert "list/a" in segment("list")
    assert segment("list", "nothing like this") == "no segments\n"


def test_lines_are_events_and_a_named_writer_continues_where_it_was(segment: Segments) -> None:
    first = segment("append", "lines", "--create", "--writer", "import", stdin="1\n2\n3\n")
    assert first == "appended 3 events to lines\n"
    again = segment("append", "lines", "--writer", "import", stdin="1\n2\n3\n4\n5\n")
    assert again == "appended 2 events to lines, 3 stored before\n"
    assert segment("cat", "lines") == "1\n2\n3\n4\n5\n"
    told = json.loads(segment("append", "lines", "--writer", "import", "--json", stdin="1\n2\n3\n4\n5\n"))
    assert told == {"segment": "lines", "appended": 0, "stored_before": 5}


def test_raw_prints_the_bytes_as_they_are_stored(segment: Segments) -> None:
    segment("append", "raw", "--create", "x")
    assert segment("cat", "raw", "--raw") == "\0\0\0\0\0\0\0\1x"


def test_follow_waits_for_more_until_ctrl_c(segment: Segments, worker: WorkerProcess) -> None:
    segment("append", "follow", "--create", "before")
    command = [sys.executable, "-m", "penstock", "segment", "cat", "follow", "-f", "--data", str(worker.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == "before\n"
        segment("append", "follow", "after")
        assert following.stdout.readline() == "after\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(SECONDS_MAX) == 130
        assert following.stderr.read() == ""


def test_a_quota_is_shown_and_refuses_with_a_hint(segment: Segments) -> None:
    segment("create", "small", "--quota", "1KiB")
    assert "1024" in segment("info", "small")
    assert json.loads(segment("info", "small", "--json"))["attributes"]


def test_verify_reads_every_checksum_beside_the_running_worker(segment: Segments) -> None:
    segment("append", "verified", "--create", "some bytes")
    assert "every checksum matches" in segment("verify")
    assert json.loads(segment("verify", "--json"))["problems"] == []


def test_verify_names_what_is_damaged_and_exits_with_1(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        Segments(worker)("append", "victim", "--create", "a needle in the journal")
        worker.stop()
    file = tmp_path / "data" / "journal" / f"{0:020d}.journal"
    data = bytearray(file.read_bytes())
    where = data.index(b"needle")
    data[where] ^= 1
    file.write_bytes(data)
    done = penstock("segment", "verify", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert file.name in done.stdout
    assert "victim" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["segment", "info", "missing"], "segment 'missing' not found"),
        (["segment", "cat", "missing"], "segment 'missing' not found"),
        (["segment", "truncate", "missing", "5"], "segment 'missing' not found"),
    ],
)
def test_a_mistake_gets_one_sentence_and_a_hint(worker: WorkerProcess, arguments: list[str], said: str) -> None:
    done = penstock(*arguments, "--data", str(worker.data))
    assert done.returncode == 1
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_output_that_is_not_there_yet_reports_what_it_waits_for(worker: WorkerProcess) -> None:
    def said(segment: str) -> str:
        done = CliRunner(env=PLAIN).invoke(app, ["segment", "cat", segment, "--data", str(worker.data)])
        return done.stderr if done.exit_code == 0 else f"{done.exception}\n{getattr(done.exception, 'hint', '')}"

    with CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
        assert "no pipeline 'early' is known" in said("pipeline/early/out")
        client.announce({"early": ["s"]})
        waits = "pipeline/early/out does not exist yet: early is STARTING, and has committed no epoch"
        assert waits in said("pipeline/early/out")
        assert "penstock run reports when the pipeline is ready" in said("pipeline/early/out")
        client.start("early", {"in": InputSpec(["s"])}, ["out"])
        empty = "pipeline/early/out is empty: early is STARTING, and has committed no epoch yet\n"
        assert said("pipeline/early/out") == empty
        assert "early has no port 'oops'\nIt has: out." in said("pipeline/early/oops")


def test_a_missing_worker_is_reported_with_how_to_start_one(tmp_path: Path) -> None:
    for where in (["--data", str(tmp_path)], ["--worker", "127.0.0.1:1"]):
        done = penstock("segment", "list", *where)
        assert done.returncode == 1
        assert "penstock worker" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_invalid_size_is_explained() -> None:
    done = penstock("worker", "--chapter-size", "lots")
    assert done.returncode == 2
    assert "64MiB" in done.stderr


def test_a_second_worker_names_the_process_that_has_the_data(worker: WorkerProcess) -> None:
    done = penstock("worker", "--data", str(worker.data), *FREE_PORTS)
    assert done.returncode == 1
    assert "in use by" in done.stderr


@pytest.mark.parametrize("has_store", [False, True])
def test_a_port_that_is_taken_is_reported(worker: WorkerProcess, tmp_path: Path, *, has_store: bool) -> None:
    store = ["--store", f"file://{tmp_path}/store"] if has_store else []
    arguments = ["--data", str(tmp_path / "data"), *store, *FREE_PORTS, "--chapter-size", "1MiB", "--reserve", "1MiB"]
    done = penstock("worker", *arguments, "--segment-port", str(worker.segment_port))
    assert done.returncode == 1
    assert f"127.0.0.1:{worker.segment_port}" in done.stderr.replace("', ", ":")
    assert "Traceback" not in done.stderr
    assert "background task" not in done.stderr


def test_sigterm_stops_in_order(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        process = worker._process
        assert process is not None
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0
        assert not (tmp_path / "data" / "ports.json").exists()


def test_version_and_help_are_there() -> None:
    assert penstock("--version").stdout.startswith("penstock ")
    said = penstock("--help").stdout
    for verb in ("worker", "segment", "run"):
        assert verb in said


def test_names_that_look_like_markup_are_shown_as_they_are(segment: Segments) -> None:
    segment("create", "[/odd]")
    assert "[/odd]" in segment("list")
    assert "[/odd]" in segment("info", "[/odd]")
    segment("delete", "[/odd]", "--yes")


def test_an_address_that_is_not_a_worker_is_reported_without_a_traceback(worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("half a fi")
    for where in (["--worker", worker.address], ["--worker", "bad host:99"], ["--data", str(tmp_path)]):
        done = penstock("segment", "list", *where)
        assert done.returncode == 1
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr


def test_reading_beyond_the_end_is_an_error(segment: Segments) -> None:
    segment("append", "short", "--create", "x")
    done = segment.run("cat", "short", "--offset", "99")
    assert done.returncode == 1
    assert "ends at 9" in done.stderr


def test_a_worker_with_tls_is_used_with_its_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with WorkerProcess(tmp_path / "data", *tls) as worker:
        https = ["--worker", f"https://127.0.0.1:{worker.http_port}"]
        without = penstock("segment", "create", "secret", *https)
        assert without.returncode == 1
        assert "no TLS connection" in without.stderr
        ca = ["--tls-ca", str(tmp_path / "ca.pem")]
        assert penstock("segment", *ca, "create", "secret", *https).returncode == 0
        assert Segments(worker).run("create", "another").returncode == 0, "its data directory names the certificate"


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "penstock.cli.run":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from penstock.cli import main
main()
"""


def test_ctrl_c_while_a_command_is_imported_ends_quietly() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "run", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
