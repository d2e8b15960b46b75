"""Sessions in tables that the sinks have created: one row for each session, also after sessions were merged."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock import windows
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.spark import pipeline
from tests.spark.test_run_sinks import committed
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import SECONDS_MAX
from tests.windows.spark.running import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


OPTIONS = "table=sessions&upsert=person,window_start,window_end&create=true"
WANTED = "SELECT person, clicks, revision FROM sessions ORDER BY person"


@pipeline(max_rows_per_epoch=1)
def sessions(sales: DataFrame) -> DataFrame:
    clicks = sales.selectExpr("event_time", "segment", "offset", "get_json_object(string(value), '$.person') person")
    return windows.aggregate(
        clicks,
        windows.session("10 seconds"),
        keys=["person"],
        allowed_lateness="1 hour",
        buckets=1,
        clicks=windows.count(),
    )


CLICKS = [
    (1_000, "ann"),
    (20_000, "ann"),
    (100_000, "bob"),  # fires both sessions of ann
    (200_000, "cid"),
    (10_500, "ann"),  # less than the gap after the first session and before the second: merges them
    (25_000, "ann"),  # extends it
]


def test_sessions_that_are_merged_late_leave_one_row(
    bench: Bench,
    client: CoordinatorClient,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PGHOST", postgres_server.socket_folder)
    tables = {
        "sqlite": f"sqlite:{tmp_path}/sessions.db?format=json&{OPTIONS}",
        "postgres": f"postgresql://postgres@/postgres?{OPTIONS}",
    }
    # The worker removes output that all sinks have; the file sink keeps every pane.
    urls = {**tables, "file": f"file:{tmp_path}/panes"}
    bench.send(*((at, {"person": person}) for at, person in CLICKS))
    bench.run(replace(sessions, sinks={name: SinkSpec("out", url) for name, url in urls.items()}))
    assert found(client, postgres_server, tmp_path) == [[("ann", 4, 2), ("bob", 1, 0)]] * 2
    panes = [json.loads(line) for line in committed(tmp_path / "panes").splitlines()]
    shown = [(pane["person"], pane["clicks"], len(pane["replaces"])) for pane in panes]
    assert sorted(shown) == [("ann", 1, 0), ("ann", 1, 0), ("ann", 3, 2), ("ann", 4, 1), ("bob", 1, 0)]
    for name in tables:
        assert client.ddl("sessions", name).statements == []


def found(client: CoordinatorClient, server: PostgresServer, folder: Path) -> list[list[Any]]:
    """The rows of each table, once everything is delivered and committed."""
    deadline = time.monotonic() + SECONDS_MAX
    while any(one.lacking or one.state != "READY" for one in client.sinks()):
        assert time.monotonic() < deadline, [one.reason for one in client.sinks()]
        time.sleep(0.02)
    database = sqlite3.connect(folder / "sessions.db")
    with psycopg.connect(host=server.socket_folder, user="postgres", dbname="postgres") as connection:
        readers: list[Callable[[str], Any]] = [database.execute, connection.execute]
        tables = [read(WANTED).fetchall() for read in readers]
    database.close()
    return tables
