"""`penstock conformance source`: a program in a process, and its report."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.core.errors import RequestError

PROGRAM = """
import sys
from penstock.client import Message, Source

source = Source(sys.argv[1], source="numbers")
first = int(sys.argv[2])
source.stream("one", lambda after: (Message(n, b"%d" % n) for n in range(first if after is None else after + 1, 201)))
source.run()
"""


WRONG = """
import socket, sys

host, _, port = sys.argv[1].partition(":")
with socket.create_connection((host, int(port))) as connected:
    connected.sendall(bytes.fromhex("00000001 63"))
    connected.recv(100)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.process
def test_a_program_is_started_for_each_scenario_and_passes(program: str) -> None:
    scenarios = ["-s", "plain", "-s", "restart-elsewhere"]
    command = ["conformance", "source", "--listen", "127.0.0.1:0", *scenarios, "--"]
    done = CliRunner().invoke(app, [*command, sys.executable, program, "{address}", "1"])
    assert done.exit_code == 0, done.output
    assert "✓ plain" in done.stdout
    assert done.stdout.endswith("2 passed, 0 failed\n")


@pytest.mark.process
def test_a_failure_names_the_rule_and_its_sentence() -> None:
    command = ["conformance", "source", "--listen", "127.0.0.1:0", "-s", "restart", "--json", "--"]
    done = CliRunner().invoke(app, [*command, sys.executable, "-c", WRONG, "{address}"])
    assert done.exit_code == 1, done.output
    (verdict,) = json.loads(done.stdout)
    assert verdict["scenario"] == "restart"
    assert verdict["outcome"] == "failed"
    (finding,) = verdict["findings"]
    assert finding["rule"] == "malformed"
    assert finding["section"] == "docs/connector-protocol.md, Frames"
    assert finding["sentence"].startswith("Anything else in a body")


def test_scenarios_are_listed_and_unknown_ones_refused() -> None:
    done = CliRunner().invoke(app, ["conformance", "source", "--list", "--json"])
    assert {"plain", "migrate"} < {one["name"] for one in json.loads(done.stdout)}
    assert CliRunner().invoke(app, ["conformance", "source", "-s", "nothing"]).exit_code == 1


def test_a_program_that_cannot_be_found_is_named() -> None:
    done = CliRunner().invoke(
        app, ["conformance", "source", "--listen", "127.0.0.1:0", "--", "no-such-program", "{address}"]
    )
    assert isinstance(done.exception, RequestError)
    assert str(done.exception) == "no-such-program: command not found"


@pytest.mark.process
def test_a_program_that_fails_is_reported_with_its_exit_status() -> None:
    command = ["conformance", "source", "--listen", "127.0.0.1:0", "-s", "plain", "--json", "--"]
    done = CliRunner().invoke(app, [*command, sys.executable, "-c", "raise SystemExit(3)"])
    (verdict,) = json.loads(done.stdout)
    assert "the program ended: exit status 3" in verdict["findings"][0]["text"]
