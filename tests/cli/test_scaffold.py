"""What `penstock new connector` and `penstock init` write. `tests/packaging` shows that the connector installs and
passes its tests; `tests/docs` follows the tutorial, which runs the application.
"""

import os
import subprocess
import sys
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
    kept = f"--cache-dir={SOURCES.parent / '.mypy_cache' / 'scaffold'}"  # what is imported does not change often
    done = run(tmp_path, "-m", "mypy", "--strict", kept, "my_queue.py", "test_my_queue.py")
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
