"""What `penstock new connector` and `penstock init` write. `tests/packaging` shows that the connector installs and
passes its tests; `tests/docs` follows the tutorial, which runs the application.
"""

import os
import re
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
from penstock.cli.example_apps import example_app
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


# Examples

EXAMPLES = sorted(path.stem for path in (SOURCES.parent / "examples").glob("*.yaml"))


def test_examples_are_listed_with_what_they_do() -> None:
    done = CliRunner().invoke(app, ["init", "--list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert all(name in done.stdout for name in EXAMPLES)
    assert "Orders arrive over HTTP, one JSON document per line" in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_whole_and_is_valid_where_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need a variable have it named in their README."""
    made = CliRunner().invoke(app, ["init", "--example", name, str(tmp_path / "app")])
    assert made.exit_code == 0, made.output
    assert f"penstock run {name}.yaml" in made.stdout
    monkeypatch.chdir(tmp_path / "app")
    readme = Path("README.md").read_text()
    assert f"    penstock run {name}.yaml" in readme
    for variable in re.findall(r"\$\{([A-Z_]+)\}", Path(f"{name}.yaml").read_text()):
        assert variable in readme
        monkeypatch.setenv(variable, "x")
    checked = CliRunner().invoke(app, ["check", f"{name}.yaml"])
    assert checked.exit_code == 0, checked.exception
    again = CliRunner().invoke(app, ["init", "--example", name, "."])
    assert isinstance(again.exception, RequestError)
    assert "already exists" in str(again.exception)


def test_an_example_that_does_not_exist_has_a_suggestion(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["init", "--example", "shpo", str(tmp_path / "app")])
    assert isinstance(made.exception, RequestError)
    assert "shop" in made.exception.hint
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_table_of_examples_has_each(name: str) -> None:
    line = f"| [{name}]({name}.yaml) | {example_app(name).about} |"
    assert line in (SOURCES.parent / "examples" / "README.md").read_text(), f"add to examples/README.md: {line}"
