"""The applications in examples/, with Spark and with real clients."""

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client.coordinator import CoordinatorClient
from tests.application.example_runs import Example, need_spark
from tests.connectors.brokers import kafka_topics
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.stores.lakes import DeltaStore
from tests.spark.test_run_command import EXAMPLES, START_SECONDS_MAX, Run, ports
from tests.support.ports import free_port

pytestmark = pytest.mark.spark

ANSWER_SECONDS_MAX = 120


@pytest.fixture(autouse=True, scope="module")
def _spark() -> None:
    need_spark()


def test_an_http_request_gets_the_reply_that_spark_has_made(tmp_path: Path) -> None:
    port = free_port()
    with (
        Example("http_reply", tmp_path, "sums", port_8080=port) as example,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client,
    ):
        reply = client.post("/", json={"numbers": [3, 4, 5]})
        assert (reply.status_code, reply.json()) == (200, {"sum": 12.0})
        assert reply.headers["content-type"].startswith("application/json")
        assert client.post("/", json={}).status_code == 422, "the pipeline has set the status"
        bad = client.post("/", content=b"3, 4")
        assert bad.status_code == 400
        assert "`value` is not" in bad.text
        assert example.interrupt() == 130


def test_orders_over_http_are_summed_in_windows_and_written_to_files(tmp_path: Path) -> None:
    port = free_port()
    with (
        Example("shop", tmp_path, "per-shop", is_awaited=False, port_8080=port) as example,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client,
        CoordinatorClient(example.worker) as coordinator,
    ):
        lines = b'{"shop": "a", "amount": 1.5}\n{"shop": "a", "amount": 2}\nno order\n{"shop": "b", "amount": 7}\n'
        assert _posted_early(client, lines).status_code == 202
        example.run.until(lambda: f"ready: POST to http://127.0.0.1:{port}/" in example.run.said)
        assert len(coordinator.dead_letters("per-shop", "err", limit=2).dead_letters) == 1
        folder = tmp_path / "turnover"
        # Nothing else comes, and nobody ends the source: the windows close by the worker's clock.
        example.run.until(lambda: sum(row["orders"] for row in _written(folder)) == 3)
        totals = {shop: sum(row["total"] for row in _written(folder) if row["shop"] == shop) for shop in "ab"}
        assert totals == {"a": 3.5, "b": 7.0}
        example.run.until(lambda: coordinator.pipelines()[0].open_windows == 0)
        epochs = coordinator.pipelines()[0].planned
        assert client.post("/", content=b'{"shop": "c", "amount": 1}').status_code == 202
        waiting = coordinator.pipelines()[0].open_windows_text()
        assert waiting is None or waiting.startswith("per-shop: 1 window open, "), waiting
        example.run.until(lambda: sum(row["orders"] for row in _written(folder)) == 4)
        assert coordinator.pipelines()[0].planned <= epochs + 6, (
            "an epoch for what came, one for the end: none a second"
        )
        assert example.terminate() == 0, example.run.said
    assert "Traceback" not in example.run.said


def test_lines_of_a_directory_s_logs_are_rows_of_a_delta_table(tmp_path: Path) -> None:
    logs, table = tmp_path / "logs", DeltaStore(str(tmp_path / "lake" / "logs"))
    logs.mkdir()
    (logs / "a.log").write_text('{"at": "2026-01-31T10:00:00Z", "level": "error", "tags": {"host": "a"}}\n')
    with Example("log_lake", tmp_path, "per-day") as example:
        example.run.until(lambda: len(table.rows()) == 1)
        (logs / "b.log").write_text('{"at": "2026-02-01T10:00:00Z", "level": "info"}\nno line\n')
        example.run.until(lambda: len(table.rows()) == 2)
        assert example.interrupt() == 130
    found = sorted((row["day"], row["level"], row["tags"]) for row in table.rows())
    assert found == [("2026-01-31", "error", [("host", "a")]), ("2026-02-01", "info", None)]


def test_kafka_to_kafka_has_every_result_once_after_the_worker_was_killed(tmp_path: Path) -> None:
    with KafkaCluster() as cluster:
        for topic in ("payments", "large-payments"):
            cluster.topic(topic, 2)
        port = int(cluster.brokers.rpartition(":")[2])
        payments = [f'{{"id": {number}, "currency": "eur", "amount": {1000 + number}}}' for number in range(6)]
        for first in (0, 3):
            for number, payment in enumerate(payments[first : first + 3]):
                kafka_topics.write(cluster.brokers, "payments", [payment.encode()], number % 2)
            # Killed at the end. It is not awaited: the second one finds the ports that the first has left.
            with Example("kafka_to_kafka", tmp_path, "large", is_awaited=False, port_9092=port) as example:
                example.run.until(lambda: len(_large_payments(cluster)) == first + 3)  # noqa: B023  called here
        assert sorted(one["id"] for one in _large_payments(cluster)) == [*range(6)]


def _large_payments(cluster: KafkaCluster) -> list[dict[str, Any]]:
    return [json.loads(one.value or b"") for one in kafka_topics.read(cluster.brokers, "large-payments", 2)]


def test_a_log_in_order_has_no_late_lines_however_old_it_is_and_in_how_many_epochs_it_is_read(tmp_path: Path) -> None:
    text = (EXAMPLES / "access_log.yaml").read_text()
    log = tmp_path / "access_log.csv"
    log.write_text("client,time,request,status\n" + (EXAMPLES / "access_log.csv").read_text())
    for found, other in (
        ("path: examples/access_log.csv", f"path: {log}, chunk: 256"),
        ("path: requests_per_hour", f"path: {tmp_path}/requests_per_hour"),
        ("path: late_lines", f"path: {tmp_path}/late_lines"),
        ("spark: access_log.py:per_hour", f"spark: {EXAMPLES}/access_log.py:per_hour\n    max_rows_per_epoch: 6"),
    ):
        assert found in text
        text = text.replace(found, other)
    file = tmp_path / "access_log.yaml"
    file.write_text(text)
    with Run(tmp_path, str(file), "--data", str(tmp_path / "data")) as run:
        run.until(lambda: ports(tmp_path / "data"))
        folder = tmp_path / "requests_per_hour"
        run.until(lambda: len(_written(folder)) == 24)  # the source ends with the file, and so does its last window
        rows = _written(folder)
        assert sorted(row["window_start"] for row in rows) == [f"2026-01-31T{hour:02}:00:00.000Z" for hour in range(24)]
        assert {(row["requests"], row["pane"]) for row in rows} == {(1, "on_time")}
        assert sum(row["errors"] for row in rows) == 3
        with CoordinatorClient(f"127.0.0.1:{ports(tmp_path / 'data')['http']}") as coordinator:
            assert coordinator.pipelines()[0].planned >= 4
            assert not coordinator.dead_letters("per-hour", limit=1).dead_letters
        dead = _segment(tmp_path, "connector/log.err/0")
        assert [(event["value"], event["reason"]) for event in dead] == [
            (
                "client,time,request,status",
                "no event time: the field \"time\" ('time') is not a text with the format %d/%b/%Y:%H:%M:%S %z",
            )
        ]


def _segment(folder: Path, name: str) -> list[dict[str, Any]]:
    """As a user sees it on the command line."""
    command = [sys.executable, "-m", "penstock", "segment", "cat", name, "--full", "--data", str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _posted_early(client: httpx.Client, lines: bytes) -> httpx.Response:
    """Sent before Spark is up: it waits, or is answered with when to retry if that takes too long."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(httpx.ConnectError):  # the worker listens before its connectors do
            answer = client.post("/", content=lines)
            if answer.status_code != 503:
                return answer
            assert re.search(r"per-shop is (starting, ready in about \d+ s|not running)", answer.text), answer.text
            time.sleep(float(answer.headers["retry-after"]))
    raise AssertionError("it was never ready")


@pytest.mark.parametrize("name", ["shop.yaml", "shop.py", "count_words.py"])
def test_the_readme_shows_the_example(name: str) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    block = readme.split(f"\n# examples/{name}\n", 1)[1].split("```", 1)[0]
    assert block in (EXAMPLES / name).read_text().replace("  # noqa: N812  as everybody calls it", "")


def _written(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in sorted(folder.glob("*")) if file.is_file() for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]
