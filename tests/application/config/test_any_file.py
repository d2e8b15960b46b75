"""Whatever a file contains, it is loaded or its mistakes are reported; nothing else happens, and no secret is shown."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.application.config import ConfigErrors, Loaded, loads
from penstock.protocol.api.deployment import Deployment
from tests.application.config.small_types import CONNECTORS, INTERCEPTORS, SmallTypes
from tests.application.config.test_instances import TEXT as INSTANCES
from tests.application.config.test_loading import EVERYTHING, RFC

SECRET = "never-to-be-seen"
ENVIRON = {"SECRET": SECRET, "PORT": "7000"}

KEYS = [
    "connector",
    "pipeline",
    "binding",
    "id",
    "type",
    "config",
    "codec",
    "codec_map",
    "schema",
    "interceptors",
    "in",
]
KEYS += ["out", "port", "token", "links", "instances", "guarantee", "spark", "outputs", "starting", "breaker", "within"]
KEYS += ["quota", "eu", "connector/a/out", "pipeline/b/{instance}/in", "system/streams", "delimiter", "<<", "tls"]
WORDS = [*CONNECTORS, *INTERCEPTORS, "a", "b", "json", "csv", "${SECRET}", "x${SECRET}y", "${PORT}", "${file:/etc/x}"]
WORDS += ["pipeline/system::passthrough/in", "connector/a/in", "pipeline/b/{x}/in", "system::passthrough", "{port}"]
WORDS += ["exactly-once", "earliest", "1s", "1MiB", "${", "${}", "$${SECRET}", "{instance}", "connector/a/eu/out"]

scalars = st.one_of(
    st.sampled_from(WORDS), st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=3)), inner)
    ),
    max_leaves=15,
)
section = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
files = st.fixed_dictionaries(
    {},
    optional={
        key: st.one_of(section, st.lists(section, max_size=3), values) for key in ("connector", "pipeline", "binding")
    },
)


def check(text: str) -> None:
    found = loaded(text)
    if isinstance(found, ConfigErrors):
        assert found.mistakes
        assert SECRET not in f"{found} {found!r} {found.hint}"
    else:
        assert Deployment.from_json(found.deployment.as_json()) == found.deployment


def loaded(text: str) -> Loaded | ConfigErrors:
    try:
        return loads(text, Path("/nowhere/app.yaml"), SmallTypes(), ENVIRON)
    except ConfigErrors as error:
        return error


@pytest.mark.slow
@given(files)
@example({"connector": {"id": "a", "type": "tcp-server", "config": {"port": "${SECRET}", "token": "${SECRET}"}}})
@example({"connector": "${SECRET}"})
@example({"connector": {"id": "${SECRET}", "type": "${SECRET}", "codec_map": {"a/b": "${SECRET}"}}})
def test_any_structure_is_loaded_or_its_mistakes_are_reported(file: dict[str, Any]) -> None:
    check(yaml.safe_dump(file))


@given(st.sampled_from([RFC, EVERYTHING, INSTANCES]), st.data())
def test_a_file_with_some_characters_changed_is_loaded_or_its_mistakes_are_reported(
    text: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 5))
        put = data.draw(st.one_of(st.sampled_from([*"{}[]:&*!|>'\"#%@`,-\n\t \\", "${SECRET}"]), st.characters()))
        text = text[:at] + put + text[at + length :]
    check(text)


@pytest.mark.parametrize("text", [RFC, EVERYTHING, INSTANCES], ids=["the RFC's", "every key", "instances"])
@pytest.mark.parametrize("put", ["${SECRET}", "x ${SECRET}", ["${SECRET}"], {"a": "${SECRET}"}], ids=str)
def test_nothing_from_outside_is_shown_wherever_it_stands(text: str, put: Any) -> None:
    whole = yaml.safe_load(text)
    for path in leaves(whole):
        check(yaml.safe_dump(replaced(whole, path, put), sort_keys=False))


def leaves(value: Any) -> Iterator[tuple[Any, ...]]:
    """The ways to all values, also those that hold others."""
    yield ()
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from ((key, *rest) for rest in leaves(each))


def replaced(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    if not path:
        return put
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], put)
    return copy


@given(st.binary(max_size=200))
def test_any_bytes_are_loaded_or_their_mistakes_are_reported(data: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError):
        check(data.decode())
