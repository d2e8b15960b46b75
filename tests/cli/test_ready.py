"""What `penstock run` reports when pipelines accept events."""

from collections.abc import Sequence
from typing import Any

from penstock.cli.spark_run import ready_lines
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import ConnectorStatus


def connector(name: str, type_name: str, reached_at: str = "") -> ConnectorStatus:
    return ConnectorStatus(
        name=name, id=name, instance="", type=type_name, state="connected", reason="", reached_at=reached_at
    )


WEB = connector("web", "http-server", "POST to http://127.0.0.1:8080/")
TCP = connector("orders", "tcp-server", "tcp 127.0.0.1:9000")
FILE = connector("old", "file")
PROGRAMS = connector("sensors", "connector-protocol")


def status(name: str, *sources: str, state: Any = "RUNNING") -> PipelineStatus:
    epochs: dict[str, Any] = dict.fromkeys(("planned", "merged", "delivered", "complete", "proved"), 0)
    return PipelineStatus(
        name=name,
        state=state,
        incarnation=1,
        generation=1,
        lag_bytes=0,
        undelivered_bytes=0,
        watermark=None,
        blocked=None,
        heartbeat_age_seconds=0.0,
        inputs={"in": sources},
        **epochs,
    )


def ready(*known: PipelineStatus, connectors: Sequence[ConnectorStatus] = (WEB, TCP, FILE, PROGRAMS)) -> list[str]:
    return list(ready_lines([one.name for one in known], known, connectors))


def test_for_http_sources_it_reports_where_to_send_requests() -> None:
    assert ready(status("per-shop", "web")) == ["ready: POST to http://127.0.0.1:8080/"]


def test_for_other_sources_it_reports_what_a_pipeline_reads_and_from_where() -> None:
    assert ready(status("per-shop", "orders", "old")) == [
        "ready: per-shop reads orders (tcp 127.0.0.1:9000), old (file)"
    ]
    assert ready(status("count_words", "lines"), connectors=()) == [
        "ready: count_words reads lines (penstock send --source lines)"
    ]
    assert ready(status("p", "sensors")) == ["ready: p reads sensors (penstock send --source sensors)"]
    assert ready(status("q", "pipeline:p/out")) == ["ready: q reads pipeline:p/out"]


def test_a_pipeline_that_is_starting_is_not_ready() -> None:
    assert ready(status("p", "orders", state="STARTING")) == []


def test_requests_wait_for_all_pipelines_that_read_them() -> None:
    assert ready(status("p", "web"), status("q", "web", state="STARTING")) == []
    assert ready(status("p", "web"), status("q", "web")) == ["ready: POST to http://127.0.0.1:8080/"]


def test_pipelines_of_others_are_not_mentioned() -> None:
    known = [status("ours", "orders"), status("theirs", "old")]
    assert list(ready_lines(["ours"], known, [TCP, FILE])) == ["ready: ours reads orders (tcp 127.0.0.1:9000)"]
