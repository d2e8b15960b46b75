"""What is not in the file itself: the environment, and files of secrets. Neither is ever shown."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, field_validator

from penstock.application.config import ConfigErrors, loads
from penstock.connectors.api import Options
from penstock.connectors.registry import parse_options
from penstock.connectors.secrets import SECRET_BYTES_MAX, NoSecret, Secret, resolve
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import ConnectorSpec
from tests.application.config.small_types import SmallTypes

SECRET = "correct-horse"


def connector(token: str, folder: Path, **environ: str) -> ConnectorSpec:
    text = f"""
connector: {{id: s, type: tcp-server, codec: json, config: {{port: 1, token: "{token}"}}}}
binding: {{id: b, instances: [eu], links: {{connector/s/out: "pipeline/system::passthrough/in"}}}}
"""
    return loads(text, folder / "app.yaml", SmallTypes(), environ).deployment.connectors["s.eu"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("${A}", "1"),
        ("x-${A}-${B}", "x-1-two"),
        ("${C:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${C:-}", ""),
        ("$${A}", "${A}"),
        ("$A", "$A"),
        ("{instance}-${A}", "eu-1"),
    ],
)
def test_variables_of_the_environment_stay_references_until_the_worker_resolves_them(
    written: str, found: str, tmp_path: Path
) -> None:
    environ = {"A": "1", "B": "two", "EMPTY": ""}
    token = connector(written, tmp_path, **environ).config["token"]
    assert token == written.replace("{instance}", "eu")
    assert resolve(token, environ) == found


def test_outside_options_variables_are_filled_in_where_the_file_is_read(tmp_path: Path) -> None:
    text = """
connector: {id: s, type: tcp-server, codec: "${CODEC}", segments: "{segments}", config: {port: "{port}"}}
binding:
  id: b
  instances: {eu: {port: "${PORT}", segments: "${SEGMENTS}"}}
  links: {connector/s/out: "pipeline/system::passthrough/in"}
"""
    environ = {"CODEC": "json", "PORT": "7000", "SEGMENTS": "3"}
    spec = loads(text, tmp_path / "app.yaml", SmallTypes(), environ).deployment.connectors["s.eu"]
    assert (spec.codec, spec.segments, spec.config["port"]) == ("json", 3, "${PORT}")


def test_a_variable_that_the_worker_lacks_is_named() -> None:
    with pytest.raises(NoSecret, match=r"TOKEN.* is not set in the environment of the worker") as caught:
        resolve({"token": "${TOKEN}"}, {})
    assert "Set TOKEN where the worker is started" in caught.value.hint


def test_a_variable_that_is_not_set_here_may_be_left_to_the_worker(tmp_path: Path) -> None:
    text = """
connector: {id: s, type: tcp-server, codec: json, config: {port: "${PORT}", token: "${TOKEN}"}}
binding: {id: b, links: {connector/s/out: "pipeline/system::passthrough/in"}}
"""
    with pytest.raises(ConfigErrors, match="is not set in the environment"):
        loads(text, tmp_path / "app.yaml", SmallTypes(), {})
    loaded = loads(text, tmp_path / "app.yaml", SmallTypes(), {}, leaves_unset=True)
    assert loaded.deployment.connectors["s"].config == {"port": "${PORT}", "token": "${TOKEN}"}
    assert [note for note in loaded.notes if "not set here" in note] == [
        "${PORT} is not set here: the worker must have it",
        "${TOKEN} is not set here: the worker must have it",
    ]


def test_no_deployment_gets_at_the_variables_of_penstock_itself() -> None:
    with pytest.raises(NoSecret, match="PENSTOCK_COOKIE"):
        resolve("${PENSTOCK_COOKIE}", {"PENSTOCK_COOKIE": SECRET})


def test_a_number_in_the_environment_is_a_number_where_one_is_needed(tmp_path: Path) -> None:
    text = "connector: {id: s, type: tcp-server, codec: json, config: {port: '${P}', token: '${P}'}}"
    assert loads(text, tmp_path / "app.yaml", SmallTypes(), {"P": "8080"}).notes


def test_a_file_stays_as_it_is_written_with_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "eu.txt").write_text(SECRET)
    spec = connector("${file:{instance}.txt}", tmp_path)
    assert spec.config["token"] == f"${{file:{tmp_path}/eu.txt}}"
    assert SECRET not in json.dumps(spec.config)
    assert resolve(spec.config) == {"port": 1, "token": SECRET}


def test_a_file_is_read_when_it_is_resolved_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    spec = connector("${file:token}", tmp_path)
    file.write_text("second\r\n")
    assert resolve(spec.config)["token"] == "second"


def test_everything_else_stays_as_it_is() -> None:
    config: dict[str, Any] = {"a": [1, "x", {"b": None}], "c": "$${file:x} $${NAME} $NAME"}
    assert resolve(config) == {"a": [1, "x", {"b": None}], "c": "${file:x} ${NAME} $NAME"}


def test_a_file_that_cannot_be_read_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NoSecret, match="it is not a regular file"):
        resolve(f"${{file:{tmp_path}/pipe}}")
    with pytest.raises(NoSecret, match="it is not a regular file"):
        resolve("${file:/dev/zero}")
    for name, said in [
        ("none", "No such file"),
        ("binary", "is not text"),
        ("large", "too large"),
        (".", "Is a direc"),
    ]:
        with pytest.raises(NoSecret, match=said):
            resolve({"a": f"${{file:{tmp_path}/{name}}}"})


class Strict(Options):
    password: SecretStr = SecretStr("")
    token: str = ""
    number: int = 0

    @field_validator("token")
    @classmethod
    def _check(cls, token: str) -> str:
        if token == SECRET:
            raise ValueError(f"{token} is known to everybody")
        return token


def test_no_text_about_options_shows_what_they_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "token").write_text(SECRET + "s")
    config = {"password": f"${{file:{tmp_path}/token}}", "token": f"Bearer ${{file:{tmp_path}/token}}", "number": 7}
    options = parse_options(Strict, config, "strict")
    assert options.token == f"Bearer {SECRET}s"
    assert options.password.get_secret_value() == f"{SECRET}s"
    logging.getLogger("test").warning("%s %r %s", options, options, {"options": resolve(config)})
    assert SECRET not in f"{options} {options!r} {resolve(config)!r} {caplog.text}"
    assert "number=7" in repr(options)


def test_errors_of_options_that_a_worker_makes_do_not_show_it_either(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    reference = f"${{file:{tmp_path}/token}}"
    with pytest.raises(RequestError) as caught:
        parse_options(Strict, {"number": reference, "token": reference, "none": reference}, "strict")
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.hint} {caught.value.__cause__}"
    for key in ("number", "token", "none"):
        assert key in str(caught.value)


def test_a_secret_is_a_text_that_is_not_seen() -> None:
    made = Secret(SECRET)
    assert made == SECRET
    assert repr([made]) == "['…']"


def test_the_whole_chain_of_an_error_shows_nothing(tmp_path: Path) -> None:
    text = "connector: {id: s, type: tcp-server, codec: json, config: {port: '${A}', level: '${A}', token: '${A}x'}}"
    with pytest.raises(ConfigErrors) as caught:
        loads(text, tmp_path / "app.yaml", SmallTypes(), {"A": "never-to-be-seen-by-anybody"})
    error: BaseException | None = caught.value
    while error is not None:
        assert "never-to-be-seen" not in f"{error} {error!r}"
        error = error.__cause__
