"""`penstock tail`, against a worker in this process."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.tail import parse_condition
from penstock.core.errors import RequestError
from tests.support.running_worker import RunningWorker

Send = Callable[..., None]


def run(worker: RunningWorker, *arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--worker", f"127.0.0.1:{worker.ports['http']}"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def send(worker: RunningWorker, tmp_path: Path) -> Send:
    def lines(source: str, *given: str, stream: str = "s") -> None:
        file = tmp_path / f"{source}-{stream}"
        file.write_text("".join(f"{line}\n" for line in given))
        run(worker, "send", str(file), "--source", source, "--stream", stream, "--end")

    return lines


def test_the_last_events_are_printed(worker: RunningWorker, send: Send) -> None:
    send("tills", *(f"line {number}" for number in range(30)))
    assert run(worker, "tail", "tills").stdout.splitlines() == [f"line {number}" for number in range(20, 30)]
    assert run(worker, "tail", "tills", "-n", "2").stdout.splitlines() == ["line 28", "line 29"]
    assert run(worker, "tail", "tills", "-n", "0").stdout == ""


def test_nothing_to_print_is_explained(worker: RunningWorker, send: Send) -> None:
    run(worker, "segment", "create", "empty", "--yes")
    assert "no events are stored" in run(worker, "tail", "segment:empty").stderr
    send("tills", '{"amount": 1}')
    none = run(worker, "tail", "tills", "--where", "amount > 1")
    assert (none.stdout, none.stderr) == ("", "tills: no stored event matches. With -f it prints those that arrive\n")


def test_conditions_choose_events_by_their_fields(worker: RunningWorker, send: Send) -> None:
    send("tills", *(json.dumps({"id": n, "user": {"name": f"u{n % 3}"}}) for n in range(9)), "nonsense")
    found = run(worker, "tail", "tills", "-n", "100", "--where", "id >= 4", "--where", "user.name = u1")
    assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == [4, 7]
    assert "its value is not valid JSON" in found.stderr
    last = run(worker, "tail", "tills", "-n", "1", "--where", "user.name = u0").stdout
    assert json.loads(last)["id"] == 6, "the last one that matches"


def test_an_event_cannot_break_the_output(worker: RunningWorker, send: Send) -> None:
    send("tills", "[" * 100_000, '{"a": "\\ud800"}')
    shown = run(worker, "tail", "tills", "--codec", "json")
    assert shown.stdout == '{"a": "\\ud800"}\n'
    assert "nested too deeply" in shown.stderr


def test_an_event_can_be_printed_with_its_place(worker: RunningWorker, send: Send) -> None:
    send("tills", '{"id": 1}')
    [line] = run(worker, "tail", "tills", "--json", "--codec", "json").stdout.splitlines()
    shown = json.loads(line)
    assert shown["value"] == {"id": 1}
    assert {"segment", "offset", "stream_id", "message_id", "event_time", "key"} <= shown.keys()


@pytest.mark.parametrize(
    ("codec", "more", "line", "value"),
    [
        ("csv", ("--schema", "id INT, name STRING"), "7,x", {"id": 7, "name": "x"}),
        ("yaml", (), "{a: 1}", {"a": 1}),
        ("string", (), "seven", "seven"),
        ("logfmt", (), "a=1", {"a": "1"}),
    ],
)
def test_any_codec_decodes(
    worker: RunningWorker, send: Send, codec: str, more: tuple[str, ...], line: str, value: Any
) -> None:
    send("tills", line)
    assert json.loads(run(worker, "tail", "tills", "--codec", codec, *more).stdout) == value


def test_a_segment_and_the_bytes_that_are_no_text_are_shown(worker: RunningWorker) -> None:
    run(worker, "segment", "append", "raw", "one\ntwo", "\x1b[31m", "--create", "--yes")
    assert run(worker, "tail", "raw").stdout.splitlines() == ["one\\ntwo", "\\x1b[31m"]
    assert run(worker, "tail", "segment:raw", "-n", "1").stdout.splitlines() == ["\\x1b[31m"]


def test_new_events_are_followed_also_in_segments_that_did_not_exist(worker: RunningWorker, send: Send) -> None:
    send("tills", "before")
    command = [sys.executable, "-m", "penstock", "tail", "tills", "-f", "-n", "1"]
    command += ["--worker", f"127.0.0.1:{worker.ports['http']}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        try:
            assert follower.stdout.readline() == "before\n"
            send("tills", "after", stream="t")
            assert follower.stdout.readline() == "after\n"
        finally:
            follower.terminate()


def test_what_does_not_exist_is_an_error(worker: RunningWorker) -> None:
    with pytest.raises(RequestError, match="there is no source, pipeline output or segment 'nobody'"):
        run(worker, "tail", "nobody")
    run(worker, "segment", "append", "raw", "x", "--create", "--yes")
    with pytest.raises(RequestError, match="csv cannot be decoded without a schema"):
        run(worker, "tail", "raw", "--codec", "csv")


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a = 1", {"a": 1}, True),
        ("a=1", {"a": 2}, False),
        ('a == "1"', {"a": "1"}, True),
        ("a != 1", {}, True),
        ("a < 1", {"a": "text"}, False),
        ("a.0.b >= 2", {"a": [{"b": 2}]}, True),
        ("a ~ ^x", {"a": "xy"}, True),
        ("a ~ ^x", {"a": "yx"}, False),
        ("a = null", {"a": None}, True),
        ("a < 1", {}, False),
    ],
)
def test_conditions(text: str, value: Any, holds: bool) -> None:
    assert parse_condition(text).holds(value) is holds


@pytest.mark.parametrize("text", ["", "a", "= 1", "a ~ ["])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--where"):
        parse_condition(text)
