"""An application that changes while it runs: real sockets, a real worker."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.cli import former_pipelines
from penstock.client.coordinator import CoordinatorClient, InputSpec, SinkSpec
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import BreakerSpec, Deployment, Link
from penstock.protocol.stored import parse_event
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import Scene, dialling, listening, scene_of
from tests.support.ports import free_port
from tests.support.waiting import until

_IN = link("connector/source/out", "pipeline/p/in")
_OUT = link("pipeline/p/out", "connector/sink/in")


@dataclass
class Stage:
    """One source, one pipeline, one sink."""

    scene: Scene
    taker: Taker
    port: int
    deployment: Deployment

    def apply(self, **parts: object) -> dict[str, list[str]]:
        return self.scene.application.apply(replace(self.deployment, **parts))  # type: ignore[arg-type]

    def with_connectors(self, *links: Link, **more: object) -> dict[str, list[str]]:
        """Others beside or in the place of those of the same name."""
        connectors = {**self.deployment.connectors, **more}
        return self.apply(connectors=connectors, links=(*self.deployment.links, *links))

    def receives(self, *lines: str) -> bool:
        return self.taker.lines == [*lines]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    port = free_port()
    with Taker() as taker:
        deployment = deployed(listening("source", port), dialling("sink", taker.port), pipeline("p"), _IN, _OUT)
        with scene_of(tmp_path / "data", deployment) as scene:
            scene.until_listens("source", "sink")
            yield Stage(scene, taker, port, deployment)


def test_a_connection_of_a_connector_that_does_not_differ_survives(stage: Stage) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.receives("one"))
        done = stage.with_connectors(other=listening("other", free_port()))
        assert (done["started"], done["restarted"], done["stopped"]) == (["other"], [], [])
        sender.send("two")
        until(lambda: stage.receives("one", "two"))
        stage.apply()
        sender.send("three")
        until(lambda: stage.receives("one", "two", "three"))
        assert stage.taker.connections == 1, "the sink has kept its connection too"


def test_another_codec_or_quota_does_not_touch_connections(stage: Stage) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.receives("one"))
        done = stage.with_connectors(source=listening("source", stage.port, quota_bytes=1 << 20))
        assert done["configured"] == ["source"]
        patient = replace(stage.deployment.connectors["sink"], breaker=BreakerSpec(probe_after_seconds=7))
        assert stage.with_connectors(sink=patient)["configured"] == ["sink", "source"]
        other = replace(stage.deployment.connectors["source"], codec="string")
        done = stage.with_connectors(source=other)
        assert done["pipelines_restarted"] == ["p"]
        assert not done["restarted"]
        sender.send("two")
        until(lambda: stage.receives("one", "two"))


def test_what_a_connector_has_read_before_it_is_created_again_arrives(stage: Stage) -> None:
    with Sender(stage.port) as sender:
        sender.send("whole")
        sender.send("the rest", end="")
        until(lambda: stage.receives("whole"))
        port = free_port()
        assert stage.with_connectors(source=listening("source", port))["restarted"] == ["source"]
        assert not sender.is_open()
    with Sender(port) as sender:
        sender.send("later")
        until(lambda: stage.taker.lines[-1:] == ["later"])
    assert stage.receives("whole", "later"), "what was cut off is a dead letter, not an event"
    with SegmentClient(stage.scene.segments) as segments:
        events = [parse_event(event.data) for event in segments.events("connector/source.err/0")]
    assert [event.payload for event in events if event is not None] == [b"the rest"]


def test_a_new_sink_gets_what_comes_from_then_on_and_streams_wait_for_it(stage: Stage) -> None:
    with Sender(stage.port) as sender, Taker(up=False) as late:
        sender.send("one")
        until(lambda: stage.receives("one"))
        more = {"late": dialling("late", late.port)}
        assert stage.with_connectors(link("pipeline/p/out", "connector/late/in"), **more)["relinked"] == ["source"]
        until(lambda: stage.scene.waiting() == {"source": 1})
        sender.send("two")
        late.up()
        until(lambda: late.lines == ["two"])
        until(lambda: stage.receives("one", "two"))


def test_a_sink_that_is_no_longer_linked_blocks_nobody(stage: Stage) -> None:
    with Sender(stage.port) as sender, Taker(up=False) as gone:
        more = {"gone": dialling("gone", gone.port)}
        stage.with_connectors(link("pipeline/p/out", "connector/gone/in"), **more)
        until(lambda: stage.scene.waiting() == {"source": 1})
        stage.apply()
        sender.send("one")
        until(lambda: stage.receives("one"))
        assert [sink.sink for sink in stage.scene.application.status().sinks] == ["sink"]


def test_what_cannot_be_made_here_changes_nothing(stage: Stage) -> None:
    missing = connector("bad", "tcp-client", config={"host": "${file:/nowhere}", "port": 1})
    with Sender(stage.port) as sender:
        with pytest.raises(RequestError, match=re.escape("connector bad: /nowhere cannot be read")):
            stage.with_connectors(bad=missing)
        sender.send("one")
        until(lambda: stage.receives("one"))
    assert stage.scene.application.application().revision == 1


def test_the_command_reports_what_it_has_done_and_status_shows_it(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_pipelines, "STOP_SECONDS_MAX", 0.1)  # the stand-in of p does not stop
    file = tmp_path / "app.yaml"
    file.write_text(f"""
connector:
  - {{id: source, type: tcp-server, config: {{port: {stage.port}}}, codec: json}}
  - {{id: quiet, type: "null", codec: json}}
binding:
  id: b
  links:
    connector/source/out: pipeline/system::passthrough/in
    pipeline/system::passthrough/out: connector/quiet/in
""")
    said = stage.scene.command("apply", str(file))
    assert "revision 2" in said
    assert "stopped: sink" in said
    assert "started: quiet" in said
    assert "nothing changed" in stage.scene.command("apply", str(file))
    shown = stage.scene.command("status", "--all")
    assert "application running, revision 2" in shown
    assert re.search(r"quiet +│ null +│ connected", shown)


def test_a_sink_that_changes_its_port_gets_all_of_the_old_one_first(stage: Stage) -> None:
    """Its codec has changed: the driver restarts the pipeline, and binds it where the new codec's rows are."""
    with Sender(stage.port) as sender, CoordinatorClient(stage.scene.http, 5) as coordinator:
        sender.send("one")
        until(lambda: stage.receives("one"))
        stage.with_connectors(sink=replace(stage.deployment.connectors["sink"], codec="string"))
        assert [sink.port for sink in coordinator.sinks()] == ["out"], "nothing moves while the old query runs"
        coordinator.start("p", {"in": InputSpec(["source"])}, ["out", "err", "late", "out.string"])
        coordinator.bind("p", {"sink": SinkSpec("out.string", "sink")})
        assert [sink.port for sink in coordinator.sinks()] == ["out.string"]
