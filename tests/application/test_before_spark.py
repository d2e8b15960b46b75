"""Requests that arrive before the pipelines of their connector accept events: real requests and worker, no Spark."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import Deployment
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.stand_in import standing_in
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

ANSWER_SECONDS_MAX = 120


def with_requests(port: int, timeout: str = "60s", ack: str = "checkpoint") -> Deployment:
    requests = connector("web", "http-server", config={"port": port, "timeout": timeout}, codec="binary", ack=ack)
    links = link("connector/web/out", "pipeline/p/in"), link("pipeline/p/out", "connector/out/in")
    return deployed(requests, connector("out"), pipeline("p"), *links)


@contextmanager
def served(data: Path, deployment: Deployment, port: int) -> Iterator[tuple[RunningWorker, httpx.Client]]:
    """The connectors listen, and nobody runs the pipelines."""
    with running_worker(data) as worker, ApplicationClient(http_of(worker)) as application:
        application.apply(deployment)
        until(lambda: {one.name: one.state for one in application.status().connectors}["web"] == "connected")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client:
            yield worker, client


def http_of(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def stored_of(worker: RunningWorker) -> int:
    with CoordinatorClient(http_of(worker)) as coordinator:
        return coordinator.status().sources["web"].messages


def test_a_request_waits_for_its_pipeline_and_is_answered(tmp_path: Path) -> None:
    port = free_port()
    deployment = with_requests(port)
    with served(tmp_path / "data", deployment, port) as (worker, client):
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/", content=b"early").status_code))
        asking.start()
        with CoordinatorClient(http_of(worker)) as coordinator:
            until(lambda: coordinator.status().connectors[-1].counts.get("early_requests"))
        assert (answers, stored_of(worker)) == ([], 0), "nothing of it is stored before it can be processed"
        with standing_in(http_of(worker), worker.address, deployment):
            asking.join(ANSWER_SECONDS_MAX)
            assert answers == [202]
        assert stored_of(worker) == 1


def test_a_request_that_comes_too_early_is_answered_with_when_to_retry(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "data", with_requests(port, "200ms"), port) as (worker, client):
        refused = client.post("/", content=b"early")
        assert refused.status_code == 503
        assert refused.text.startswith("p is not running: start it with penstock run, or end it with penstock pipeline")
        assert refused.text.endswith("; nothing was stored\n")
        with CoordinatorClient(http_of(worker)) as coordinator:
            coordinator.announce({"p": ["web"]})
        refused = client.post("/", content=b"early")
        assert (refused.status_code, stored_of(worker)) == (503, 0)
        seconds = int(refused.headers["retry-after"])
        assert 1 < seconds <= 20
        assert refused.text == f"p is starting, ready in about {seconds} s; nothing was stored\n"


def test_one_that_is_acknowledged_when_it_is_stored_waits_for_nobody(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "data", with_requests(port, "60s", "durable"), port) as (_, client):
        assert client.post("/", content=b"early").status_code == 202


def test_a_drain_ends_the_wait(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "data", with_requests(port, "100s"), port) as (worker, client):
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/", content=b"early")))
        asking.start()
        with ApplicationClient(http_of(worker)) as application:
            until(lambda: application.status().connectors[-1].counts.get("early_requests"))
            application.drain()
            asking.join(ANSWER_SECONDS_MAX)
        assert [(one.status_code, one.text) for one in answers] == [(503, "shutting down: not accepting requests\n")]


def test_a_request_waits_for_the_first_epoch_with_events_however_long_it_takes(tmp_path: Path) -> None:
    port, timeout_seconds = free_port(), 2.0
    with (
        served(tmp_path / "data", with_requests(port, "2s"), port) as (worker, client),
        CoordinatorClient(http_of(worker)) as coordinator,
    ):
        run = coordinator.start("p", {"in": InputSpec(["web"])}, ["out", "err", "late"])
        begin = coordinator.initial("p", run.generation, "in")
        coordinator.cut("p", run.generation, "in", begin)
        coordinator.merge("p", 0, [], generation=run.generation)  # Spark's first batch: no epoch in it
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/", content=b"first").status_code))
        asking.start()
        until(lambda: stored_of(worker) == 1)
        asking.join(1.5 * timeout_seconds)  # Spark compiles
        assert answers == []
        assert coordinator.cut("p", run.generation, "in", begin).offset != begin
        coordinator.merge("p", 1, [], generation=run.generation)
        asking.join(ANSWER_SECONDS_MAX)
        assert answers == [202]
        late = client.post("/", content=b"second")
        assert late.status_code == 504
        assert late.text == "no reply within 2 s; what was sent is stored, and may still be processed\n"
