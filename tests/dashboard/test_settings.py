"""The settings page: what is deployed, and what a changed application would change."""

from dataclasses import replace

from penstock.dashboard.deployed_pages import as_yaml, difference
from penstock.protocol.api.deployment import BreakerSpec, ConnectorSpec, Deployment, End, Link, PipelineSpec

TICKS = ConnectorSpec(
    name="ticks", id="ticks", instance="", type="metronome", config={"interval": "1h"}, codec="json", segments=3
)
COUNT = PipelineSpec(name="count", id="count", instance="", spark="/apps/count.py:count", settings={"trigger": "1s"})
LINK = Link(End("connector", "ticks", "out"), End("pipeline", "count", "in"))
DEPLOYED = Deployment(connectors={"ticks": TICKS}, pipelines={"count": COUNT}, links=(LINK,))


def test_what_has_its_default_is_not_shown() -> None:
    assert (
        as_yaml(DEPLOYED)
        == """\
connector ticks:
  type: metronome
  config:
    interval: 1h
  codec: json
  segments: 3
pipeline count:
  spark: /apps/count.py:count
  settings:
    trigger: 1s
links:
  connector/ticks/out: pipeline/count/in"""
    )


def test_only_what_differs_is_in_the_difference() -> None:
    ticks = replace(TICKS, config={"interval": "2h"}, breaker=BreakerSpec(failing_streams=3))
    assert difference(DEPLOYED, DEPLOYED) == ""
    assert (
        difference(DEPLOYED, replace(DEPLOYED, connectors={"ticks": ticks}))
        == """\
~ connector ticks:
-     interval: 1h
+     interval: 2h
+   breaker:
+     failing_streams: 3"""
    )


def test_a_part_that_comes_or_goes_is_shown_whole() -> None:
    without = Deployment(connectors={"ticks": TICKS})
    gone = ["- pipeline count:", "-   spark: /apps/count.py:count", "-   settings:", "-     trigger: 1s"]
    links = ["links:", "  connector/ticks/out: pipeline/count/in"]
    assert difference(DEPLOYED, without).splitlines() == [*gone, *(f"- {line}" for line in links)]
    assert difference(without, DEPLOYED).splitlines()[-2:] == [f"+ {line}" for line in links]


def test_secrets_are_masked_in_the_difference() -> None:
    hook = ConnectorSpec(name="h", id="h", instance="", type="postgres", config={"password": "rosebud"})
    shown = difference(Deployment(), Deployment(connectors={"h": hook}))
    assert "rosebud" not in shown
    assert "password: '***'" in shown
