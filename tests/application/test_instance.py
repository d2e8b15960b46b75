"""Connectors as they are built from a deployment: with secrets, which nothing shows."""

from pathlib import Path

import pytest

from penstock.application.instance import build
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import ConnectorSpec


def spec(kind: str, **config: object) -> ConnectorSpec:
    return ConnectorSpec(name="x", id="x", instance="01", type=kind, config=config)


def test_what_a_secret_holds_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("of another file")
    (tmp_path / "token").write_text(f"Bearer ${{file:{tmp_path}/other}}")
    reference = f"${{file:{tmp_path}/token}}"
    made = build(spec("http-client", url="http://127.0.0.1:1/", headers={"Authorization": reference}))
    assert made.connector.options.headers["Authorization"] == f"Bearer ${{file:{tmp_path}/other}}"


def test_an_error_of_options_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "delimiter").write_text("hunter2\\q")
    (tmp_path / "url").write_text("ftp://hunter2")
    for name in ("delimiter", "url"):
        with pytest.raises(RequestError) as raised:
            build(spec("http-client", url=f"${{file:{tmp_path}/{name}}}"))
        assert "hunter2" not in f"{raised.value} {raised.value.hint}"
