"""Programs that speak the connector protocol, in an application: they wait for sinks, pauses and stops as others do."""

import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import PenstockError
from penstock.ingest.settings import ProgramServerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.worker.settings import WorkerSettings
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Taker
from tests.application.scene import dialling
from tests.application.stand_in import standing_in
from tests.spark.sending import send
from tests.support.running_worker import SMALL_STORE, RunningWorker
from tests.support.waiting import SECONDS_MAX, until


@dataclass
class Stage:
    worker: RunningWorker
    client: ApplicationClient
    pool: ThreadPoolExecutor

    @property
    def programs(self) -> str:
        return f"127.0.0.1:{self.worker.ports['connector']}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    def sending(self, source: str, stream: str, *payloads: bytes) -> "Future[None]":
        return self.pool.submit(send, self.programs, source, stream, payloads)

    def stored(self, source: str) -> int:
        sources = self.client.status().sources
        return sources[source].messages if source in sources else 0

    def waiting(self) -> dict[str, int]:
        return {one.name: one.blocked_count for one in self.client.status().connectors}


@contextmanager
def staged(data: Path, *, auto_create: bool = True) -> Iterator[Stage]:
    settings = WorkerSettings(
        data=data,
        http_port=0,
        store=SMALL_STORE,
        segment=ServerSettings(port=0),
        programs=ProgramServerSettings(port=0, auto_create=auto_create),
    )
    worker = RunningWorker(settings)
    worker.start()
    try:
        with ApplicationClient(f"127.0.0.1:{worker.ports['http']}", 5) as client, ThreadPoolExecutor() as pool:
            yield Stage(worker, client, pool)
    finally:
        worker.stop()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path / "data") as made:
        yield made


def test_a_program_may_send_when_every_sink_downstream_has_opened_its_stream(stage: Stage) -> None:
    with Taker() as well, Taker(up=False) as ill:
        deployment = deployed(
            connector("shops", "connector-protocol", codec="binary"),
            dialling("well", well.port),
            dialling("ill", ill.port),
            pipeline("p"),
            link("connector/shops/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/well/in"),
            link("pipeline/p/out", "connector/ill/in"),
        )
        stage.client.apply(deployment)
        with standing_in(stage.http, stage.worker.address, deployment):
            sending = stage.sending("shops", "north", b"one", b"two")
            other = stage.sending("others", "north", b"of no application")
            other.result(SECONDS_MAX)
            until(lambda: stage.waiting()["shops"] == 1)
            assert stage.stored("shops") == 0
            shops = next(one for one in stage.client.status().connectors if one.name == "shops")
            blocked = shops.blocked_streams[0]
            assert "'north'" in blocked.stream
            assert "sink ill" in blocked.why
            ill.up()
            sending.result(SECONDS_MAX)
            until(lambda: well.lines == ill.lines == ["one", "two"])


def test_a_program_of_no_application_can_be_paused_too(stage: Stage) -> None:
    send(stage.programs, "shops", "north", [b"one"])
    stage.client.pause("shops")
    sending = stage.sending("shops", "north", b"one", b"two")
    until(lambda: stage.client.status().session_totals.open == 1)
    send(stage.programs, "others", "north", [b"goes on"])
    assert stage.stored("shops") == 1
    assert "source shops is blocked: an operator has paused it. Resume it: penstock resume shops" in {
        str(one) for one in stage.client.status().blockages
    }
    stage.client.resume("shops")
    sending.result(SECONDS_MAX)
    assert stage.stored("shops") == 2


def test_one_stream_of_a_program_is_paused_by_its_name(stage: Stage) -> None:
    send(stage.programs, "shops", "north", [b"one"])
    stage.client.pause("shops", "north")
    sending = stage.sending("shops", "north", b"one", b"two")
    send(stage.programs, "shops", "south", [b"goes on"])
    until(lambda: stage.client.status().session_totals.open == 1)
    assert stage.stored("shops") == 2
    stage.client.resume("shops", "north")
    sending.result(SECONDS_MAX)
    assert stage.stored("shops") == 3


def test_deployed_sources_are_admitted_even_if_unknown_ones_are_refused(tmp_path: Path) -> None:
    shops = connector("shops", "connector-protocol", codec="binary")
    deployment = deployed(shops, pipeline("p"), link("connector/shops/out", "pipeline/p/in"))
    with staged(tmp_path / "data", auto_create=False) as stage:
        stage.client.apply(deployment)
        with standing_in(stage.http, stage.worker.address, deployment):
            send(stage.programs, "shops", "north", [b"one"])
        with pytest.raises(PenstockError, match="no-auto-create"):
            send(stage.programs, "others", "north", [b"one"])


def test_what_comes_before_the_driver_does_is_acknowledged_when_its_pipeline_has_completed_it(stage: Stage) -> None:
    shops = connector("shops", "connector-protocol", codec="binary")
    deployment = deployed(shops, pipeline("p"), link("connector/shops/out", "pipeline/p/in"))
    stage.client.apply(deployment)
    sending = stage.sending("shops", "north", b"one")
    until(lambda: stage.stored("shops") == 1)
    assert not sending.done()
    with standing_in(stage.http, stage.worker.address, deployment):
        sending.result(SECONDS_MAX)


def test_no_program_sends_in_the_name_of_a_deployed_connector(stage: Stage) -> None:
    beats = connector("beats", "metronome", config={"interval": "10ms"})
    stage.client.apply(deployed(beats, pipeline("p"), link("connector/beats/out", "pipeline/p/in")))
    until(lambda: stage.stored("beats") > 0)
    with pytest.raises(PenstockError, match="connector of the application"):
        send(stage.programs, "beats", "north", [b"one"])


def test_metrics_show_every_connector(stage: Stage) -> None:
    beats = connector("beats", "metronome", config={"interval": "10ms"})
    stage.client.apply(deployed(beats, pipeline("p"), link("connector/beats/out", "pipeline/p/in")))
    until(lambda: stage.stored("beats") > 0)
    with urllib.request.urlopen(f"http://{stage.http}/metrics", timeout=SECONDS_MAX) as response:
        text = response.read().decode()
    assert 'penstock_connector_up{connector="beats",type="metronome"} 1.0' in text
    assert 'penstock_connector_events_in_total{connector="beats",type="metronome"}' in text


def test_an_epoch_larger_than_the_quota_is_still_processed(stage: Stage) -> None:
    """What is completed is kept for some epochs more; without new events there are none."""
    shops = connector("shops", "connector-protocol", codec="binary", quota_bytes=2000)
    deployment = deployed(shops, pipeline("p"), link("connector/shops/out", "pipeline/p/in"))
    stage.client.apply(deployment)
    with standing_in(stage.http, stage.worker.address, deployment) as stand_ins:
        stand_ins["p"].works.clear()
        sending = stage.sending("shops", "north", *([b"x" * 500] * 100))
        until(
            lambda: any(
                "source shops is blocked" in one.text and "at its quota" in one.text
                for one in stage.client.status().blockages
            )
        )
        stand_ins["p"].works.set()
        sending.result(SECONDS_MAX)
    assert stage.stored("shops") == 100
