"""The worker is killed and restarted: connectors, pauses and blocked streams are as they were, and nothing is lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.protocol.api.deployment import BreakerSpec, Deployment
from tests.application.deployments import deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import KilledScene, dialling, killed_scene, listening
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.process


@dataclass
class Stage:
    scene: KilledScene
    taker: Taker
    port: int
    deployment: Deployment

    def kill(self) -> None:
        self.scene.kill()
        self.scene.until_listens("source")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    port = free_port()
    with Taker() as taker:
        deployment = deployed(
            listening("source", port),
            dialling("sink", taker.port, per_stream=True, breaker=BreakerSpec(probe_after_seconds=0.1)),
            pipeline("p"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        with killed_scene(tmp_path / "data", deployment) as scene:
            scene.until_listens("source", "sink")
            yield Stage(scene, taker, port, deployment)


def test_connectors_are_back_and_streams_have_ids_that_were_never_used(stage: Stage) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.taker.lines == ["one"])
        stage.kill()
        assert not sender.is_open()
    told = stage.scene.application.application()
    assert (told.revision, told.state, told.deployment) == (1, "running", stage.deployment)
    with Sender(stage.port) as sender:
        sender.send("two")
        until(lambda: stage.taker.lines[-1:] == ["two"])
    assert list(dict.fromkeys(stage.taker.lines)) == ["one", "two"]  # at least once: "one" may come again


def test_only_an_operator_ends_a_pause(stage: Stage) -> None:
    stage.scene.command("pause", "source")
    stage.kill()
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.scene.waiting() == {"source": 1})
        assert stage.scene.connector("source").paused
        until(lambda: "an operator has paused source" in stage.scene.connector("source").blocked_streams[0].why)
        stage.scene.application.apply(stage.deployment)
        assert stage.taker.lines == []
        stage.scene.command("resume", "source")
        until(lambda: stage.taker.lines == ["one"])


def test_one_stream_is_paused_and_the_others_continue(stage: Stage) -> None:
    with Sender(stage.port) as slow, Sender(stage.port) as quick:
        until(lambda: stage.scene.connector("source").streams == 2)
        slow.send("first")
        until(lambda: stage.taker.lines == ["first"])
        stage.scene.command("pause", "source", "--stream", slow.address)
        (paused,) = stage.scene.connector("source").paused_streams
        slow.send("slow")
        quick.send("quick")
        until(lambda: stage.taker.lines == ["first", "quick"])
        stage.scene.command("resume", "source", "--stream", f"#{paused}")
        until(lambda: stage.taker.lines == ["first", "quick", "slow"])


def test_what_is_retained_for_a_closed_stream_arrives_after_a_kill_once_and_in_order(stage: Stage) -> None:
    works = stage.scene.stand_ins["p"].works
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.taker.lines == ["one"])
        works.clear()
        sender.send("two", "three")
        until(lambda: stage.scene.connector("source").events_in == 3)
        stage.taker.down()
        until(lambda: stage.scene.connector("sink").tripped_count == 1)
        works.set()
        until(lambda: stage.scene.connector("sink").outbox_bytes > 0)
        until(lambda: stage.scene.application.status().sinks[0].lacking == 0)
        stage.kill()
    assert stage.scene.connector("sink").outbox_bytes > 0
    stage.taker.up()
    until(lambda: len(stage.taker.lines) >= 3)
    with Sender(stage.port) as sender:
        sender.send("four")
        until(lambda: len(stage.taker.lines) >= 4)
    assert stage.taker.lines == ["one", "two", "three", "four"]
    until(lambda: stage.scene.connector("sink").outbox_bytes == 0)
