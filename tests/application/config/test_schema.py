"""The JSON schema for editors: valid files pass, and mistakes that an editor can detect are detected."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.application.config.document import parse
from penstock.application.config.references import References
from penstock.application.config.schema import DIALECT, schema
from penstock.application.config.types import KnownTypes, Types
from tests.application.config.schema_checker import SchemaChecker
from tests.application.config.small_types import SmallTypes
from tests.application.config.test_instances import TEXT as INSTANCES
from tests.application.config.test_loading import EVERYTHING, RFC


def wrong(text: str, types: Types | None = None) -> list[str]:
    return SchemaChecker(schema(types or SmallTypes())).wrong(parse(text, "app.yaml", References({}, Path())).value)


@pytest.mark.parametrize("text", [RFC, EVERYTHING, INSTANCES], ids=["the RFC's", "every key", "instances"])
def test_files_that_are_right_pass(text: str) -> None:
    assert wrong(text) == []


def test_the_example_of_the_rfc_passes_with_the_types_that_are_installed() -> None:
    assert wrong(RFC, KnownTypes()) == []


@pytest.mark.parametrize("name", KnownTypes().names())
def test_the_example_of_every_type_passes(name: str) -> None:
    about = KnownTypes().about(name)
    connector = {"id": "x", "type": name, "config": dict(about.example), "codec": "json"}
    assert wrong(json.dumps({"connector": connector}), KnownTypes()) == []
    about.options.model_validate(dict(about.example))


@pytest.mark.parametrize(
    ("connector", "said"),
    [
        ("{id: a, type: websocket}", "/connector: anyOf"),
        ("{id: a, typ: null}", "/connector: anyOf"),
        ("{type: 'null'}", "/connector: anyOf"),
        ("{id: a, type: ws-server, codec: json}", "/connector: anyOf"),
        ("{id: a, type: ws-server, codec: json, config: {port: eighty}}", "/connector: anyOf"),
        ("{id: a, type: ws-server, codec: json, config: {prot: 1}}", "/connector: anyOf"),
        ("{id: a, type: ws-server, codec: jsn, config: {port: 1}}", "/connector: anyOf"),
        ("{id: a, type: 'null', ack: never}", "/connector: anyOf"),
        ("{id: a, type: 'null', interceptors: {in: [{type: splt}]}}", "/connector: anyOf"),
    ],
)
def test_an_editor_sees_mistakes(connector: str, said: str) -> None:
    assert wrong(f"connector: {connector}") == [said]


@pytest.mark.parametrize("port", ["'${PORT}'", "'${PORT:-80}'", "'{port}'", "80"])
def test_a_placeholder_may_stand_for_any_value(port: str) -> None:
    assert wrong(f"connector: {{id: a, type: ws-server, codec: json, config: {{port: {port}}}}}") == []


def test_every_key_is_described_and_nothing_of_ours_is_left_in_it() -> None:
    made = schema(KnownTypes())
    assert made["$schema"] == DIALECT
    assert "x-penstock" not in json.dumps(made)
    for name in ("ConnectorSection", "PipelineSection", "BindingSection"):
        for key, field in made["$defs"][name]["properties"].items():
            assert field.get("description") or "$ref" in field, f"{name}.{key}"


def test_defaults_are_shown_as_they_would_be_written() -> None:
    breaker: dict[str, Any] = schema(SmallTypes())["$defs"]["BreakerSection"]["properties"]
    assert {key: field.get("default") for key, field in breaker.items()} == {
        "failing_streams": None,
        "within": "1s",
        "probe_after": "1s",
        "probe_after_max": "1m",
        "outbox_max": "256MiB",
    }
