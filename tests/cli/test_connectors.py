"""`penstock connectors`, `penstock schema` and the pages of documentation: all from the types' own definitions."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from penstock.application.config.types import KnownTypes
from penstock.application.type_pages import pages, write_pages
from penstock.cli.app import app
from penstock.core.errors import RequestError
from penstock.worker import openapi

ROOT = Path(__file__).parents[2]
TYPES = KnownTypes()


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_it_lists_every_type_with_what_it_promises() -> None:
    lines = {line.split()[1]: line for line in penstock("connectors").output.splitlines() if line.startswith("│ ")}
    for name in TYPES.names():
        can = TYPES.about(name).capabilities
        assert name in lines
        for guarantee in filter(None, (can.source, can.sink)):
            assert guarantee.value in lines[name]


def test_for_one_type_it_shows_options_guarantees_and_what_it_does_on_stream_started() -> None:
    output = penstock("connectors", "tcp-server").output
    for part in ("on stream-started", "as a source", "tls.cert", "required", "whole number, 0 to 65535", "127.0.0.1"):
        assert part in output


def test_interceptors_are_listed_and_shown_too() -> None:
    output = penstock("connectors").output
    for name in TYPES.interceptors():
        assert f"│ {name} " in output
    assert "max_wait_ms" in penstock("connectors", "join").output


def test_it_is_there_for_programs_too() -> None:
    (found,) = json.loads(penstock("connectors", "file", "--json").output)
    assert found["facts"]["as a source"] == "exactly-once"
    assert {"name": "poll", "default": "500ms"}.items() <= {one["name"]: one for one in found["options"]}[
        "poll"
    ].items()


def test_a_type_that_is_not_there_is_an_error_with_the_nearest_name() -> None:
    result = penstock("connectors", "tcp-sever")
    assert isinstance(result.exception, RequestError)
    assert "tcp-server" in result.exception.hint


def test_every_option_of_every_type_is_described() -> None:
    for name in TYPES.names():
        (found,) = json.loads(penstock("connectors", name, "--json").output)
        assert found["text"].endswith(".")
        assert [one["name"] for one in found["options"] if not one["text"]] == [], name


def test_every_guarantee_names_its_test() -> None:
    for name in TYPES.names():
        about = TYPES.about(name)
        can, shown_by = about.capabilities, about.shown_by
        assert (bool(shown_by.source), bool(shown_by.sink)) == (can.source is not None, can.sink is not None), name


def test_the_schema_is_printed_as_json() -> None:
    made = json.loads(penstock("schema").output)
    assert sorted(made["properties"]) == ["binding", "connector", "pipeline"]


def test_the_http_api_is_printed_as_an_openapi_document() -> None:
    assert json.loads(penstock("schema", "--api").output) == json.loads(json.dumps(openapi.document()))


def test_the_pages_in_docs_are_current() -> None:
    """If this fails: penstock connectors --write-docs docs/connectors."""
    folder = ROOT / "docs" / "connectors"
    assert {file.name: file.read_text() for file in folder.glob("*.md")} == pages(TYPES)


def test_pages_of_types_that_are_gone_go_too(tmp_path: Path) -> None:
    write_pages(TYPES, tmp_path)
    (tmp_path / "tcp-server.md").rename(tmp_path / "gone.md")
    (tmp_path / "mine.md").write_text("mine")
    write_pages(TYPES, tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert (tmp_path / "mine.md").read_text() == "mine"
    assert (tmp_path / "tcp-server.md").exists()


def test_pages_that_somebody_else_has_written_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    done = penstock("connectors", "--write-docs", str(tmp_path))
    assert isinstance(done.exception, RequestError)
    assert "README.md already exists" in str(done.exception)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("README.md", "mine")]


def test_for_an_interceptor_it_shows_where_it_can_be_used() -> None:
    assert "used under  in, out" in penstock("connectors", "length-prefixed").output
