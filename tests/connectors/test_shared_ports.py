"""Connectors that every worker of a cluster listens with: the processes of one machine share the port."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from penstock.connectors.api import Lost
from penstock.connectors.registry import make_connector, types_of_every_worker
from tests.connectors.recording_host import RecordingHost, running
from tests.support.ports import free_port

OPTIONS: dict[str, dict[str, Any]] = {
    "http-server": {"path": "/a"},
    "otlp": {},
    "syslog": {},
    "tcp-server": {},
    "udp-server": {},
    "webhook-server": {"path": "/a", "signature": {"style": "github", "secrets": ["s"]}},
    "ws-server": {},
}


def test_each_type_that_every_worker_can_listen_with_is_tested() -> None:
    assert types_of_every_worker() == ", ".join(OPTIONS)


def started(name: str, ports: dict[str, int], *, shares_port: bool) -> AbstractAsyncContextManager[Any]:
    connector = make_connector(name, OPTIONS[name] | ports)
    return running(connector, RecordingHost(shares_port=shares_port))


def free_ports(name: str) -> dict[str, int]:
    return {"port": free_port()} | ({"grpc_port": free_port()} if name == "otlp" else {})


@pytest.mark.parametrize("name", OPTIONS)
async def test_the_connectors_of_two_partitions_share_their_ports(name: str) -> None:
    ports = free_ports(name)
    async with started(name, ports, shares_port=True), started(name, ports, shares_port=True):
        pass


@pytest.mark.parametrize("name", OPTIONS)
async def test_other_connectors_have_theirs_alone(name: str) -> None:
    ports = free_ports(name)
    async with started(name, ports, shares_port=False):
        with pytest.raises(Lost):
            async with started(name, ports, shares_port=False):
                pass
