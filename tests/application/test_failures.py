"""Connectors that cannot be built when the worker restarts: the others run, and it is reported."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.coordinator.client import ApplicationClient
from penstock.connectors.api import Capabilities
from penstock.connectors.metronome import Metronome, MetronomeOptions
from penstock.connectors.registry import CONNECTORS
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import ReconnectSpec
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Taker
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until


def client_of(worker: RunningWorker) -> ApplicationClient:
    return ApplicationClient(f"127.0.0.1:{worker.ports['http']}", 5)


def test_a_connector_whose_secret_is_gone_leaves_the_others_and_starts_when_it_is_applied_again(tmp_path: Path) -> None:
    secret = tmp_path / "host"
    secret.write_text("127.0.0.1\n")
    with Taker() as taker:
        deployment = deployed(
            connector("sink", "tcp-client", config={"host": f"${{file:{secret}}}", "port": taker.port}, codec="binary"),
            connector("beats", "metronome", config={"interval": "10ms"}),
            pipeline("p"),
            link("connector/beats/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        with running_worker(tmp_path / "data") as worker, client_of(worker) as client:
            client.apply(deployment)
        secret.unlink()
        with running_worker(tmp_path / "data") as worker, client_of(worker) as client:

            def state(name: str) -> str:
                found = {one.name: one.state for one in client.status().connectors}
                return str(found[name])

            until(lambda: state("beats") == "connected")
            assert state("sink") == "failed"
            (problem,) = client.status().problems
            assert f"connector sink does not run: {secret} cannot be read" in problem
            secret.write_text("127.0.0.1\n")
            assert client.apply(deployment)["started"] == ["sink"]
            until(lambda: state("sink") == "connected")
            assert client.status().problems == []


class Odd(Metronome):
    """A type of another package that works when it is deployed, and not after an update."""

    about = replace(Metronome.about, name="odd")
    is_broken = False

    @classmethod
    def capabilities(cls, options: MetronomeOptions) -> Capabilities:
        if cls.is_broken:
            raise ZeroDivisionError
        return super().capabilities(options)


def test_a_type_that_raises_anything_stops_neither_the_others_nor_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONNECTORS.found, "odd", Odd)
    deployment = deployed(
        connector("odd", "odd", config={"interval": "1s"}),
        connector("beats", "metronome", config={"interval": "10ms"}),
        pipeline("p"),
        link("connector/odd/out", "pipeline/p/in"),
        link("connector/beats/out", "pipeline/p/in"),
    )
    with running_worker(tmp_path / "data") as worker, client_of(worker) as client:
        client.apply(deployment)
    monkeypatch.setattr(Odd, "is_broken", True)
    with running_worker(tmp_path / "data") as worker, client_of(worker) as client:
        states = {one.name: one.state for one in client.status().connectors}
        assert states["odd"] == "failed"
        until(lambda: {one.name: one.state for one in client.status().connectors}["beats"] == "connected")
        with pytest.raises(RequestError, match="connector odd: it cannot be built: ZeroDivisionError"):
            client.apply(deployment)


def test_what_a_file_holds_is_nowhere_in_what_is_kept_or_shown(tmp_path: Path) -> None:
    secret = tmp_path / "host"
    secret.write_text("localhost.secret.invalid\n")
    sink = connector("sink", "tcp-client", config={"host": f"${{file:{secret}}}", "port": 1}, codec="binary")
    with running_worker(tmp_path / "data") as worker, client_of(worker) as client:
        client.apply(deployed(sink, pipeline("p"), link("pipeline/p/out", "connector/sink/in")))
        assert "secret.invalid" not in str(client.application())
    assert "secret.invalid" not in (tmp_path / "data" / "application.json").read_text()


def test_a_connector_that_has_used_up_its_tries_is_a_problem_of_the_worker(tmp_path: Path) -> None:
    twice = ReconnectSpec(first_seconds=0.01, tries=2)
    nobody = {"host": "127.0.0.1", "port": free_port()}
    reader = connector("reader", "tcp-client", config=nobody, codec="binary", reconnect=twice)
    deployment = deployed(reader, pipeline("p"), link("connector/reader/out", "pipeline/p/in"))
    with running_worker(tmp_path / "data") as worker, client_of(worker) as client:
        client.apply(deployment)
        until(lambda: client.status().connectors[0].state == "failed")
        (problem,) = client.status().problems
        assert problem.startswith("connector reader has used up its attempts: "), problem
        assert problem.count("connector reader") == 1
        with socket.create_server(("127.0.0.1", nobody["port"])):
            assert client.apply(deployment)["restarted"] == ["reader"]
            until(lambda: client.status().connectors[0].state == "connected")
            assert client.status().problems == []
