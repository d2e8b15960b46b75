"""A real worker that gets one deployment after the other runs what the last one describes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import Deployment, End, Link
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Sender
from tests.application.scene import listening
from tests.application.stand_in import sinks_of, standing_in
from tests.spark.sending import send
from tests.support.ports import free_port
from tests.support.running_worker import running_worker
from tests.support.waiting import until


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of one worker for all examples: each begins with what the one before has left."""
    with running_worker(tmp_path_factory.mktemp("applying") / "data") as worker:
        yield {port: f"127.0.0.1:{number}" for port, number in worker.ports.items()}


@st.composite
def runnable(draw: st.DrawFn) -> Deployment:
    """Of connectors that need nobody outside."""
    sources = draw(st.sets(st.sampled_from(["a", "b"])))
    sinks = draw(st.sets(st.sampled_from(["x", "y"])))
    pipelines = draw(st.sets(st.sampled_from(["p", "q"])))
    made = [connector(name, "metronome", config={"interval": draw(st.sampled_from(["1h", "2h"]))}) for name in sources]
    made += [connector(name, "null", quota_bytes=draw(st.sampled_from([None, 1000]))) for name in sinks]
    possible = [Link(End("connector", one, "out"), End("pipeline", p, "in")) for one in sources for p in pipelines]
    possible += [Link(End("pipeline", p, "out"), End("connector", one, "in")) for one in sinks for p in pipelines]
    links = draw(st.lists(st.sampled_from(sorted(possible)), unique=True)) if possible else []
    return deployed(*made, *map(pipeline, sorted(pipelines)), *links)


@settings(max_examples=25)
@given(st.lists(runnable(), min_size=1, max_size=4))
def test_any_sequence_of_applies_ends_in_the_state_of_the_last(
    addresses: dict[str, str], sequence: list[Deployment]
) -> None:
    with ApplicationClient(addresses["http"]) as client, CoordinatorClient(addresses["http"]) as coordinator:
        for one in sequence:
            client.apply(one)
        last = sequence[-1]
        assert client.application().deployment == last
        until(lambda: {one.name: one.state for one in client.status().connectors} == _states(last))
        bound = {(sink.pipeline, sink.sink): (sink.port, sink.url) for sink in coordinator.sinks()}
        for name in last.pipelines:
            wanted = {sink: (spec.port, spec.url) for sink, spec in sinks_of(last, name).items()}
            found = {sink: place for (pipeline, sink), place in bound.items() if pipeline == name}
            reads = any(link.target.name == name for link in last.links)
            assert found == wanted or not reads, "what reads nothing is not known to the coordinator"


def _states(deployment: Deployment) -> dict[str, str]:
    return dict.fromkeys(deployment.connectors, "connected")


def test_a_name_can_be_a_server_s_first_and_then_a_program_s(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data") as worker:
        http, programs = (f"127.0.0.1:{worker.ports[port]}" for port in ("http", "connector"))
        parts = (pipeline("p"), link("connector/shops/out", "pipeline/p/in"))
        with ApplicationClient(http) as client:
            port = free_port()
            client.apply(deployed(listening("shops", port), *parts))
            with Sender(port) as sender:
                sender.send("of a server")
                until(lambda: client.status().sources["shops"].messages == 1)
            deployment = deployed(connector("shops", "connector-protocol", codec="binary"), *parts)
            client.apply(deployment)
            with standing_in(http, worker.address, deployment):
                send(programs, "shops", "north", [b"one"])
            assert client.status().sources["shops"].messages == 2
