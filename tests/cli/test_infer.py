"""`penstock infer`, against a worker in this process."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from tests.support.running_worker import RunningWorker


def run(worker: RunningWorker, *arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--worker", f"127.0.0.1:{worker.ports['http']}"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def send(worker: RunningWorker, tmp_path: Path) -> object:
    def lines(source: str, *given: str) -> None:
        file = tmp_path / source
        file.write_text("".join(f"{line}\n" for line in given))
        run(worker, "send", str(file), "--source", source, "--stream", "s", "--end")

    return lines


def test_a_schema_is_proposed_from_stored_events(worker: RunningWorker, send: object) -> None:
    documents = [{"id": n, "at": f"2026-01-02T03:04:{n:02}Z", "note": None if n else "x"} for n in range(20)]
    send("tills", *map(json.dumps, documents), '{"id": "odd"}', "nonsense")  # type: ignore[operator]
    printed = run(worker, "infer", "tills").stdout
    assert printed.splitlines() == [
        "# 22 events of tills; 1 not readable as json",
        "# `id`: STRING, because the values differ: bigint in 20, string in 1",
        "# missing or null in some: `at` (in 1), `note` (in 20)",
        "# `at` is a candidate for the event time: a time in ISO 8601",
        "codec: json",
        "schema: id STRING, at TIMESTAMP, note STRING",
    ]
    assert parse_ddl(yaml.safe_load(printed)["schema"])
    assert json.loads(run(worker, "infer", "tills", "--samples", "5", "--json").stdout)["samples"] == 5


def test_a_csv_header_names_the_fields(worker: RunningWorker, send: object) -> None:
    send("rows", "id,at", "1,1767323045", "2,1767323046")  # type: ignore[operator]
    lines = run(worker, "infer", "rows", "--header").stdout.splitlines()
    assert lines == [
        "# 2 events of rows",
        "# `at` is a candidate for the event time: may be seconds since 1970",
        "codec: csv",
        "schema: id BIGINT, at BIGINT",
    ]
    assert "schema: a STRING, b STRING" in run(worker, "infer", "rows", "--columns", "a,b").stdout


def test_on_a_terminal_it_says_what_it_does(
    worker: RunningWorker, send: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    send("tills", '{"id": 1}', '{"id": 2}')  # type: ignore[operator]
    assert run(worker, "infer", "tills").stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = run(worker, "infer", "tills").stderr
    assert "reading tills …" in shown
    assert "comparing 2 events …" in shown


def test_a_source_whose_events_show_no_fields_is_an_error(worker: RunningWorker, send: object) -> None:
    with pytest.raises(RequestError, match="source 'nobody' not found"):
        run(worker, "infer", "nobody")
    send("words", "hello", "world")  # type: ignore[operator]
    with pytest.raises(RequestError, match="not JSON, MessagePack or CSV"):
        run(worker, "infer", "words")
