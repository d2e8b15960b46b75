"""`penstock stop`: what was read is delivered, nothing is lost, and the application continues afterwards."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.protocol.api.deployment import Deployment, InterceptorSpec
from penstock.protocol.api.pipelines import BucketNumbers
from tests.application.deployments import deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import KilledScene, Scene, dialling, killed_scene, listening, scene_of
from tests.spark.sending import send
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, until

_SLOWLY = InterceptorSpec(type="join", config={"delimiter": "\\n", "max_elements": 1000, "max_wait_ms": 3_600_000})


S = TypeVar("S", bound=Scene)


@dataclass
class Stage(Generic[S]):
    scene: S
    taker: Taker
    port: int
    deployment: Deployment

    def stop(self) -> str:
        return self.scene.command("stop")


@contextmanager
def staged(scene_of: Callable[[Path, Deployment], AbstractContextManager[S]], data: Path) -> Iterator[Stage[S]]:
    port = free_port()
    with Taker() as taker:
        deployment = deployed(
            listening("source", port),
            dialling("sink", taker.port, interceptors_out=(_SLOWLY,)),
            pipeline("p"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        with scene_of(data, deployment) as scene:
            scene.until_listens("source", "sink")
            yield Stage(scene, taker, port, deployment)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage[Scene]]:
    with staged(scene_of, tmp_path / "data") as made:
        yield made


@pytest.fixture
def killed_stage(tmp_path: Path) -> Iterator[Stage[KilledScene]]:
    with staged(killed_scene, tmp_path / "data") as made:
        yield made


def test_what_interceptors_hold_on_both_ways_arrives(stage: Stage[Scene]) -> None:
    """In the way out values would wait for others for an hour."""
    with Sender(stage.port) as sender:
        sender.send("one", "two")
        until(lambda: stage.scene.connector("source").events_in == 2)
        time.sleep(0.5)
        assert stage.taker.lines == []
        assert "the application is stopped" in stage.stop()
        assert stage.taker.lines == ["one", "two"]
        assert not sender.is_open()
    assert stage.scene.application.application().state == "drained"
    assert stage.scene.application.status().connectors == []


def test_half_a_record_is_a_dead_letter_that_arrives_before_all_is_over(tmp_path: Path) -> None:
    port = free_port()
    with Taker() as events, Taker() as letters:
        deployment = deployed(
            listening("source", port),
            dialling("events", events.port),
            dialling("letters", letters.port),
            pipeline("p"),
            pipeline("q"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/events/in"),
            link("connector/source/err", "pipeline/q/in"),
            link("pipeline/q/out", "connector/letters/in"),
        )
        with scene_of(tmp_path / "data", deployment) as scene, Sender(port) as sender:
            sender.send("whole")
            sender.send("half a rec", end="")
            until(lambda: events.lines == ["whole"])
            scene.command("stop")
            assert (events.lines, letters.lines) == (["whole"], ["half a rec"])


def test_it_continues_where_it_was_when_it_is_applied_again(stage: Stage[Scene]) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.scene.connector("source").events_in == 1)
        stage.stop()
    stage.scene.application.apply(stage.deployment)
    with Sender(stage.port) as sender:
        sender.send("two")
        until(lambda: stage.scene.connector("source").events_in >= 1)
        stage.stop()
    assert stage.taker.lines == ["one", "two"]


@pytest.mark.process
def test_a_stopped_application_stays_stopped_over_a_restart(killed_stage: Stage[KilledScene]) -> None:
    killed_stage.stop()
    killed_stage.scene.kill()
    told = killed_stage.scene.application.application()
    assert (told.state, told.deployment) == ("drained", killed_stage.deployment)
    assert killed_stage.scene.application.status().connectors == []


@pytest.mark.process
def test_a_stop_that_the_worker_did_not_survive_is_finished_by_the_next(killed_stage: Stage[KilledScene]) -> None:
    with Sender(killed_stage.port) as sender:
        sender.send("one")
        until(lambda: killed_stage.scene.connector("source").events_in == 1)
        killed_stage.taker.down()
        killed_stage.scene.application.drain()
        until(lambda: killed_stage.scene.application.application().waits_for != [])
        killed_stage.scene.kill()
    assert killed_stage.scene.application.application().state == "draining"
    killed_stage.taker.up()
    until(lambda: killed_stage.scene.application.application().state == "drained")
    assert killed_stage.taker.lines == ["one"]


def test_an_apply_in_the_middle_of_a_stop_continues_with_everything(stage: Stage[Scene]) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.scene.connector("source").events_in == 1)
        stage.taker.down()
        stage.scene.application.drain()
        until(lambda: stage.scene.application.application().waits_for != [])
    assert stage.scene.application.apply(stage.deployment)["started"] == ["sink", "source"]
    stage.taker.up()
    with Sender(stage.port) as sender:
        sender.send("two")
        until(lambda: stage.scene.connector("source").events_in == 2)
        stage.stop()
    assert stage.taker.lines == ["one", "two"]


def test_it_reports_how_many_windows_stay_open_and_what_closes_them(stage: Stage[Scene]) -> None:
    numbers = dict.fromkeys(("bucket", "open_windows", "keys", "state_bytes", "late_kept", "late_dropped"), 0)
    with Sender(stage.port) as sender, CoordinatorClient(stage.scene.http) as coordinator:
        sender.send("one")
        until(lambda: stage.scene.connector("source").events_in == 1)
        coordinator.report_windows(
            "p", "w", 1, [BucketNumbers(**numbers | {"waiting": 2, "first_end": 9, "next_time": 9})]
        )
        told = stage.stop()
    assert told.splitlines()[-1] == "p: 2 windows stay open; the next run closes them, by the worker's clock"


def test_while_it_waits_it_reports_for_whom(stage: Stage[Scene]) -> None:
    with Sender(stage.port) as sender:
        sender.send("one")
        until(lambda: stage.scene.connector("source").events_in == 1)
        stage.taker.down()
        stage.scene.application.drain()

        def names_the_sink() -> bool:
            waits_for = stage.scene.application.application().waits_for
            return any("sink of pipeline p" in sentence for sentence in waits_for)

        until(names_the_sink)
        stage.taker.up()
        until(lambda: stage.scene.application.application().state == "drained")


def test_programs_that_send_wait_while_it_is_stopped_and_continue_afterwards(stage: Stage[Scene]) -> None:
    programs = stage.scene.programs

    def stored() -> int:
        count: int = stage.scene.application.status().sources["shops"].messages
        return count

    send(programs, "shops", "north", [b"before"])
    stage.stop()
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send, programs, "shops", "north", [b"before", b"during"])
        until(lambda: stage.scene.application.status().session_totals.open == 1)
        time.sleep(0.5)
        assert stored() == 1
        stage.scene.application.apply(stage.deployment)
        sending.result(SECONDS_MAX)
    assert stored() == 2
