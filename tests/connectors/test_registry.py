"""Types by name: ours, other packages', and what is reported about unknown ones."""

import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.connectors import registry
from penstock.connectors.api import Connector
from penstock.connectors.registry import CONNECTORS, INTERCEPTORS, make_chains, make_connector
from penstock.core.errors import RequestError
from penstock.core.plugins import Registry
from penstock.protocol.api.deployment import InterceptorSpec


@pytest.mark.parametrize("name", CONNECTORS.names())
def test_every_type_has_its_registered_name_and_a_valid_example(name: str) -> None:
    type_ = CONNECTORS.get(name)
    assert type_.about.name == name
    options = type_.about.options.model_validate(type_.about.example) if type_.about.example else None
    if options is not None:
        assert type_.capabilities(options).ports <= type_.about.capabilities.ports


@pytest.mark.parametrize("name", CONNECTORS.names())
def test_every_option_of_a_type_is_documented(name: str) -> None:
    fields = CONNECTORS.get(name).about.options.model_fields
    assert [field for field, info in fields.items() if not info.description] == []


@pytest.mark.parametrize("name", INTERCEPTORS.names())
def test_every_interceptor_has_its_registered_name_and_is_documented(name: str) -> None:
    about = INTERCEPTORS.get(name).about
    assert about.name == name
    assert [field for field, info in about.options.model_fields.items() if not info.description] == []


def test_an_unknown_name_is_reported_with_the_nearest_valid_one() -> None:
    with pytest.raises(RequestError, match="unknown connector type 'tcp-sever'") as raised:
        CONNECTORS.get("tcp-sever")
    assert "tcp-server" in raised.value.hint
    with pytest.raises(RequestError) as raised:
        INTERCEPTORS.get("qqq")
    assert "length-prefixed" in raised.value.hint


def made(value: str) -> Registry[Connector[Any]]:
    found: Registry[Connector[Any]] = Registry("connector type", {}, "penstock.connectors")
    found.__dict__["_foreign"] = {"theirs": EntryPoint("theirs", value, "penstock.connectors")}
    return found


def test_other_packages_register_types_with_entry_points() -> None:
    theirs = made("penstock.connectors.null:Null")
    assert theirs.names() == ["theirs"]
    assert theirs.get("theirs").about.name == "null"


@pytest.mark.parametrize("value", ["tests.connectors.raising:Theirs", "json:dumps"])
def test_any_error_while_another_package_is_loaded_is_reported(value: str) -> None:
    with pytest.raises(RequestError, match="connector type theirs cannot be loaded") as raised:
        made(value).get("theirs")
    assert "pip install" in raised.value.hint


def test_a_broken_package_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"theirs": EntryPoint("theirs", "tests.connectors.raising:Theirs", "penstock.connectors")}
    monkeypatch.setitem(CONNECTORS.__dict__, "_foreign", broken)
    shown = CliRunner().invoke(app, ["connectors"])
    assert shown.exit_code == 0
    assert "tcp-server" in shown.stdout
    assert "theirs cannot be loaded: somebody else's mistake" in shown.stderr
    schema = CliRunner().invoke(app, ["schema"])
    assert schema.exit_code == 0
    assert "TcpServerOptions" in schema.stdout


def test_an_entry_point_that_cannot_be_loaded_is_reported() -> None:
    with pytest.raises(RequestError, match="cannot be loaded") as raised:
        made("no_such_module:Thing").get("theirs")
    assert "pip install" in raised.value.hint


def test_a_missing_package_is_reported_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="needs websockets") as raised:
        make_connector("ws-server", {"port": 0})
    assert raised.value.hint == "Install it where the worker runs: pip install 'penstock-streams[ws]'"


def test_a_type_can_be_described_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "websockets" or "ws_" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "websockets", None)
    fresh: Registry[Connector[Any]] = Registry("connector type", CONNECTORS.own, "none")
    assert fresh.get("ws-server").about.extra == "ws"


def test_errors_in_options_are_reported_without_values() -> None:
    with pytest.raises(RequestError, match=r"port: .*; hst: ") as raised:
        make_connector("tcp-server", {"port": "s3cret", "hst": "s3cret"})
    assert "s3cret" not in str(raised.value)


def test_an_interceptor_in_the_wrong_direction_is_refused() -> None:
    with pytest.raises(RequestError, match="join cannot be used under `interceptors: in`"):
        make_chains([InterceptorSpec(type="join")], [])
    with pytest.raises(RequestError, match="split cannot be used under `interceptors: out`"):
        make_chains([], [InterceptorSpec(type="split")])


def test_the_interceptors_of_the_rfc_work_as_written() -> None:
    lines = InterceptorSpec(type="split", config={"delimiter": r"\n"})
    batches = InterceptorSpec(type="join", config={"delimiter": r"\n", "max_elements": 1000, "max_wait_ms": 1000})
    chains = make_chains([lines], [batches])
    assert chains.incoming().feed(b'{"a": 1}\n{"a": 2}\n') == [b'{"a": 1}', b'{"a": 2}']
    out = chains.outgoing()
    assert out.feed([b"x"] * 1001) == [b"x\n" * 1000]
    assert (out.buffered, out.wait_seconds) == (1, 1.0)
