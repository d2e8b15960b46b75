"""`penstock send`."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli import send
from penstock.cli.app import app as cli
from penstock.core.errors import LimitExceeded, Unavailable
from penstock.protocol.connector import stream_id_of
from tests.client.source.stored import stored_messages
from tests.running_worker import RunningWorker

app = typer.Typer(pretty_exceptions_enable=False)
send.register(app)


def run(file: Path, *options: str) -> Result:
    result = CliRunner().invoke(app, [str(file), "--source", "files", "--stream", "lines", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_lines_are_sent_once_and_it_says_so(worker: RunningWorker, tmp_path: Path) -> None:
    options = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"line %d\n" % n for n in range(1, 3001)))
    printed = run(file, *options).stdout
    assert printed == "lines: 3,000 lines sent, 0 were there already, acknowledged up to line 3,000\n"
    with file.open("ab") as more:
        more.write(b"\r\nlast")
    printed = run(file, "--whole", "--address", f"127.0.0.1:{worker.ports['connector']}").stdout
    assert printed == "lines: 2 lines sent, 3,000 were there already, acknowledged up to line 3,002\n"
    file.write_bytes(b"another file\n")
    assert "is it the same file?" in run(file, *options).stdout
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.id for m in found] == list(range(1, 3003))
    assert [m.payload for m in found[-3:]] == [b"line 3000", b"", b"last"]


def test_a_last_line_without_its_end_waits_until_it_has_one(worker: RunningWorker, tmp_path: Path) -> None:
    address = ("--address", f"127.0.0.1:{worker.ports['connector']}")
    file = tmp_path / "lines"
    file.write_bytes(b"whole\nhalf")
    assert "no end yet" in run(file, *address).stdout
    file.write_bytes(b"whole\nhalf and more\n")
    assert "no end yet" not in run(file, *address).stdout
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.payload for m in found] == [b"whole", b"half and more"]


def test_the_worker_is_found_by_its_data(worker: RunningWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"")
    printed = run(file, "--data", str(tmp_path / "data")).stdout
    assert printed == "lines: 0 lines sent, 0 were there already, acknowledged up to line 0\n"


def test_a_line_that_is_too_long_is_an_error_that_names_it(worker: RunningWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" + b"x" * (4 << 20) + b"\n")
    with pytest.raises(LimitExceeded, match="line 2"):
        run(file, "--address", f"127.0.0.1:{worker.ports['connector']}")
    found = stored_messages(worker.address, "files")[stream_id_of("lines")]
    assert [m.payload for m in found] == [b"short"], "what came before it is stored"


def test_without_a_worker_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"")
    with pytest.raises(Unavailable):
        run(file, "--worker", "127.0.0.1:1")


def test_what_was_sent_can_be_looked_at(worker: RunningWorker, tmp_path: Path) -> None:
    option = ("--worker", f"127.0.0.1:{worker.ports['http']}")
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    run(file, *option)
    segments = [f"connector/files/{route}" for route in range(2)]
    printed = [CliRunner().invoke(cli, ["segment", "cat", name, *option]).stdout for name in segments]
    assert sorted(printed) == ["", "one\ntwo\n"]
    full = [CliRunner().invoke(cli, ["segment", "cat", name, "--full", *option]).stdout for name in segments]
    assert [json.loads(line)["message_id"] for line in "".join(full).splitlines()] == [1, 2]
