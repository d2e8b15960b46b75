"""What all commands have in common: examples in `--help`, and `--json` where they list or report something."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.examples import EXAMPLES

WITHOUT_JSON = {
    "they write logs or draw a screen while they run": {"worker", "run", "top", "dashboard"},
    "their output is for programs already": {"schema", "segment cat"},
}

ROOT: Any = get_command(app)


def walked(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands, by the words after `penstock`."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path), command
        return
    context = command.context_class(command, info_name="penstock")
    for name in command.list_commands(context):
        yield from walked(command.get_command(context, name), (*path, name))


COMMANDS = dict(walked())


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS), "add examples to penstock.cli.examples"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_examples_are_in_its_help_and_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    assert "Examples" in command.epilog
    for example in EXAMPLES[name]:
        first, *words = shlex.split(example)
        ends = [words.index(one) for one in ("|", ">", "<") if one in words]
        words = words[: min(ends)] if ends else words
        assert [first, *words[: len(name.split())]] == ["penstock", *name.split()]
        for word in words:
            if re.fullmatch(r"\w+\.\w+", word):
                Path(word).touch()  # some commands want a file that exists
        with command.make_context(name, words[len(name.split()) :]):
            pass  # it raises for an option that does not exist, and for an argument that is missing


def test_every_command_has_json_or_a_reason_why_not() -> None:
    exempt = set().union(*WITHOUT_JSON.values())
    without = {name for name, one in COMMANDS.items() if "--json" not in {each for p in one.params for each in p.opts}}
    assert without == exempt


@pytest.mark.parametrize("command", [["sink", "types"], ["connectors"], ["init", "--list"]])
def test_lists_are_json_for_programs(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)


@pytest.mark.process
def test_bash_completes_once_completion_is_installed(tmp_path: Path) -> None:
    """A new shell of a user without any other settings."""
    bin_folder = Path(sys.executable).parent
    environment = {"HOME": str(tmp_path), "PATH": f"{bin_folder}:{os.environ['PATH']}", "SHELL": "/bin/bash"}
    # The shell must still be there: the command looks for it among its parents.
    command = ["bash", "--norc", "-c", "penstock --install-completion; exit $?"]
    installed = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    script = """
        source ~/.bashrc
        complete -p penstock
        COMP_WORDS=(penstock dead-letters re); COMP_CWORD=2; COMP_LINE="penstock dead-letters re"
        _penstock_completion penstock; echo "completes: ${COMPREPLY[*]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, check=False, capture_output=True, text=True
    )
    assert "completes: replay" in done.stdout, done.stdout + done.stderr
