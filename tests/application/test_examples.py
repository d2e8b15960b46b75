"""The applications in examples/, with Spark and with real clients."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import psycopg
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from paho.mqtt import publish
from pyiceberg.catalog.sql import SqlCatalog

from penstock.client.coordinator import CoordinatorClient
from penstock.connectors.file import read_committed_parts
from penstock.connectors.webhook.signatures import Signature, sign, verify
from penstock.testing.brokers import Mosquitto
from tests.application.example_runs import Example, copy_example
from tests.connectors.brokers import kafka_topics
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.servers import need
from tests.connectors.http_serving import serving as alerts_receiver
from tests.connectors.stores.lakes import DeltaStore, ParquetStore
from tests.spark.conftest import spark  # noqa: F401  the fixture
from tests.spark.test_run_command import EXAMPLES, START_SECONDS_MAX
from tests.support.java import need_spark
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, need_postgres
from tests.support.running_application import RunningApplication, running_application
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ANSWER_SECONDS_MAX = 120


@pytest.fixture(autouse=True, scope="module")
def _spark() -> None:
    need_spark()


class Start(Protocol):
    """Starts an example and waits for one of its pipelines. `replaced`: text of its file, such as ports."""

    def __call__(
        self, name: str, pipeline: str, *, is_awaited: bool = True, replaced: Mapping[str, object] | None = None
    ) -> AbstractContextManager[RunningApplication]: ...


@pytest.fixture
def started(
    tmp_path: Path,
    spark: SparkSession,  # noqa: F811  the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> Start:
    """On the session of all tests: two of the examples have a `penstock run` of their own."""
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def start(
        name: str, pipeline: str, *, is_awaited: bool = True, replaced: Mapping[str, object] | None = None
    ) -> Iterator[RunningApplication]:
        with running_application(copy_example(name, tmp_path, replaced or {}), spark) as application:
            if is_awaited:
                application.until(lambda: application.is_running(pipeline))
            yield application

    return start


def test_an_http_request_gets_the_reply_that_spark_has_made(tmp_path: Path, started: Start) -> None:
    port = free_port()
    with (
        started("http_reply", "sums", replaced={"8080": port}),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client,
    ):
        reply = client.post("/", json={"numbers": [3, 4, 5]})
        assert (reply.status_code, reply.json()) == (200, {"sum": 12.0})
        assert reply.headers["content-type"].startswith("application/json")
        assert client.post("/", json={}).status_code == 422, "the pipeline has set the status"
        bad = client.post("/", content=b"3, 4")
        assert bad.status_code == 400
        assert "`value` is not" in bad.text


def test_orders_over_http_are_summed_in_windows_and_written_to_files(tmp_path: Path) -> None:
    port = free_port()
    with (
        Example("shop", tmp_path, "per-shop", is_awaited=False, replaced={"8080": port}) as example,
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


def test_lines_of_a_directory_s_logs_are_rows_of_a_delta_table(tmp_path: Path, started: Start) -> None:
    logs, table = tmp_path / "logs", DeltaStore(str(tmp_path / "lake" / "logs"))
    logs.mkdir()
    (logs / "a.log").write_text('{"at": "2026-01-31T10:00:00Z", "level": "error", "tags": {"host": "a"}}\n')
    with started("log_lake", "per-day") as example:
        example.until(lambda: len(table.rows()) == 1)
        (logs / "b.log").write_text('{"at": "2026-02-01T10:00:00Z", "level": "info"}\nno line\n')
        example.until(lambda: len(table.rows()) == 2)
    found = sorted((row["day"], row["level"], row["tags"]) for row in table.rows())
    assert found == [("2026-01-31", "error", [("host", "a")]), ("2026-02-01", "info", None)]


def test_csv_files_of_a_directory_are_windows_of_their_own_time(tmp_path: Path, started: Start) -> None:
    history = tmp_path / "history"
    history.mkdir()
    lines = (EXAMPLES / "access_log.csv").read_text()
    (history / "2026-01.csv.gz").write_bytes(gzip.compress(lines.encode()))
    (history / "2026-02.csv").write_text(lines.replace("31/Jan", "01/Feb"))
    with started("csv_backfill", "per-day", is_awaited=False) as example:
        clients = {line.partition(",")[0] for line in lines.splitlines()}
        example.until(lambda: len(_unpacked(tmp_path / "busiest")) == 2 * len(clients))
    rows = _unpacked(tmp_path / "busiest")
    days = {row["window_start"][:10] for row in rows}
    assert (days, sum(row["requests"] for row in rows)) == ({"2026-01-31", "2026-02-01"}, 2 * len(lines.splitlines()))


def _unpacked(folder: Path) -> list[dict[str, Any]]:
    parts = read_committed_parts(folder) if (folder / "state" / "log").exists() else []
    data = b"".join(gzip.decompress(part.path.read_bytes()[: part.size]) for part in parts)
    return [json.loads(line) for line in data.splitlines()]


def test_errors_of_syslog_are_given_to_a_program(tmp_path: Path, started: Start) -> None:
    port, alerts = free_port(), tmp_path / "alerts.txt"
    with started("syslog_alerts", "errors", replaced={"5514": port}) as example:
        with socket.create_connection(("127.0.0.1", port), 10) as sender:
            sender.sendall(
                b"<27>Jan 31 10:00:00 db app[7]: the disk is full\n<30>Jan 31 10:00:00 db app[7]: all is well\n"
            )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"<24>1 2026-01-31T10:00:00Z db app - - - panic", ("127.0.0.1", port))
        example.until(lambda: alerts.exists() and len(alerts.read_text().splitlines()) == 2)
    assert {json.loads(line)["message"] for line in alerts.read_text().splitlines()} == {"the disk is full", "panic"}


def test_means_of_sensors_that_publish_over_mqtt_are_rows_in_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Start
) -> None:
    need(Mosquitto)
    need_postgres()
    database, folder = PostgresServer(), tmp_path / "mosquitto"
    folder.mkdir()
    monkeypatch.setenv("PGHOST", database.socket_folder)
    monkeypatch.setenv("PGUSER", "postgres")
    with closing(psycopg.connect(dbname="postgres", autocommit=True)) as connection:
        connection.execute("CREATE DATABASE sensors")

    def rows() -> list[tuple[str, int, float]]:
        with closing(psycopg.connect(dbname="sensors")) as connection, suppress(psycopg.errors.UndefinedTable):
            found = "SELECT sensor, sum(readings), sum(readings * celsius) FROM readings GROUP BY sensor ORDER BY 1"
            return connection.execute(found).fetchall()
        return []

    try:
        with (
            Mosquitto(folder, free_port=free_port) as broker,
            started("mqtt_sensors", "per-sensor", replaced={"1883": broker.port}) as example,
        ):
            for sensor, celsius in (("kitchen", 20), ("kitchen", 22), ("hall", 18)):
                reading = json.dumps({"sensor": sensor, "celsius": celsius})
                publish.single(f"sensors/{sensor}", reading, qos=1, port=broker.port)
            example.until(lambda: rows() == [("hall", 1, 18.0), ("kitchen", 2, 42.0)])
    finally:
        database.stop()


def test_changes_of_a_postgresql_table_are_rows_of_a_delta_table(
    tmp_path: Path,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    started: Start,
) -> None:
    place, table = postgres_server.socket_folder, DeltaStore(str(tmp_path / "lake" / "orders"))
    monkeypatch.setenv("PGHOST", place)
    monkeypatch.setenv("PGUSER", "postgres")
    with psycopg.connect(host=place, user="postgres", dbname="postgres", autocommit=True) as server:
        server.execute("CREATE DATABASE shop")
    with psycopg.connect(host=place, user="postgres", dbname="shop", autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric)")
        shop.execute("INSERT INTO orders VALUES (1, 'a', 9.5)")
        with started("postgres_changes", "history") as example:
            example.until(lambda: len(table.rows()) == 1)
            shop.execute("UPDATE orders SET amount = 10 WHERE id = 1")
            shop.execute("DELETE FROM orders")
            example.until(lambda: len(table.rows()) == 3)
    found = [(row["op"], row["id"], row["amount"]) for row in sorted(table.rows(), key=lambda row: row["commit_time"])]
    assert found == [("snapshot", 1, 9.5), ("update", 1, 10.0), ("delete", 1, None)]


@pytest.fixture
def payments() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        for topic in ("payments", "large-payments"):
            cluster.topic(topic, 2)
        yield cluster


def test_large_payments_of_a_kafka_topic_are_in_another_one(
    tmp_path: Path, payments: KafkaCluster, started: Start
) -> None:
    _pay(payments, range(-1, 3))
    with started("kafka_to_kafka", "large", replaced=_broker(payments)) as example:
        example.until(lambda: len(_large_payments(payments)) == 3)
    assert sorted(one["id"] for one in _large_payments(payments)) == [0, 1, 2]


@pytest.mark.long
def test_kafka_to_kafka_has_every_result_once_after_the_worker_was_killed(
    tmp_path: Path, payments: KafkaCluster
) -> None:
    for first in (0, 3):
        _pay(payments, range(first, first + 3))
        # Killed at the end. It is not awaited: the second one finds the ports that the first has left.
        with Example("kafka_to_kafka", tmp_path, "large", is_awaited=False, replaced=_broker(payments)) as example:
            example.run.until(lambda: len(_large_payments(payments)) == first + 3)  # noqa: B023  called here
    assert sorted(one["id"] for one in _large_payments(payments)) == [*range(6)]


def _pay(cluster: KafkaCluster, ids: range) -> None:
    """All but those before 0 are large enough."""
    for number in ids:
        payment = f'{{"id": {number}, "currency": "eur", "amount": {1000 + number}}}'
        kafka_topics.write(cluster.brokers, "payments", [payment.encode()], number % 2)


def _broker(cluster: KafkaCluster) -> dict[str, object]:
    return {"9092": cluster.brokers.rpartition(":")[2]}


def _large_payments(cluster: KafkaCluster) -> list[dict[str, Any]]:
    return [json.loads(one.value or b"") for one in kafka_topics.read(cluster.brokers, "large-payments", 2)]


def test_metrics_over_tcp_are_totals_in_parquet_files(tmp_path: Path, started: Start) -> None:
    port, table = free_port(), ParquetStore(str(tmp_path / "metrics"))
    with started("statsd_metrics", "totals", replaced={"8125": port}) as example:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"web.requests:1|c\nweb.requests:2|c|@0.5\nweb.latency:320|ms\nno metric\n")
        example.until(lambda: sum(row["samples"] for row in table.rows()) == 3)
        with CoordinatorClient(example.worker.http) as coordinator:
            assert len(coordinator.dead_letters("totals", "err", limit=2).dead_letters) == 1
    assert sorted((row["kind"], row["total"], row["highest"]) for row in table.rows()) in (
        [("c", 5.0, 2.0), ("ms", 320.0, 320.0)],
        [("c", 1.0, 1.0), ("c", 4.0, 2.0), ("ms", 320.0, 320.0)],  # a window has ended between them
    )


def test_orders_in_avro_are_rows_of_an_iceberg_table(tmp_path: Path, started: Start) -> None:
    port = free_port()
    catalog = f"sqlite:///{tmp_path}/orders.db"
    with (
        started("avro_lake", "checked", replaced={"8080": port}) as example,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client,
        closing(SqlCatalog("default", uri=catalog)) as tables,
    ):
        assert client.post("/", content=b"\2\4de\0\0\0\0\0\0#@").status_code == 202, "as the comment has it"
        assert client.post("/", content=b"\4\4fr" + bytes(8)).status_code == 202, "without a price"
        example.until(lambda: tables.table_exists("shop.orders") and _orders(tables))
        assert _orders(tables) == [{"id": 1, "country": "de", "price": 9.5}]


def _orders(tables: SqlCatalog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tables.load_table("shop.orders").scan().to_arrow().to_pylist()
    return found


def test_a_log_in_order_has_no_late_lines_however_old_it_is_and_in_how_many_epochs_it_is_read(
    tmp_path: Path, started: Start
) -> None:
    log = tmp_path / "examples" / "access_log.csv"
    log.parent.mkdir()
    log.write_text("client,time,request,status\n" + (EXAMPLES / "access_log.csv").read_text())
    small_epochs = {
        "path: examples/access_log.csv": "path: examples/access_log.csv, chunk: 256",
        "spark: access_log.py:per_hour": "spark: access_log.py:per_hour\n    max_rows_per_epoch: 6",
    }
    with started("access_log", "per-hour", is_awaited=False, replaced=small_epochs) as example:
        folder = tmp_path / "requests_per_hour"
        example.until(lambda: len(_written(folder)) == 24)  # the source ends with the file, and so does its last window
        rows = _written(folder)
        assert sorted(row["window_start"] for row in rows) == [f"2026-01-31T{hour:02}:00:00.000Z" for hour in range(24)]
        assert {(row["requests"], row["pane"]) for row in rows} == {(1, "on_time")}
        assert sum(row["errors"] for row in rows) == 3
        with CoordinatorClient(example.worker.http) as coordinator:
            assert coordinator.pipelines()[0].planned >= 4
            assert not coordinator.dead_letters("per-hour", limit=1).dead_letters
        dead = _segment(example.worker, "connector/log.err/0")
        assert [(event["value"], event["reason"]) for event in dead] == [
            (
                "client,time,request,status",
                "no event time: the field \"time\" ('time') is not a text with the format %d/%b/%Y:%H:%M:%S %z",
            )
        ]


def test_errors_in_logs_of_opentelemetry_reach_a_webhook_with_a_valid_signature(tmp_path: Path, started: Start) -> None:
    port = free_port()
    with (
        alerts_receiver() as receiver,
        started("otlp_alerts", "errors", replaced={"4318": port, "9000": receiver.port}) as example,
    ):
        for severity, text in ((SeverityNumber.INFO, "fine"), (SeverityNumber.ERROR, "no disk")):
            send_log(f"http://127.0.0.1:{port}/v1/logs", severity, text)
        example.until(lambda: receiver.bodies)
    (alert,) = map(json.loads, receiver.bodies)
    assert (alert["service"], alert["level"], alert["message"]) == ("shop", "ERROR", "no disk")
    secret = Signature(secrets=("b25seSBmb3IgdGVzdHM=",))
    verify(secret, receiver.asked[0].headers, receiver.bodies[0], time.time())


def test_signed_webhooks_are_stored_before_they_are_answered_and_written_to_files(
    tmp_path: Path, started: Start
) -> None:
    port = free_port()
    with (
        started("webhook_inbox", "who-did-what", replaced={"8080": port}) as example,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client,
    ):
        body = b'{"action": "opened", "repository": {"full_name": "a/b"}, "sender": {"login": "me"}}'
        headers = sign(Signature(style="github", secrets=("only for tests",)), "delivery-1", body, time.time())
        assert client.post("/hooks", content=body).status_code == 401
        assert client.post("/hooks", content=body, headers=headers).status_code == 202
        assert client.post("/hooks", content=body, headers=headers).status_code == 200
        example.until(lambda: _written(tmp_path / "inbox"))
    (row,) = _written(tmp_path / "inbox")
    assert (row["repository"], row["who"], row["what"]) == ("a/b", "me", "opened")


def send_log(endpoint: str, severity: SeverityNumber, text: str) -> None:
    """With OpenTelemetry's SDK."""
    provider = LoggerProvider(Resource({"service.name": "shop"}))
    provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(endpoint, timeout=ANSWER_SECONDS_MAX)))
    record = LogRecord(
        timestamp=time.time_ns(), severity_number=severity, severity_text=severity.name, body=text, attributes={"n": 1}
    )
    provider.get_logger("test").emit(record)
    provider.shutdown()


def _segment(worker: RunningWorker, name: str) -> list[dict[str, Any]]:
    """As a user sees it on the command line."""
    command = [sys.executable, "-m", "penstock", "segment", "cat", name, "--full", "--worker", worker.http]
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
