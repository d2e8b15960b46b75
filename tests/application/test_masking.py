"""Literal secrets are not shown; references are."""

from typing import Any

import pytest

from penstock.application.masking import MASK, masked
from penstock.application.plan import plan_of
from penstock.protocol.api.deployment import InterceptorSpec
from tests.application.deployments import connector, deployed, link, pipeline

SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    ("kind", "config", "shown"),
    [
        ("http-client", {"headers": {"Authorization": SECRET}}, {"headers": {"Authorization": MASK}}),
        ("http-client", {"headers": {"cookie": SECRET}}, {"headers": {"cookie": MASK}}),
        ("http-client", {"headers": {"X-Api-Key": SECRET}}, {"headers": {"X-Api-Key": MASK}}),
        ("http-client", {"headers": {"X-Auth-Token": SECRET}}, {"headers": {"X-Auth-Token": MASK}}),
        ("http-client", {"headers": {"X-Shop": "north"}}, {"headers": {"X-Shop": "north"}}),
        ("http-client", {"url": f"http://h/?a=1&token={SECRET}"}, {"url": f"http://h/?a=1&token={MASK}"}),
        ("http-client", {"url": f"http://h/?api_key={SECRET}#x"}, {"url": f"http://h/?api_key={MASK}#x"}),
        ("unknown", {"url": f"amqp://me:{SECRET}@h:1/x"}, {"url": f"amqp://me:{MASK}@h:1/x"}),
        ("unknown", {"url": "amqp://me:${P}@h:1/x"}, {"url": "amqp://me:${P}@h:1/x"}),
        ("unknown", {"deep": [{"password": SECRET, "port": 1}]}, {"deep": [{"password": MASK, "port": 1}]}),
        ("segment", {"token": SECRET}, {"token": MASK}),
        ("segment", {"token": "${file:/run/t}"}, {"token": "${file:/run/t}"}),
        ("segment", {"token": "$${not a reference}"}, {"token": MASK}),
        (
            "tcp-server",
            {"auth": {"bearer": [SECRET, "${T}"], "basic": {"me": SECRET}, "names": ["a.example"]}},
            {"auth": {"bearer": [MASK, "${T}"], "basic": {"me": MASK}, "names": ["a.example"]}},
        ),
        ("connector", {"cookie_file": "/run/cookie"}, {"cookie_file": "/run/cookie"}),
    ],
)
def test_a_literal_secret_is_masked(kind: str, config: dict[str, Any], shown: dict[str, Any]) -> None:
    found = masked(deployed(connector("c", kind, config=config)))
    assert found.connectors["c"].config == shown


def test_interceptors_are_masked() -> None:
    spec = connector("c", interceptors_in=(InterceptorSpec(type="mine", config={"secret": SECRET}),))
    assert masked(deployed(spec)).connectors["c"].interceptors_in[0].config == {"secret": MASK}


def test_a_driver_builds_the_same_plan_from_what_is_shown() -> None:
    deployment = deployed(
        connector("in", "tcp-server", config={"port": 0, "auth": {"bearer": [SECRET]}}, codec="json"),
        connector(
            "out", "http-client", config={"url": "http://h/", "headers": {"Authorization": SECRET}}, codec="json"
        ),
        pipeline("p"),
        link("connector/in/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/out/in"),
    )
    assert masked(deployment) != deployment
    assert plan_of(masked(deployment), "p") == plan_of(deployment, "p")
