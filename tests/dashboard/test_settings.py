"""The settings page: what is deployed, and what a changed application would change."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.application.config import ConfigErrors
from penstock.dashboard.deployed_pages import as_yaml, checked, difference, folder_of, folders_of
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


def test_a_file_may_be_anything(tmp_path: Path) -> None:
    levels = (f"a{level}: &a{level} [{', '.join(9 * [f'*a{level - 1}'])}]" for level in range(1, 13))
    aliases = "\n".join(["a0: &a0 [x]", *levels])
    for text, mistake in (
        (f"{aliases}\nconnector: [{{id: a, type: 'null', codec: *a12}}]", "expands to too much"),
        ("connector: [{id: a, type: 'null', codec: json, segments: 2026-13-45}]", "2026-13-45"),
        ("[" * 5000, "nested too deeply"),
        ("connector: !!python/object:os.system x", "unknown tag"),
    ):
        with pytest.raises(ConfigErrors, match=mistake):
            checked(text, "app.yaml", tmp_path)


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
            checked(text, "app.yaml", tmp_path)
        assert "ours" not in str(error.value)
    with pytest.raises(ConfigErrors, match="can only be used in a config"):
        checked(
            f"connector: {{id: a, type: metronome, codec: json, schema: '{reference}'}}\n{ANY}", "app.yaml", tmp_path
        )


def test_the_worker_s_own_files_are_left_to_it(tmp_path: Path) -> None:
    config = "{dsn: '${file:/nowhere/on/this/machine}', table: t}"
    loaded = checked(
        f"connector: {{id: a, type: postgres, codec: json, config: {config}}}\n{ANY}", "app.yaml", tmp_path
    )
    assert "${file:/nowhere" in str(loaded.deployment.connectors)


FUNCTIONS = """
from penstock import pipeline

@pipeline(ticks="ticks")
def count(ticks):
    return ticks
"""
WITH_A_FUNCTION = (
    "connector: [{id: ticks, type: metronome, config: {interval: 1h}, codec: json},"
    " {id: gone, type: 'null', codec: json}]\n"
    "pipeline: {id: count, spark: 'count.py:count'}\n"
    "binding: {id: b, links: {connector/ticks/out: pipeline/count/ticks, pipeline/count/out: connector/gone/in}}"
)


def test_files_of_functions_are_looked_for_beside_those_of_the_deployed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "count.py").write_text(FUNCTIONS)
    assert folders_of(DEPLOYED) == [tmp_path], "/apps/count.py is not on this machine"
    with pytest.raises(ConfigErrors, match=r"count\.py"):
        checked(WITH_A_FUNCTION, "app.yaml", tmp_path)
    found = checked(WITH_A_FUNCTION, "apps/app.yaml", apps).deployment
    assert folder_of(WITH_A_FUNCTION, folders_of(found)) == apps
    deeper = replace(COUNT, spark=f"{apps / 'deeper' / 'more.py'}:more")
    (apps / "deeper").mkdir()
    (apps / "deeper" / "more.py").touch()
    assert folders_of(replace(found, pipelines={**found.pipelines, "more": deeper}))[0] == apps


def test_an_application_may_have_its_functions_in_a_folder_below(tmp_path: Path) -> None:
    functions = tmp_path / "functions"
    functions.mkdir()
    (functions / "count.py").write_text(FUNCTIONS)
    text = WITH_A_FUNCTION.replace("count.py", "functions/count.py")
    folders = folders_of(checked(text, "app.yaml", tmp_path).deployment)
    assert folder_of(text, folders) == tmp_path
    assert (
        checked(text, "app.yaml", folder_of(text, folders))
        .deployment.pipelines["count"]
        .spark.startswith(str(functions / "count.py"))
    )
    (functions / "other.py").write_text(FUNCTIONS)
    assert folder_of(text.replace("count.py", "other.py"), folders) == tmp_path, "also where all functions are others"
    for without_files in (
        "[",
        "connector: []",
        text.replace("count.py", "missing.py"),
        text.replace("count", 300 * "c"),
    ):
        assert folder_of(without_files, folders) == functions
