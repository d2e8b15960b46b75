"""A connector that every worker of a cluster listens with (`listen: every-worker`)."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.application.validation import check_deployment
from penstock.bucket.stores import open_bucket
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.cluster.places import Kind, Places, Thing
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import End, Link
from tests.support.ports import free_port
from tests.support.running_worker import running_worker
from tests.support.waiting import until
from tests.worker.hosts import hosts
from tests.worker.posting import SOURCE, Clients, deployed, listening, stored


def sizes(found: list[dict[int, list[bytes]]]) -> list[int]:
    return [sum(map(len, streams.values())) for streams in found]


@pytest.mark.process
@pytest.mark.timeout(600)
def test_clients_reach_every_worker_and_each_event_is_in_the_source_once(tmp_path: Path) -> None:
    port = free_port()
    clients, spec = Clients(port), listening(port)
    with hosts(tmp_path, 1, 1, options=("--retention", "keep")) as made, ExitStack() as stack:
        first, second = made.all

        def states() -> dict[str, str]:
            with CoordinatorClient(f"127.0.0.1:{second.http_port}", 5) as client:
                return {one.name: one.state for one in client.status().connectors}

        def reach_both() -> None:
            """Whichever process a connection reaches: in the end each has one."""
            before = sizes(stored(made))
            until(
                lambda: clients.post() and all(now > was for now, was in zip(sizes(stored(made)), before, strict=True)),
                made.said,
            )

        application = stack.enter_context(ApplicationClient(f"127.0.0.1:{second.http_port}", 5))
        application.apply(deployed(replace(spec, ack="durable")))
        until(lambda: states() == {SOURCE: "connected", f"{SOURCE}#1": "connected"}, made.said)
        assert {*map(len, map(made.shards_of, made.all))} == {1}, "each of them has a partition"
        reach_both()
        with pytest.raises(RequestError, match="where it cannot be paused") as refused:
            application.pause(SOURCE)
        assert refused.value.hint.startswith("Drain the application")
        first.kill()
        made.settle()
        until(lambda: states() == {SOURCE: "connected", f"{SOURCE}#1": "connected"}, made.said)
        reach_both()
        found = stored(made)
        times = Counter(payload for streams in found for ones in streams.values() for payload in ones)
        assert {*times.values()} == {1}
        assert times.keys() >= {*clients.answered}
        assert not found[0].keys() & found[1].keys(), "no two connections have the same stream id"
        application.drain()
        until(lambda: not clients.post(), made.said)
        until(lambda: f"{SOURCE}#1" not in states(), made.said)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_an_application_that_the_worker_refuses_claims_no_place(tmp_path: Path) -> None:
    """For the address of another connector, or its port."""
    spec = listening(free_port())
    exposed = {**spec.config, "port": free_port(), "host": "0.0.0.0"}
    with hosts(tmp_path, 2) as made, ApplicationClient(f"127.0.0.1:{made.all[0].http_port}", 5) as application:
        for config, why in ((exposed, "0\\.0"), (spec.config, "same port")):
            other = replace(spec, name="o", id="o", config=config, partitions=1, listen="one-worker")
            with pytest.raises(RequestError, match=why):
                application.apply(replace(deployed(spec), connectors={SOURCE: spec, "o": other}))
            assert not Places(open_bucket(made.url)).find_partitions(Thing(Kind.SOURCE, SOURCE))


def test_a_worker_without_a_cluster_refuses_it(tmp_path: Path) -> None:
    with (
        running_worker(tmp_path) as worker,
        ApplicationClient(worker.http) as application,
        pytest.raises(RequestError, match="listen: every-worker needs a cluster, and this worker has no --store"),
    ):
        application.apply(deployed(listening(free_port())))


def test_replies_cannot_be_linked_to_it_and_it_needs_partitions() -> None:
    spec = listening(1)
    replies = Link(End("pipeline", "p", "out"), End("connector", SOURCE, "in"))
    deployment = deployed(replace(spec, partitions=1))
    with pytest.raises(RequestError) as refused:
        check_deployment(replace(deployment, links=(*deployment.links, replies)))
    assert str(refused.value).splitlines() == [
        "connector hits: listen: every-worker needs partitions",
        "connector hits/in: with listen: every-worker the port in cannot be linked",
    ]
