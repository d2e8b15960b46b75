"""`penstock run FILE.py` on a worker that was stopped with `penstock stop`."""

import time

import pytest

from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.run import _open_for_programs
from penstock.client import Message, Source
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import Deployment
from tests.application.deployments import deployed
from tests.application.scene import listening
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX


def stopped(worker: RunningWorker, deployment: Deployment) -> FoundWorker:
    address = f"127.0.0.1:{worker.ports['http']}"
    with ApplicationClient(address, 5) as client:
        client.apply(deployment)
        client.drain()
        deadline = time.monotonic() + SECONDS_MAX
        while client.application().state != "drained":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return FoundWorker(address, worker.ports)


def test_programs_may_send_again(worker: RunningWorker) -> None:
    found = stopped(worker, deployed(listening("source", free_port())))
    assert _open_for_programs(found).state == "running"
    acknowledged = []
    source = Source(
        f"127.0.0.1:{worker.ports['connector']}", source="lines", on_ack=lambda *ack: acknowledged.append(ack)
    )
    source.stream("one", lambda _: [Message(1, b"line")])
    source.run()
    assert acknowledged[-1] == ("one", 1)


def test_it_reports_that_the_application_stays_stopped(
    worker: RunningWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    found = stopped(worker, deployed(listening("source", free_port())))
    _open_for_programs(found)
    assert "the application deployed here stays stopped" in capsys.readouterr().err


def test_an_application_that_runs_is_left_alone(worker: RunningWorker) -> None:
    deployment = deployed(listening("source", free_port()))
    found = FoundWorker(f"127.0.0.1:{worker.ports['http']}", worker.ports)
    with ApplicationClient(found.http, 5) as client:
        client.apply(deployment)
        before = client.application()
    assert _open_for_programs(found) == before
