"""docs/cli.md has every command, and no other; commands on the pages, and their options, exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_COMMAND = re.compile(r"^\| `penstock ((?:[a-z-]+ ?)+)", re.MULTILINE)
_SHELL = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END = {"|", "||", "&", "&&", ";", ">", ">>", "<", "--"}


def test_the_page_has_every_command_and_no_other() -> None:
    documented = {match.strip() for match in _COMMAND.findall(PAGE.read_text())}
    assert documented == set(_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_commands_and_options_in_shell_blocks_exist(page: Path) -> None:
    assert [(line, wrong) for line in command_lines(page.read_text()) if (wrong := unknown(line))] == []


def test_a_command_and_an_option_that_are_gone_are_found() -> None:
    text = "```console\n$ DEBUG=1 penstock run app.yaml \\\n>   --gone 1 | penstock tail x -f\npenstock printed\n```\n"
    assert [unknown(line) for line in command_lines(text)] == [["--gone"], []]
    assert unknown(["vanish"]) == ["vanish"]


def command_lines(page: str) -> Iterator[list[str]]:
    """The arguments of every `penstock` in the page's shell blocks; in a session, what follows its prompts."""
    for block in _SHELL.findall(page):
        text = re.sub(r"\\\n>? *", " ", block)
        typed = re.findall(r"^\$ (.*)$", text, re.MULTILINE) if "$ " in text else text.splitlines()
        for line in typed:
            words = _words(line)
            for at, word in enumerate(words):
                if word == "penstock" and all("=" in before for before in _until_end(words[:at][::-1])):
                    yield _until_end(words[at + 1 :])


def unknown(arguments: list[str]) -> list[str]:
    """The names of commands and options that do not exist."""
    command: Any = typer.main.get_command(app)
    wrong = []
    for argument in arguments:
        if argument.startswith("-") and argument != "-" and not argument[1:].isdigit():
            name = argument.partition("=")[0]
            options = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
            wrong += [name] if name not in {*options, "--help", "--version"} else []
        elif hasattr(command, "list_commands"):
            if (found := command.get_command(None, argument)) is None:
                return [*wrong, argument]
            command = found
    return wrong


def _words(line: str) -> list[str]:
    splitter = shlex.shlex(line, posix=True, punctuation_chars=True)
    splitter.whitespace_split = True
    try:
        return list(splitter)
    except ValueError:  # an open quote: the line goes on in the next one
        return line.split()


def _until_end(words: list[str]) -> list[str]:
    end = next((at for at, word in enumerate(words) if word in _END), len(words))
    return words[:end]


def _commands(command: Any, *names: str) -> Iterator[str]:
    """Typer brings its own click: a group is known by its commands."""
    if not hasattr(command, "list_commands"):
        yield " ".join(names)
        return
    for name in command.list_commands(None):
        yield from _commands(command.get_command(None, name), *names, name)
