"""`penstock doctor`: on this machine, and on machines that lack something."""

import errno
import importlib.metadata
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli import doctor
from penstock.cli.app import app
from penstock.cli.connect import worker_status
from penstock.client.credentials import TOKEN_FILE
from tests.support.running_worker import RunningWorker
from tests.support.worker_process import WorkerProcess


def found(check: Iterator[doctor.Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in check]


def test_a_machine_that_runs_the_tests_is_in_order(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path / "data"), "--json"])
    findings = {one["about"]: one for one in json.loads(result.stdout) if one["about"]}
    assert result.exit_code == 0
    assert {findings[name]["level"] for name in ("versions", "Java", "Spark", "clock")} == {"ok"}
    assert "pyspark 4." in findings["Spark"]["text"]
    assert not (tmp_path / "data").exists()


@pytest.mark.process
def test_it_looks_at_the_worker_of_the_directory_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_FILE, "/no/such/token")  # that of another worker
    with WorkerProcess(tmp_path / "data") as worker:
        result = CliRunner().invoke(app, ["doctor", "--data", str(worker.data)])
    assert f"127.0.0.1:{worker.http_port} answers, and accepts this user's token" in result.stdout


def test_it_names_another_version_and_what_the_worker_reports(
    worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "__version__", "9.9.9")
    status = worker_status(f"127.0.0.1:{worker.ports['http']}")
    status = msgspec.structs.replace(status, problems=["the disk is full"])
    monkeypatch.setattr(doctor, "worker_status", lambda _: status)
    reported = found(doctor.access("127.0.0.1:1", tmp_path))
    assert ("warning", f"it runs version {__version__}, but this is 9.9.9") in reported
    assert ("error", "the disk is full") in reported


def test_a_check_that_the_system_forbids_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> Iterator[doctor.Finding]:
        yield doctor.Finding("note", "ports", "one was found")
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/somewhere/ports.json")

    monkeypatch.setattr(doctor, "ports", denied)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {one["about"]: one for one in json.loads(result.stdout) if one["about"]}
    assert (findings["ports"]["level"], findings["ports"]["text"]) == (
        "error",
        "/somewhere/ports.json: Permission denied",
    )
    assert {"Java", "worker"} <= findings.keys()


def test_a_worker_that_was_named_and_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        result = CliRunner().invoke(app, ["doctor", "--worker", address, "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "no worker answers" in result.stdout


def test_without_java_the_hint_names_where_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("penstock.spark.run.java._packaged", lambda: None)
    [finding] = doctor.java()
    assert (finding.level, finding.text) == ("error", "Spark needs Java 17 or newer, and there is none")
    assert finding.hint
    monkeypatch.setattr(doctor, "version", _missing)
    without_spark = [("note", "Spark needs Java 17 or newer, and there is none; nothing else needs it")]
    assert found(doctor.java()) == without_spark


def _missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_a_machine_without_spark_can_send_and_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", _missing)
    [finding] = doctor.spark()
    assert (finding.level, finding.text) == ("note", "pyspark is not installed")
    assert "pip install 'penstock-streams[spark]'" in finding.hint


def test_a_package_that_spark_needs_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        return _missing(name) if name == "pandas" else importlib.metadata.version(name)

    monkeypatch.setattr(doctor, "version", version)
    assert ("error", "pandas is not installed") in found(doctor.spark())


def test_what_the_platform_lacks_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "limitations", lambda: ["syncfs is missing"])
    assert ("warning", "syncfs is missing") in found(doctor.python())


def test_packages_of_another_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "3.5.1", "pandas": "2.2.3", "pyarrow": "18.0.0", "protobuf": "7.0.0"}
    monkeypatch.setattr(doctor, "version", versions.__getitem__)
    [(level, text)] = found(doctor.spark())
    assert level == "error"
    assert text.startswith("pyspark 3.5.1 is installed, but ")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    [(level, text)] = found(doctor.disk(tmp_path))
    assert level == "error"
    assert "cannot be written: Permission denied" in text


def test_a_disk_that_is_nearly_full_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_FREE_MIN", 1 << 62)
    assert [level for level, _ in found(doctor.disk(tmp_path / "not" / "yet"))] == ["warning"]


def test_a_clock_that_was_never_set_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    assert found(doctor.clock(tmp_path)) == [("error", "it is set to 1970-01-02 00:00:00 UTC")]


def test_a_disk_with_another_clock_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: now)
    [(level, text)] = found(doctor.clock(tmp_path))
    assert (level, "the disk's clock differs by -60.0 s" in text) == ("warning", True)


def test_ports_that_another_program_has_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "DEFAULT_PORTS", {"http": port})
        assert found(doctor.ports(tmp_path)) == [("note", f"in use: {port} (http)")]
