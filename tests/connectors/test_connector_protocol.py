"""`connector-protocol`: its options, and programs that connect under its name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.client import AsyncSource, Message
from penstock.connectors.connector_protocol.connector import ConnectorProtocol
from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.registry import make_connector
from penstock.connectors.urls import parse_sink
from penstock.core.errors import RequestError
from tests.connectors.real_host import NAME, hosting
from tests.support.waiting import eventually


def test_everything_that_the_delivery_api_accepts_can_be_configured() -> None:
    options = ConnectorProtocolOptions.model_validate(
        {
            "host": "::1",
            "port": 7200,
            "instance": "mine",
            "cookie_file": "/etc/a b",
            "tls": True,
            "ca": "/ca",
            "cert": "/cert",
            "key": "/key",
            "server_name": "example.org",
            "event_time_unit": "us",
            "vote": "5s",
            "frame_size_max": "1MiB",
        }
    )
    url = (
        "connector://[::1]:7200?instance=mine&cookie_file=/etc/a%20b&tls=1&ca=/ca&cert=/cert&key=/key"
        "&server_name=example.org&event_time_unit=us&vote=5s&frame_size_max=1MiB"
    )
    assert parse_sink(url).options == options


def test_without_a_port_connector_protocol_is_only_a_source() -> None:
    options = ConnectorProtocolOptions()
    assert ConnectorProtocol.capabilities(options).sink is None
    assert ConnectorProtocol.source_name(options, "mine") == "mine"


async def test_programs_connect_to_the_program_server_under_the_name_of_the_connector(tmp_path: Path) -> None:
    async with hosting(tmp_path, "connector-protocol", {}) as hosted:
        await hosted.connected()
        source = AsyncSource(hosted.connector_address, source=NAME)
        source.stream("a stream", lambda after: (Message(n, b"%d" % n) for n in range((after or 0) + 1, 4)))
        running = asyncio.create_task(source.run())
        await eventually(lambda: hosted.values() == [b"1", b"2", b"3"], hosted.values)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("config", [{"ca": "/ca"}, {"tls": True, "key": "/key"}, {"port": 70000}])
def test_invalid_options_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        make_connector("connector-protocol", config)
