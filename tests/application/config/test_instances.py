"""One binding deployed several times, side by side."""

from pathlib import Path

import pytest

from penstock.application.config import loads
from penstock.protocol.api.deployment import Deployment
from tests.application.config.small_types import SmallTypes
from tests.application.config.test_loading import ends

TEXT = """
connector:
  - id: server
    type: tcp-server
    codec: json
    quota: "{quota}"
    config: {host: "{instance}.example.org", port: "{port}", token: '{"a": {instance}}'}
  - {id: log, type: "null"}
binding:
  id: b
  instances:
    eu: {port: 7001, quota: 1MiB}
    us: {port: "${US_PORT}", quota: 2MiB}
  links:
    connector/server/{instance}/out: pipeline/system::passthrough/{instance}/in
    pipeline/system::passthrough/{instance}/out: connector/log/{instance}/in
"""


def deployed(text: str, **environ: str) -> Deployment:
    return loads(text, Path("app.yaml"), SmallTypes(), environ).deployment


def test_each_instance_has_its_own_artefacts_with_its_variables() -> None:
    deployment = deployed(TEXT, US_PORT="7002")
    assert sorted(deployment.connectors) == ["log.eu", "log.us", "server.eu", "server.us"]
    assert sorted(deployment.pipelines) == ["passthrough.b.eu", "passthrough.b.us"]
    eu, us = deployment.connectors["server.eu"], deployment.connectors["server.us"]
    assert eu.config == {"host": "eu.example.org", "port": 7001, "token": '{"a": eu}'}
    assert us.config == {"host": "us.example.org", "port": "${US_PORT}", "token": '{"a": us}'}
    assert (eu.id, eu.instance, eu.quota_bytes, us.quota_bytes) == ("server", "eu", 1 << 20, 2 << 20)
    assert ends(deployment) == [
        ("connector/server.eu/out", "pipeline/passthrough.b.eu/in"),
        ("pipeline/passthrough.b.eu/out", "connector/log.eu/in"),
        ("connector/server.us/out", "pipeline/passthrough.b.us/in"),
        ("pipeline/passthrough.b.us/out", "connector/log.us/in"),
    ]
    assert [link.url for link in deployment.links][1] == "penstock://connector/log/eu/in"


def test_a_list_of_names_is_enough_where_there_are_no_variables() -> None:
    text = "connector: {id: m, type: metronome}\nbinding: {id: b, instances: [no, '2'], links: LINKS}"
    links = "{connector/m/out: 'pipeline/system::passthrough/in'}"
    assert sorted(deployed(text.replace("LINKS", links)).connectors) == ["m.2", "m.no"]


def test_a_literal_instance_is_shared_by_all() -> None:
    text = TEXT.replace("connector/log/{instance}/in", "connector/log/eu/in")
    deployment = deployed(text, US_PORT="7002")
    assert sorted(deployment.connectors) == ["log.eu", "server.eu", "server.us"]
    assert ("pipeline/passthrough.b.us/out", "connector/log.eu/in") in ends(deployment)


def test_a_link_between_literal_instances_is_one_link() -> None:
    text = """
connector: [{id: m, type: metronome}]
pipeline: {id: p, spark: "system::passthrough"}
binding: {id: b, instances: [eu, us], links: {connector/m/eu/out: pipeline/p/eu/in}}
"""
    assert ends(deployed(text)) == [("connector/m.eu/out", "pipeline/p.eu/in")]


def test_two_bindings_of_one_instance_link_one_connector() -> None:
    text = """
connector: {id: m, type: metronome}
binding:
  - {id: b, links: {connector/m/01/out: "pipeline/system::passthrough/in"}}
  - {id: c, links: {connector/m/out: "pipeline/system::passthrough/in"}}
"""
    deployment = deployed(text)
    assert sorted(deployment.connectors) == ["m"]
    assert sorted(deployment.pipelines) == ["passthrough.b", "passthrough.c"]


def test_an_instance_may_name_that_of_another_binding() -> None:
    text = """
connector: [{id: m, type: metronome}, {id: n, type: "null"}]
pipeline: {id: p, spark: "system::passthrough"}
binding:
  - {id: b, instances: {eu: {to: us}, us: {to: eu}}, links: {connector/m/out: "pipeline/p/{to}/in"}}
  - {id: c, links: {pipeline/p/eu/out: connector/n/in}}
"""
    assert ends(deployed(text)) == [
        ("connector/m.eu/out", "pipeline/p.us/in"),
        ("connector/m.us/out", "pipeline/p.eu/in"),
        ("pipeline/p.eu/out", "connector/n/in"),
    ]


@pytest.mark.parametrize("value", ["{unknown}", "{a b}", "{}", '{"json": 1}'])
def test_braces_around_anything_but_a_variable_stay_as_they_are(value: str) -> None:
    text = TEXT.replace("""'{"a": {instance}}'""", f"'{value}'")
    assert deployed(text, US_PORT="1").connectors["server.eu"].config["token"] == value
