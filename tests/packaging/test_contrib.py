"""The files in contrib/ start commands that exist, with options that they accept."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app

CONTRIB = Path(__file__).parent.parent.parent / "contrib"
UNITS = sorted((CONTRIB / "systemd").glob("*.service"))


def commands() -> dict[str, list[str]]:
    """File → the words of the command that it starts."""
    found = {}
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        found[unit.name] = shlex.split(line)
    text = (CONTRIB / "container" / "Containerfile").read_text()
    found["Containerfile"] = [
        word for line in re.findall(r"^(?:ENTRYPOINT|CMD) \[(.*)\]$", text, re.MULTILINE) for word in _words(line)
    ]
    return found


def _words(line: str) -> list[str]:
    return re.findall(r'"([^"]*)"', line)


@pytest.mark.parametrize("name", commands())
def test_a_command_has_the_options_it_is_started_with(name: str) -> None:
    program, command, *rest = commands()[name]
    assert Path(program).name == "penstock"
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    options = [word for word in rest if word.startswith("--")]
    assert options
    assert not [option for option in options if option not in shown]


def test_only_the_unit_of_the_worker_starts_a_worker() -> None:
    """penstock run with --data starts one if none answers yet, without the options of the other unit."""
    assert "--data" not in commands()["penstock-run@.service"]
    text = (CONTRIB / "systemd" / "penstock-run@.service").read_text()
    assert "PENSTOCK_WORKER=127.0.0.1:7102" in text
    assert "--checkpoint /var/lib/penstock/checkpoints" in text, "where penstock backup finds them"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """The program need not be installed."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert str(copy.name) not in done.stderr, done.stderr
