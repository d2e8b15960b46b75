"""The RFC's WebSocket example, by its own file: one JSON document per line, out in batches of 1,000 or 1,000 ms."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.application.example_runs import copy_example
from tests.spark.conftest import spark  # noqa: F401  the fixture
from tests.support.ports import free_port
from tests.support.running_application import running_application
from tests.support.waiting import SECONDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINES = 2_500


@pytest.fixture
def url(tmp_path: Path, spark: SparkSession) -> Iterator[str]:  # noqa: F811  the fixture
    port = free_port()
    with running_application(copy_example("ws_lines", tmp_path, {"8888": port}), spark) as application:
        application.until(lambda: application.is_running("passthrough.example"))
        yield f"ws://127.0.0.1:{port}"


async def received(connection: ClientConnection, lines: int) -> list[list[str]]:
    """The messages that hold so many lines together, each as its lines."""
    found: list[list[str]] = []
    while sum(map(len, found)) < lines:
        message = await asyncio.wait_for(connection.recv(), SECONDS_MAX)
        text = message if isinstance(message, str) else message.decode()
        found.append(text.removesuffix("\n").split("\n"))
    return found


async def talk(url: str) -> None:
    async with connect(url, max_size=None) as one, connect(url) as other:
        await one.send('{"n": 1}\n{"n":  2}\nnonsense\n')
        await other.send('{"other": true}\n')
        lines = [line for batch in await received(one, 3) for line in batch]
        assert sorted(lines) == sorted(['{"n": 1}', '{"n":  2}', "nonsense"]), "the same bytes, the bad line too"
        assert lines.index('{"n": 1}') < lines.index('{"n":  2}')
        assert await received(other, 1) == [['{"other": true}']], "each connection gets its own replies"

        sent = [json.dumps({"n": number}) for number in range(LINES)]
        await one.send("\n".join(sent) + "\n")
        batches = await received(one, LINES)
        assert [line for batch in batches for line in batch] == sent
        assert [len(batch) for batch in batches][:2] == [1_000, 1_000], "a batch is full, or a second old"

        began = time.monotonic()
        await one.send('{"alone": true}\n')
        assert await received(one, 1) == [['{"alone": true}']]
        assert time.monotonic() - began >= 0.9, "it has waited for others for a second"


def test_the_rfc_s_web_socket_example_runs_through_spark(url: str) -> None:
    asyncio.run(talk(url))
