"""docs/cli.md has every command, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from penstock.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
_COMMAND = re.compile(r"^\| `penstock ((?:[a-z-]+ ?)+)", re.MULTILINE)


def test_the_page_has_every_command_and_no_other() -> None:
    documented = {match.strip() for match in _COMMAND.findall(PAGE.read_text())}
    assert documented == set(_commands(typer.main.get_command(app)))


def _commands(command: Any, *names: str) -> Iterator[str]:
    """Typer brings its own click: a group is known by its commands."""
    if not hasattr(command, "list_commands"):
        yield " ".join(names)
        return
    for name in command.list_commands(None):
        yield from _commands(command.get_command(None, name), *names, name)
