"""From valid files to what is deployed."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.application.config import ConfigErrors, Loaded, loads
from penstock.application.config.types import KnownTypes, Types
from penstock.protocol.api.deployment import (
    PASSTHROUGH,
    BreakerSpec,
    ConnectorSpec,
    Deployment,
    End,
    InterceptorSpec,
    Link,
    PipelineSpec,
    ReconnectSpec,
)
from tests.application.config.small_types import SmallTypes

RFC_CONNECTOR = """
connector:
  - id: my-ws-server
    type: ws-server
    config:
      host: 127.0.0.1
      port: 8888
    codec: json
    interceptors:
      in:
        - type: split
          config:
            delimiter: '\\n'
      out:
        - type: join
          config:
            delimiter: '\\n'
            max_elements: 1000
            max_wait_ms: 1000
"""
RFC_BINDING = """
binding:
  id: example
  links:
    "tremor://connector/my-ws-server/{instance}/out": ["tremor://pipeline/system::passthrough/{instance}/in"]
    "tremor://pipeline/system::passthrough/{instance}/out": ["tremor://connector/my-ws-server/{instance}/in"]
    "tremor://pipeline/system::passthrough/{instance}/err": ["tremor://connector/my-ws-server/{instance}/in"]
"""
RFC = RFC_CONNECTOR + RFC_BINDING


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "counts.py").write_text("def count(lines): return lines\ndef both(left, right, limit=3): return left\n")
    return tmp_path


def loaded(text: str, folder: Path = Path(), types: Types | None = None, **environ: str) -> Loaded:
    return loads(text, folder / "app.yaml", types or SmallTypes(), environ)


def ends(deployment: Deployment) -> list[tuple[str, str]]:
    def told(end: End) -> str:
        return f"{end.kind}/{end.name}/{end.port}"

    return [(told(link.source), told(link.target)) for link in deployment.links]


@pytest.mark.parametrize("scheme", ["tremor://", "penstock://", "/", ""])
@pytest.mark.parametrize("types", [SmallTypes(), KnownTypes()], ids=["small types", "those that are installed"])
def test_the_example_of_the_rfc_is_deployed_as_written(scheme: str, types: Types) -> None:
    deployment = loaded(RFC.replace("tremor://", scheme), types=types).deployment
    server, passed = "my-ws-server", "passthrough.example"
    full = scheme if "://" in scheme else "penstock://"
    assert deployment == Deployment(
        connectors={
            server: ConnectorSpec(
                name=server,
                id=server,
                instance="01",
                type="ws-server",
                config={"host": "127.0.0.1", "port": 8888},
                codec="json",
                interceptors_in=(InterceptorSpec(type="split", config={"delimiter": "\\n"}),),
                interceptors_out=(
                    InterceptorSpec(
                        type="join", config={"delimiter": "\\n", "max_elements": 1000, "max_wait_ms": 1000}
                    ),
                ),
            )
        },
        pipelines={passed: PipelineSpec(name=passed, id=PASSTHROUGH, instance="01", spark=PASSTHROUGH)},
        links=(
            Link(
                End("connector", server, "out"),
                End("pipeline", passed, "in"),
                f"{full}pipeline/system::passthrough/01/in",
            ),
            Link(End("pipeline", passed, "out"), End("connector", server, "in"), f"{full}connector/{server}/01/in"),
            Link(End("pipeline", passed, "err"), End("connector", server, "in"), f"{full}connector/{server}/01/in"),
        ),
    )


def test_the_instance_may_be_left_out_of_a_link() -> None:
    assert loaded(RFC.replace("{instance}/", "")).deployment == loaded(RFC).deployment


def test_a_deployment_survives_json(folder: Path) -> None:
    deployment = loaded(EVERYTHING, folder).deployment
    assert Deployment.from_json(json.loads(json.dumps(deployment.as_json()))) == deployment


EVERYTHING = """
connector:
  id: everything
  type: file
  config: {path: a, mode: read, size: 2MiB}
  codec: csv
  codec_map: {application/json: json, text/*: string}
  schema: id BIGINT, name STRING
  reconnect: {first: 50ms, factor: 3, max: 1m, tries: 7}
  breaker: {failing_streams: 3, within: 2s, probe_after: 500ms, probe_after_max: 5m, outbox_max: 1MiB}
  segments: 5
  quota: 64MiB
  window: 2MiB
  ack: durable
  watermark: {max_disorder: 5s, idle_timeout: 1m, when_all_idle: clock}
  event_time: {unit: ns, ingest: true}
pipeline:
  id: p
  spark: counts.py:count
  trigger: 10s
  mode: complete
  starting: 2026-01-31T12:00:00Z
  max_bytes_per_epoch: 1MiB
  max_rows_per_epoch: 1000
  outputs: [good, bad]
  guarantee: exactly-once
binding:
  id: b
  links: {connector/everything/out: pipeline/p/in, connector/everything/err: pipeline/system::passthrough/in}
"""


def test_every_key_reaches_what_is_deployed(folder: Path) -> None:
    deployment = loaded(EVERYTHING, folder).deployment
    assert deployment.connectors == {
        "everything": ConnectorSpec(
            name="everything",
            id="everything",
            instance="01",
            type="file",
            config={"path": "a", "mode": "read", "size": "2MiB"},
            codec="csv",
            codec_map={"application/json": "json", "text/*": "string"},
            schema="id BIGINT, name STRING",
            reconnect=ReconnectSpec(first_seconds=0.05, factor=3, max_seconds=60, tries=7),
            breaker=BreakerSpec(
                failing_streams=3,
                within_seconds=2,
                probe_after_seconds=0.5,
                probe_after_seconds_max=300,
                outbox_bytes_max=1 << 20,
            ),
            segments=5,
            quota_bytes=64 << 20,
            window_bytes=2 << 20,
            ack="durable",
            max_disorder_us=5_000_000,
            idle_timeout_seconds=60,
            when_all_idle="clock",
            event_time_unit="ns",
            event_time_ingest=True,
        )
    }
    assert deployment.pipelines["p"] == PipelineSpec(
        name="p",
        id="p",
        instance="01",
        spark=f"{folder}/counts.py:count",
        code=sha256((folder / "counts.py").read_bytes()).hexdigest(),
        settings={
            "trigger": "10s",
            "mode": "complete",
            "starting": "2026-01-31T12:00:00+00:00",
            "max_bytes_per_epoch": 1 << 20,
            "max_rows_per_epoch": 1000,
            "outputs": ["good", "bad"],
            "guarantee": "exactly-once",
        },
    )
    assert ends(deployment) == [
        ("connector/everything/out", "pipeline/p/in"),
        ("connector/everything/err", "pipeline/passthrough.b/in"),
    ]


def test_settings_that_are_not_given_have_their_defaults(folder: Path) -> None:
    found = loaded("connector: {id: m, type: metronome}\n" + TO_PASSTHROUGH).deployment.connectors["m"]
    assert found == ConnectorSpec(name="m", id="m", instance="01", type="metronome")


TO_PASSTHROUGH = "binding: {id: b, links: {connector/m/out: 'pipeline/system::passthrough/in'}}"


def test_sections_may_be_one_item_or_a_list(folder: Path) -> None:
    one = loaded("connector: {id: m, type: metronome}\n" + TO_PASSTHROUGH)
    many = loaded("connector: [{id: m, type: metronome}]\n" + TO_PASSTHROUGH.replace("{id: b", "[{id: b") + "]")
    assert one.deployment == many.deployment


@pytest.mark.parametrize(("written", "port"), [("in", "in"), ("lines", "in")])
def test_in_is_the_only_parameter(written: str, port: str, folder: Path) -> None:
    text = "connector: {id: m, type: metronome}\npipeline: {id: p, spark: 'counts.py:count'}\n"
    deployment = loaded(
        text + f"binding: {{id: b, links: {{connector/m/out: pipeline/p/{written}}}}}", folder
    ).deployment
    assert deployment.inputs("p") == {port: [End("connector", "m", "out")]}


def test_inputs_are_named_as_the_parameters_and_those_with_a_default_need_no_link(folder: Path) -> None:
    text = "connector: {id: m, type: metronome}\npipeline: {id: p, spark: 'counts.py:both'}\n"
    links = "binding: {id: b, links: {connector/m/out: [pipeline/p/left, pipeline/p/right]}}"
    assert sorted(loaded(text + links, folder).deployment.inputs("p")) == ["left", "right"]


def test_a_function_that_only_running_the_file_would_show_may_have_any_inputs(folder: Path) -> None:
    (folder / "made.py").write_text("from elsewhere import first\nsecond = first\n")
    text = "connector: {id: m, type: metronome}\n"
    text += "pipeline: [{id: p, spark: 'made.py:first'}, {id: r, spark: 'made.py:second'}]\n"
    links = "binding: {id: b, links: {connector/m/out: [pipeline/p/a, pipeline/r/b]}}"
    assert loaded(text + links, folder).deployment.inputs("r") == {"b": [End("connector", "m", "out")]}


def test_pipelines_may_link_to_pipelines_and_signals_be_read(folder: Path) -> None:
    text = """
pipeline: [{id: p, spark: "counts.py:count"}, {id: r, spark: "system::passthrough"}]
connector: {id: n, type: "null"}
binding:
  id: b
  links:
    system/streams: pipeline/p/in
    pipeline/p/late: [pipeline/r/in]
    pipeline/r/out: connector/n/in
"""
    deployment = loaded(text, folder).deployment
    assert ends(deployment) == [
        ("connector/system.streams/out", "pipeline/p/in"),
        ("pipeline/p/late", "pipeline/r/in"),
        ("pipeline/r/out", "connector/n/in"),
    ]
    assert [link.source.source for link in deployment.links] == ["system.streams", "pipeline:p/late", "pipeline:r/out"]
    assert deployment.sinks_behind("p") == {"n"}
    assert "system.streams" not in deployment.connectors


def test_dead_letters_of_a_connector_are_a_separate_source() -> None:
    deployment = loaded("connector: {id: m, type: metronome}\n" + TO_PASSTHROUGH.replace("m/out", "m/err")).deployment
    assert deployment.links[0].source.source == "m.err"


def test_what_is_in_no_link_does_not_run_and_that_is_noted() -> None:
    found = loaded(RFC_CONNECTOR)
    assert found.deployment == Deployment()
    assert found.notes == ('connector "my-ws-server" is in no link, so it does not run',)


def test_capabilities_are_those_of_the_options() -> None:
    text = "connector: {id: m, type: file, codec: json, config: {path: a, mode: read}}\n" + TO_PASSTHROUGH
    found = loaded(text).capabilities["m"]
    assert found.source is not None
    assert found.sink is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("01", "01"),
        ("1_000", 1000),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("true", True),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-7", -7),
        ("~", None),
        ("127.0.0.1", "127.0.0.1"),
        ("'8'", "8"),
    ],
)
def test_plain_texts_are_what_they_look_like_and_nothing_else(written: str, value: Any) -> None:
    text = 'connector: {id: m, type: file, codec: json, config: {path: "{v}{v}", mode: read}}\n'
    text += f"binding: {{id: b, instances: {{eu: {{v: {written}}}}}, links: {LINKS}}}"
    found = loaded(text).deployment.connectors["m.eu"].config["path"]
    assert found == (written if isinstance(value, bool) else str(value)) * 2


LINKS = "{connector/m/out: 'pipeline/system::passthrough/in'}"


def test_anchors_and_merges_are_understood() -> None:
    text = """
connector:
  - &one {id: m, type: file, codec: json, config: &config {path: a, mode: read}}
  - <<: *one
    id: n
    config: {<<: *config, path: b}
pipeline: {id: p, spark: "system::passthrough"}
binding: {id: b, links: {connector/m/out: pipeline/p/in, connector/n/out: pipeline/p/in}}
"""
    connectors = loaded(text).deployment.connectors
    assert connectors["n"].type == "file"
    assert connectors["n"].config == {"path": "b", "mode": "read"}


def test_what_is_merged_may_merge_others_and_the_nearest_wins() -> None:
    text = """
connector:
  - &first {id: a, type: metronome, segments: 5, quota: 1MiB}
  - &second {<<: *first, id: b, quota: 2MiB}
  - {<<: [*second, *first], id: c}
binding: {id: x, links: {connector/c/out: "pipeline/system::passthrough/in"}}
"""
    spec = loaded(text).deployment.connectors["c"]
    assert (spec.type, spec.segments, spec.quota_bytes) == ("metronome", 5, 2 << 20)


@pytest.mark.parametrize("kind", ["tcp-server", "ws-server", "http-server"])
def test_no_two_servers_have_one_port(kind: str) -> None:
    text = f"""
connector: [{{id: s, type: {kind}, codec: json, config: {{port: "{{port}}"}}}}]
binding:
  id: b
  instances: {{eu: {{port: 9}}, us: {{port: PORT}}}}
  links: {{connector/s/out: "pipeline/system::passthrough/in"}}
"""
    assert loaded(text.replace("PORT", "10"), types=KnownTypes()).deployment.connectors.keys() == {"s.eu", "s.us"}
    with pytest.raises(ConfigErrors, match=r'"s.eu" and "s.us" cannot both have 127.0.0.1:9. Use a separate one'):
        loaded(text.replace("PORT", "9"), types=KnownTypes())
    with pytest.raises(ConfigErrors, match="cannot both have the same place"):
        loaded(text.replace("PORT", '"${PORT}"'), types=KnownTypes(), PORT="9")


def test_no_two_connectors_write_one_directory() -> None:
    text = """
connector:
  - {id: m, type: metronome, codec: json, config: {interval: 1s}}
  - {id: a, type: file, codec: json, config: {mode: write, path: out}}
  - {id: b, type: file, codec: json, config: {mode: write, path: ./out/}}
binding:
  id: b
  links:
    connector/m/out: pipeline/system::passthrough/in
    pipeline/system::passthrough/out: [connector/a/in, connector/b/in]
"""
    with pytest.raises(ConfigErrors, match=r'"a" and "b" cannot both have the directory out\.'):
        loaded(text, types=KnownTypes())
