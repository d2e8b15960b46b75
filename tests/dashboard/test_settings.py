"""The settings page: what is deployed, and what a changed application would change."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.application.config import ConfigErrors
from penstock.dashboard.deployed_pages import as_yaml, checked, difference
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


def test_a_file_may_be_anything() -> None:
    levels = (f"a{level}: &a{level} [{', '.join(9 * [f'*a{level - 1}'])}]" for level in range(1, 13))
    aliases = "\n".join(["a0: &a0 [x]", *levels])
    for text, mistake in (
        (f"{aliases}\nconnector: [{{id: a, type: 'null', codec: *a12}}]", "expands to too much"),
        ("connector: [{id: a, type: 'null', codec: json, segments: 2026-13-45}]", "2026-13-45"),
        ("[" * 5000, "nested too deeply"),
        ("connector: !!python/object:os.system x", "unknown tag"),
    ):
        with pytest.raises(ConfigErrors, match=mistake):
            checked(text, "app.yaml")


ANY = "binding: {id: b, links: {connector/a/out: pipeline/system::passthrough/in}}"


def test_files_of_the_dashboard_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a codec of ours")
    reference = f"${{file:{secret}}}"
    in_the_codec = (
        f"connector: {{id: a, type: metronome, codec: csv, codec_config: {{delimiter: '{reference}'}}}}\n{ANY}"
    )
    by_a_variable = (
        "connector: {id: a, type: metronome, codec: csv, codec_config: {delimiter: '{secret}'}}\n"
        f"binding: {{id: b, instances: {{eu: {{secret: '{reference}'}}}},"
        " links: {connector/a/out: pipeline/system::passthrough/in}}"
    )
    for text in (in_the_codec, by_a_variable):
        with pytest.raises(ConfigErrors, match="names a file, and none is read here") as error:
            checked(text, "app.yaml")
        assert "ours" not in str(error.value)
    with pytest.raises(ConfigErrors, match="can only be used in a config"):
        checked(f"connector: {{id: a, type: metronome, codec: json, schema: '{reference}'}}\n{ANY}", "app.yaml")


def test_the_worker_s_own_files_are_left_to_it(tmp_path: Path) -> None:
    config = "{dsn: '${file:/nowhere/on/this/machine}', table: t}"
    loaded = checked(f"connector: {{id: a, type: postgres, codec: json, config: {config}}}\n{ANY}", "app.yaml")
    assert "${file:/nowhere" in str(loaded.deployment.connectors)
