"""A whole application by its file: `penstock run` with Spark, two sinks of which one is down, apply and stop."""

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.client.coordinator.client import ApplicationClient
from tests.application.peers import Sender, Taker
from tests.spark.test_run_command import Run
from tests.support.java import need_spark
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.spark

_APPLICATION = """
connector:
  - id: shops
    type: tcp-server
    config: {{port: {port}}}
    codec: json
    interceptors: {{in: [{{type: split}}]}}
  - id: well
    type: tcp-client
    config: {{port: {well}}}
    codec: json
    interceptors: {{out: [{{type: join}}]}}
  - id: ill
    type: tcp-client
    config: {{port: {ill}}}
    codec: json
    interceptors: {{out: [{{type: join}}]}}
    reconnect: {{max: 1s}}
  - id: more
    type: "null"
    codec: json
binding:
  id: orders
  links:
    connector/shops/out: pipeline/system::passthrough/in
    pipeline/system::passthrough/out: [{sinks}]
"""


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    need_spark()


def orders(first: int, last: int) -> list[str]:
    return [f'{{"order":{number}}}' for number in range(first, last + 1)]


def test_while_a_sink_is_down_its_streams_are_blocked_and_everything_arrives_once_afterwards(tmp_path: Path) -> None:
    port, file, data = free_port(), tmp_path / "app.yaml", tmp_path / "data"
    with Taker() as well, Taker(up=False) as ill:

        def write(*sinks: str) -> None:
            file.write_text(_APPLICATION.format(port=port, well=well.port, ill=ill.port, sinks=", ".join(sinks)))

        write("connector/well/in", "connector/ill/in")
        with Run(tmp_path, str(file), "--data", str(data)) as run:
            run.until(lambda: "passthrough.orders" in run.said and (data / "ports.json").exists())
            http = f"127.0.0.1:{_http_port(data)}"
            with Sender(port) as sender, ApplicationClient(http) as client:

                def waiting() -> dict[str, int]:
                    return {one.name: one.blocked_count for one in client.status().connectors}

                sender.send(*orders(1, 100))
                run.until(lambda: waiting()["shops"] == 1)
                assert well.lines == []
                ill.up()
                run.until(lambda: len(ill.lines) >= 100 and len(well.lines) >= 100)
                assert Counter(ill.lines) == Counter(well.lines) == Counter(orders(1, 100))

                write("connector/well/in", "connector/ill/in", "connector/more/in")
                result = CliRunner().invoke(app, ["apply", str(file), "--worker", http])
                assert "started: more" in result.output, result.output
                sender.send(*orders(101, 150))
                run.until(lambda: len(ill.lines) >= 150 and len(well.lines) >= 150)
                assert sender.is_open(), "a connector that does not differ keeps its connections"

                result = CliRunner().invoke(app, ["stop", "--worker", http])
                assert "everything is delivered" in result.output, result.output
                assert ill.lines == well.lines == orders(1, 150)
            assert run.ended() == 0
            assert "all events were delivered" in run.said
            until(lambda: not run.alive())


def _http_port(data: Path) -> int:
    port: int = json.loads((data / "ports.json").read_text())["http"]
    return port
