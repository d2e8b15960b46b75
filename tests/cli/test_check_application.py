"""`penstock check app.yaml`: what would be deployed, or every mistake; nothing from outside is printed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.application.config import ConfigErrors, load
from penstock.application.config.types import KnownTypes
from penstock.cli.app import app
from penstock.cli.check import watermarks_of_connectors
from penstock.connectors.api import Capabilities
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from tests.application.config.test_loading import RFC


def check(folder: Path, text: str, *arguments: str, **environ: str) -> Result:
    (folder / "app.yaml").write_text(text)
    (folder / "mine.py").write_text("def mine(events): return events\n")
    return CliRunner().invoke(app, ["check", str(folder / "app.yaml"), *arguments], env=environ)


def words(result: Result) -> list[list[str]]:
    lines = (line.replace("│", " ").replace("┃", " ") for line in result.output.splitlines())
    return [line.split() for line in lines if any(each.isalnum() for each in line)]


def test_it_shows_connectors_with_their_guarantee_pipelines_and_links(tmp_path: Path) -> None:
    result = check(tmp_path, RFC)
    assert result.exit_code == 0
    assert words(result) == [
        ["connector", "type", "as", "a", "source", "as", "a", "sink", "codec", "interceptors"],
        ["my-ws-server", "ws-server", "at-most-once", "at-most-once", "json", "in:", "split,", "out:", "join"],
        ["pipeline", "function", "settings"],
        ["passthrough.example", "system::passthrough"],
        ["from", "to"],
        ["connector/my-ws-server/out", "pipeline/passthrough.example/in"],
        ["pipeline/passthrough.example/out", "connector/my-ws-server/in"],
        ["pipeline/passthrough.example/err", "connector/my-ws-server/in"],
        [str(tmp_path / "app.yaml"), "is", "valid"],
    ]


def test_json_has_what_would_be_deployed(tmp_path: Path) -> None:
    result = check(tmp_path, RFC, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    [connector] = found["connectors"]
    assert (connector["name"], connector["source"], connector["sink"]) == (
        "my-ws-server",
        "at-most-once",
        "at-most-once",
    )
    assert (connector["codecs"], connector["interceptors"]) == (["json"], ["in: split", "out: join"])
    assert found["pipelines"] == [
        {"name": "passthrough.example", "function": "system::passthrough", "settings": {}},
    ]
    first = {"from": "connector/my-ws-server/out", "to": "pipeline/passthrough.example/in"}
    assert (found["links"][0], found["mistakes"]) == (first, [])


def test_json_has_every_mistake_with_its_place(tmp_path: Path) -> None:
    result = check(tmp_path, RFC.replace("type: ws-server", "type: ws-servr"), "--json")
    assert result.exit_code == 1
    [mistake] = json.loads(result.stdout)["mistakes"]
    assert mistake["line"] > 1
    assert "ws-servr" in mistake["text"]


def test_it_reports_what_closes_the_windows_over_each_source(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(*rows): return rows[0]\n")
    programs = "type: connector-protocol, codec: json"
    text = f"""
connector:
  - {{id: posts, type: http-server, config: {{port: 8080}}, codec: json}}
  - {{id: meters, {programs}}}
  - {{id: stamped, {programs}, event_time: {{ingest: true}}}}
  - {{id: waits, {programs}, watermark: {{idle_timeout: 90s}}}}
  - {{id: follows, {programs}, watermark: {{idle_timeout: 1m, when_all_idle: clock}}}}
  - {{id: copied, {programs}}}
pipeline: {{id: p, spark: "mine.py:mine"}}
binding:
  id: b
  links:
    connector/posts/out: pipeline/p/in
    connector/meters/out: pipeline/p/in
    connector/stamped/out: pipeline/p/in
    connector/waits/out: pipeline/p/in
    connector/follows/out: pipeline/p/in
    connector/copied/out: pipeline/system::passthrough/in
"""
    result = check(tmp_path, text)
    assert [line for line in result.output.splitlines() if line.startswith("watermark")] == [
        "watermark of posts: the worker's clock",
        "watermark of meters: the slowest stream; a silent stream blocks it (idle_timeout is off)",
        "watermark of stamped: the worker's clock, unless programs send event times",
        (
            "watermark of waits: the slowest stream; one that is silent for 90 s is ignored; "
            "when all are silent, it waits for the next event (when_all_idle is wait)"
        ),
        (
            "watermark of follows: the slowest stream; one that is silent for 60 s is ignored; "
            "when all are silent, the worker's clock"
        ),
    ]


def test_it_reports_what_closes_windows_over_a_type_that_does_not_declare_its_event_times(tmp_path: Path) -> None:
    links = "connector/posts/out: pipeline/p/in"
    text = f"""
connector: {{id: posts, type: http-server, config: {{port: 8080}}, codec: json}}
pipeline: {{id: p, spark: "mine.py:mine"}}
binding: {{id: b, links: {{{links}}}}}
"""
    assert check(tmp_path, text).exit_code == 0
    loaded = load(tmp_path / "app.yaml", KnownTypes(), {})
    undeclared = replace(loaded, capabilities={"posts": Capabilities(source=Guarantee.AT_LEAST_ONCE)})
    assert [*watermarks_of_connectors(undeclared)] == [
        "watermark of posts: the worker's clock, unless the connector sets event times"
    ]


def test_every_mistake_is_reported_and_it_ends_with_an_error(tmp_path: Path) -> None:
    result = check(tmp_path, RFC.replace("codec: json", "codec: jsn").replace("port: 8888", "port: x"))
    assert isinstance(result.exception, ConfigErrors)
    assert str(result.exception).splitlines() == [
        f'{tmp_path}/app.yaml:7:13: connector "my-ws-server": config.port: expected a whole number, found "x".',
        f'{tmp_path}/app.yaml:8:12: unknown codec "jsn". Did you mean "json"?',
    ]


def test_what_comes_from_outside_is_shown_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    text = """
connector:
  id: s
  type: ${TYPE}
  config: {port: "${PORT}", host: "${file:secret}"}
  codec: ${CODEC}
pipeline: {id: p, spark: "${FILE}.py:mine", max_rows_per_epoch: "${ROWS}", trigger: 10s}
binding: {id: b, links: {connector/s/out: pipeline/p/in}}
"""
    environ = {"TYPE": "tcp-server", "PORT": "4711", "CODEC": "msgpack", "FILE": "mine", "ROWS": "815"}
    result = check(tmp_path, text, **environ)
    assert result.exit_code == 0, result.exception
    for value in ("hunter2", "tcp-server", "4711", "msgpack", "mine.py", "815"):
        assert value not in result.output.replace(str(tmp_path), "")
    for written in ("${TYPE}", "${CODEC}", "${FILE}.py:mine", "max_rows_per_epoch: ${ROWS}", "trigger: 10s"):
        assert written in result.output


def test_options_of_codecs_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s;cret")
    dialect = 'codec: csv\n    codec_config: {null: "${file:secret}"}\n    schema: a INT'
    result = check(tmp_path, RFC.replace("codec: json", dialect))
    assert result.exit_code == 0, result.exception
    assert "csv" in result.output
    assert "s;cret" not in result.output


def test_what_does_not_run_is_noted(tmp_path: Path) -> None:
    result = check(tmp_path, 'connector: {id: alone, type: "null", codec: json}')
    assert 'note: connector "alone" is in no link, so it does not run' in result.output
    assert result.exit_code == 0


def test_sinks_of_the_command_line_are_for_python_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--sink is for Python files"):
        raise check(tmp_path, RFC, "--sink", "stdout:").exception or AssertionError
