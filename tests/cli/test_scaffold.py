"""`penstock new connector`: what it writes. That it installs and passes is shown in tests/packaging."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli.app import app
from penstock.cli.scaffold import write_connector
from penstock.core.errors import RequestError

SOURCES = Path(__file__).parents[2] / "src"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Where the new project can be imported, and its metadata are found."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{SOURCES}", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.process
def test_what_is_written_passes_the_strictest_type_checker(tmp_path: Path) -> None:
    write_connector("my-queue", tmp_path)
    done = run(tmp_path, "-m", "mypy", "--strict", "my_queue.py", "test_my_queue.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_requirement_holds_for_this_version_and_for_its_release(tmp_path: Path) -> None:
    write_connector("my-queue", tmp_path)
    with (tmp_path / "pyproject.toml").open("rb") as file:
        (requirement,) = map(Requirement, tomllib.load(file)["project"]["dependencies"])
    assert requirement.name == "penstock-streams"
    for version in (__version__, Version(__version__).base_version, "99.0"):
        assert requirement.specifier.contains(version), version


def test_the_names_of_files_and_class_follow_the_type_s(tmp_path: Path) -> None:
    written = write_connector("my-2nd-queue", tmp_path / "a" / "b")
    assert [path.name for path in written] == ["my_2nd_queue.py", "test_my_2nd_queue.py", "pyproject.toml", "README.md"]
    assert "class My2ndQueue(Connector[My2ndQueueOptions]):" in written[0].read_text()
    assert 'my-2nd-queue = "my_2nd_queue:My2ndQueue"' in written[2].read_text()
    assert not any("$" in path.read_text() for path in written)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Queue", "is not a valid name for a type"),
        ("../queue", "is not a valid name for a type"),
        ("tcp-server", "the connector type tcp-server already exists"),
        ("queue", "queue.py would hide"),
        ("class", "class.py would hide"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_and_nothing_is_written(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        write_connector(name, tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match="already exists"):
        write_connector("my-queue", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


_RUN_SECONDS_MAX = 240.0
"""Until the first result: Spark starts, on a machine that does other things too."""


def test_what_it_writes_is_an_application_that_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    made = CliRunner().invoke(app, ["init", str(folder)])
    assert made.exit_code == 0
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "app.yaml", "pipeline.py"]
    checked = CliRunner().invoke(app, ["check", str(folder / "app.yaml")], env={})
    assert checked.exit_code == 0, checked.exception
    assert "app.yaml is valid" in checked.output
    assert "note:" not in checked.output


def test_a_folder_that_cannot_be_created_is_reported_with_a_hint_and_one_with_a_space_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        made = CliRunner().invoke(app, ["init", str(place)])
        assert isinstance(made.exception, RequestError)
        assert "penstock init DIR" in made.exception.hint
    made = CliRunner().invoke(app, ["init", str(tmp_path / "a b")])
    assert f"Next: cd '{tmp_path}/a b' && penstock run app.yaml" in made.output


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("mine")
    made = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert isinstance(made.exception, RequestError)
    assert "pipeline.py already exists" in str(made.exception)
    assert (tmp_path / "pipeline.py").read_text() == "mine"
    assert not (tmp_path / "app.yaml").exists()


@pytest.mark.spark
def test_what_it_writes_runs(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["init", str(tmp_path)])
    port = _free_port()
    command = [sys.executable, "-m", "penstock", "run", "app.yaml"]
    log = (tmp_path / "run.out").open("wb")
    running = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PORT": str(port)}, stdout=log, stderr=log, start_new_session=True
    )
    try:
        _send(port, b'{"room": "attic", "celsius": 31.5}\n{"room": "cellar", "celsius": 11}\nno reading\n', running)
        assert _first_result(tmp_path, running) == '{"room":"attic","celsius":31.5}\n'
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        log.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _send(port: int, data: bytes, running: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _RUN_SECONDS_MAX
    while running.poll() is None and time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as peer:
                peer.sendall(data)
                return
        except ConnectionRefusedError:
            time.sleep(0.2)
    pytest.fail("nobody listens")


def _first_result(folder: Path, running: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + _RUN_SECONDS_MAX
    while running.poll() is None and time.monotonic() < until:
        found = "".join(file.read_text() for file in (folder / "warm").glob("part-*"))
        if found:
            return found
        time.sleep(0.2)
    return f"nothing: {(folder / 'run.out').read_text()}"
