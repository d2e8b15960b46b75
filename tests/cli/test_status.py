"""`penstock status`."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import status
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.core.errors import Unavailable
from tests.open_stream import open_stream
from tests.running_worker import RunningWorker
from tests.spark.sending import send

app = typer.Typer(pretty_exceptions_enable=False)
status.register(app)


def shown(*options: str) -> str:
    result = CliRunner().invoke(app, [*options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def test_it_shows_connectors_and_segments(worker: RunningWorker) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"])
    with SegmentClient(worker.address) as client:
        client.create("imported")
        with client.appender("imported") as appender:
            appender.append(b"x" * 2000)
    printed = shown("--worker", http(worker))
    assert "shops" in printed
    assert "imported" in printed
    assert "2.0 KiB" in printed
    assert "connector/shops" not in printed, "its segments are shown as the connector"


def test_it_shows_pipelines_and_who_holds_the_chain(worker: RunningWorker) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"])
    with CoordinatorClient(http(worker)) as coordinator:
        started = coordinator.start("counts", {"in": InputSpec(["shops"])}, ["out"])
        offset = coordinator.initial("counts", started.generation, "in")
        coordinator.cut("counts", started.generation, "in", offset)
        printed = shown("--worker", http(worker))
        assert "counts" in printed
        assert "RUNNING" in printed
        coordinator.heartbeat("counts", started.generation, stopped=True)
        printed = shown("--worker", http(worker))
    assert "STOPPED" in printed
    assert "who holds the chain" in printed


def test_it_says_what_open_windows_wait_for_and_not_that_nobody_holds_anything(worker: RunningWorker) -> None:
    with (
        CoordinatorClient(http(worker)) as coordinator,
        open_stream(worker.ports["connector"], "orders", "till") as till,
    ):
        started = coordinator.start("per-shop", {"in": InputSpec(["orders"])}, ["out"])
        offset = coordinator.initial("per-shop", started.generation, "in")
        till.send(1, 5000)
        for batch in range(2):  # that the stream has begun, and its event
            cut = coordinator.cut("per-shop", started.generation, "in", offset, wait_ms=20_000, state="reported")
            offset = cut.offset
            coordinator.merge("per-shop", batch, [], generation=started.generation)
        numbers = dict.fromkeys(("bucket", "open_windows", "keys", "state_bytes", "late_kept", "late_dropped"), 0)
        open_ones = numbers | {"waiting": 2, "first_end": 10_000_000, "next_time": 10_000_000}
        coordinator.report_windows("per-shop", "w", 2, [open_ones], generation=started.generation)
        coordinator.cut("per-shop", started.generation, "in", offset)  # proves the last one
        printed = shown("--worker", http(worker))
        (line,) = [line for line in printed.splitlines() if "windows open" in line]
        assert line.startswith("per-shop: 2 windows open, waiting for the next event of orders: nothing since ")
        assert line.endswith("; idle_timeout is off")
        assert "nobody holds the chain" not in printed
        (told,) = json.loads(shown("--worker", http(worker), "--json"))["pipelines"]
        assert (told["open_windows"], told["open_windows_end"]) == (2, 10_000_000)
        assert told["open_windows_sources"] == ["orders"]
        coordinator.report_windows("per-shop", "w", 3, [numbers], generation=started.generation)
        printed = shown("--worker", http(worker))
        assert "windows open" not in printed
        assert "nobody holds the chain" in printed


def test_json_is_what_the_worker_says(worker: RunningWorker, tmp_path: Path) -> None:
    found = json.loads(shown("--data", str(tmp_path / "data"), "--json"))
    assert found["ports"] == worker.ports


def test_without_a_worker_it_says_so() -> None:
    with pytest.raises(Unavailable):
        shown("--worker", "127.0.0.1:1")
