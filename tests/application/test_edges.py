"""Applies and stops at unlucky moments: at the quota, while sinks are unavailable, with leftovers of an earlier
application.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.status import SourceStatus
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import dialling, listening
from tests.application.stand_in import standing_in
from tests.spark.sending import send
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

QUOTA = 20_000


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    with running_worker(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[ApplicationClient]:
    with ApplicationClient(f"127.0.0.1:{worker.ports['http']}", 5) as made:
        yield made


def source_of(client: ApplicationClient, name: str) -> SourceStatus:
    return client.status().sources[name]


def test_a_connector_at_its_quota_is_created_again_although_its_pipeline_does_not_run(
    client: ApplicationClient,
) -> None:
    port, other = free_port(), free_port()
    to_p = link("connector/source/out", "pipeline/p/in")
    client.apply(deployed(listening("source", port, quota_bytes=QUOTA), pipeline("p"), to_p))
    until(lambda: client.status().connectors[0].state == "connected")
    with Sender(port) as sender:
        sender.send(*["x" * 1000] * 1000)
        until(lambda: not source_of(client, "source").has_room)
        client.apply(deployed(listening("source", other, quota_bytes=QUOTA), pipeline("p"), to_p))
        assert client.status().connectors[0].state in ("starting", "connected")


def test_a_stream_that_a_sink_has_opened_late_becomes_idle_when_it_is_silent(client: ApplicationClient) -> None:
    port = free_port()
    with Taker(up=False) as taker:
        deployment = deployed(
            listening("source", port, idle_timeout_seconds=0.2),
            dialling("sink", taker.port),
            pipeline("p"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        client.apply(deployment)
        with Sender(port):
            until(lambda: client.status().connectors[1].blocked_count == 1)
            taker.up()
            until(lambda: source_of(client, "source").idle_streams == 1)


def test_links_of_a_stopped_application_block_nobody_in_the_next(
    worker: RunningWorker, client: ApplicationClient
) -> None:
    with Taker() as taker:
        first = deployed(
            connector("shops", "connector-protocol", codec="binary"),
            dialling("sink", taker.port),
            pipeline("p"),
            link("connector/shops/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        client.apply(first)
        http = f"127.0.0.1:{worker.ports['http']}"
        with standing_in(http, worker.address, first):
            client.drain()
            until(lambda: client.application().state == "drained")
        client.pause("sink")
        client.resume("sink")
        client.apply(deployed(connector("other")))
        with CoordinatorClient(http) as coordinator:
            coordinator.drop("p")
        send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"of no application"])
