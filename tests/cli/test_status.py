"""`penstock status`."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli import status
from penstock.cli.connect import worker_status
from penstock.cli.overview import bucket_line
from penstock.cli.segment import segments_of
from penstock.cli.status import view
from penstock.client.coordinator import BucketNumbers, CoordinatorClient, InputSpec, SinkSpec
from penstock.client.segments import SegmentClient
from penstock.core.errors import Unavailable
from penstock.protocol.api.pipelines import QueryFailure
from penstock.protocol.api.status import Blockage, BucketStatus
from tests.spark.sending import send
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

app = typer.Typer(pretty_exceptions_enable=False)
status.register(app)

PIPELINES = [f"orders-per-region-and-{name}" for name in "abcdefghijklmn"] + ["stopped-pipeline"]


def shown(*options: str) -> str:
    result = CliRunner().invoke(app, [*options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def test_the_line_of_a_bucket_has_its_objects_bytes_and_requests_a_month() -> None:
    bucket = BucketStatus(
        url="s3://bucket/orders",
        worker="host-1",
        lease="held",
        objects=1234,
        bytes=5 << 20,
        log_objects=7,
        cached_bytes=3 << 10,
        requests={"put": 1},
        failures={},
        bytes_read=0,
        bytes_written=0,
        requests_per_second=1.5,
        requests_per_month=3_888_000,
        problem="",
    )
    (line,) = bucket_line(bucket, 200)
    assert str(line) == (
        "journal in s3://bucket/orders · lease held · 1,234 objects, 5.0 MiB · 1.5 requests/s (3.9M a month) · "
        "3.0 KiB cached"
    )
    assert line.style == ""
    assert str(*bucket_line(bucket, 50)) == "journal in s3://bucket/orders · lease held"
    for ill in ({"problem": "no answer"}, {"lease": "late"}):
        (line,) = bucket_line(msgspec.structs.replace(bucket, **ill), 200)
        assert line.style == "yellow"
    assert bucket_line(None, 200) == []


def on_screen(worker: RunningWorker, width: int, height: int, more: Sequence[Blockage] = ()) -> list[str]:
    """What a terminal of this size shows. `more`: blockages beside those of the worker."""
    address = http(worker)
    segments = [*segments_of(address)]
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as printed:
        status = worker_status(address)
        status = msgspec.structs.replace(status, blockages=[*status.blockages, *more])
        console.print(view(address, status, segments, width=width, height=height - 1))
    return printed.get().splitlines()


@pytest.fixture
def fifteen(worker: RunningWorker, tmp_path: Path) -> RunningWorker:
    """15 pipelines, each with a source and a sink of its own; the last one is stopped, with input that waits for it."""
    with CoordinatorClient(http(worker)) as coordinator:
        for number, name in enumerate(PIPELINES):
            send(f"127.0.0.1:{worker.ports['connector']}", f"source-{number}", "north", [b"order"])
            started = coordinator.start(name, {"in": InputSpec([f"source-{number}"])}, ["out"])
            offset = coordinator.initial(name, started.generation, "in")
            coordinator.cut(name, started.generation, "in", offset)  # it runs once it asks for an epoch
            coordinator.bind(name, {"files": SinkSpec("out", f"file:{tmp_path}/{name}")})
        coordinator.heartbeat(name, started.generation, stopped=True)
    return worker


def test_it_shows_sources_and_the_segments_of_programs(worker: RunningWorker) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"])
    with SegmentClient(worker.address) as client:
        client.create("imported")
        with client.appender("imported") as appender:
            appender.append(b"x" * 2000)
    printed = shown("--worker", http(worker))
    assert "shops" in printed
    assert "imported" in printed
    assert "2.0 KiB" in printed


def test_it_shows_whether_a_program_is_connected(worker: RunningWorker) -> None:
    with open_stream(worker.ports["connector"], "shops", "north"):
        assert re.search(r"shops +connected", shown("--worker", http(worker)))
    until(lambda: re.search(r"shops +not connected", shown("--worker", http(worker))))


def test_a_pipeline_that_fails_is_shown_with_the_reason_and_the_next_start(fifteen: RunningWorker) -> None:
    name = PIPELINES[0]
    failure = QueryFailure("127.0.0.1:1 cannot be reached", 3, 1000.0)
    with CoordinatorClient(http(fifteen)) as coordinator:
        generation = next(one.generation for one in coordinator.pipelines() if one.name == name)
        coordinator.heartbeat(name, generation, failed=True, failure=failure)
    printed = " ".join(shown("--worker", http(fifteen), "--all").split())
    assert f"pipeline {name} is FAILING (" in printed
    assert "it has failed 3 times in a row and restarts in 1000 s: 127.0.0.1:1 cannot be reached" in printed


def test_internal_segments_are_shown_only_if_all_is(fifteen: RunningWorker) -> None:
    internal = ("connector/source-0/0", f"pipeline/{PIPELINES[0]}/out", "coordinator/ledger")
    assert not any(name in shown("--worker", http(fifteen)) for name in internal)
    assert all(name in shown("--worker", http(fifteen), "--all") for name in internal)


def test_it_shows_pipelines_and_what_is_wrong_first(worker: RunningWorker) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "shops", "north", [b"order"])
    with CoordinatorClient(http(worker)) as coordinator:
        started = coordinator.start("counts", {"in": InputSpec(["shops"])}, ["out"])
        offset = coordinator.initial("counts", started.generation, "in")
        coordinator.cut("counts", started.generation, "in", offset)
        printed = shown("--worker", http(worker))
        assert "RUNNING" in printed
        assert "nothing is blocked" in printed
        coordinator.heartbeat("counts", started.generation, stopped=True)
        second = shown("--worker", http(worker)).splitlines()[1]
    assert second.startswith("! pipeline counts is STOPPED")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40), (120, 30)])
def test_fifteen_pipelines_fit_a_screen(fifteen: RunningWorker, width: int, height: int) -> None:
    lines = on_screen(fifteen, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if " RUNNING " in line or (" STOPPED " in line and not line.startswith("!"))]
    assert len(rows) == len(PIPELINES)
    assert rows[0].startswith("stopped-pipeline")
    assert "! pipeline stopped-pipeline is STOPPED" in lines[1]


def test_what_does_not_fit_is_counted(fifteen: RunningWorker) -> None:
    lines = on_screen(fifteen, 80, 15)
    assert len(lines) < 15
    assert any(line.startswith("stopped-pipeline") for line in lines)
    assert "… 15 sources: no trouble" in lines
    assert any(line.startswith("…") and line.endswith("more pipelines: running") for line in lines)


def test_it_reports_what_open_windows_wait_for_and_not_that_nothing_is_blocked(worker: RunningWorker) -> None:
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
        open_ones = {"waiting": 2, "first_end": 10_000_000, "next_time": 10_000_000}
        coordinator.report_windows(
            "per-shop", "w", 2, [BucketNumbers(**numbers | open_ones)], generation=started.generation
        )
        coordinator.cut("per-shop", started.generation, "in", offset)  # proves the last one
        printed = shown("--worker", http(worker))
        (line,) = [line for line in printed.splitlines() if "windows open" in line]
        assert line.startswith("per-shop: 2 windows open, waiting for the next event of orders: nothing since ")
        assert line.endswith("; idle_timeout is off")
        assert "nothing is blocked" not in printed
        (told,) = json.loads(shown("--worker", http(worker), "--json"))["pipelines"]
        (same,) = coordinator.status().pipelines
        assert told.keys() == asdict(same).keys()
        assert (told["open_windows"], told["open_windows_end"]) == (2, 10_000_000)
        assert told["open_windows_sources"] == ["orders"]
        coordinator.report_windows("per-shop", "w", 3, [BucketNumbers(**numbers)], generation=started.generation)
        printed = shown("--worker", http(worker))
        assert "windows open" not in printed
        assert "nothing is blocked" in printed


def test_sentences_take_a_third_of_the_screen_at_most(fifteen: RunningWorker) -> None:
    texts = [f"{name}: 2 windows open, waiting for {'x' * 90}" for name in PIPELINES]
    lines = on_screen(fifteen, 80, 24, [Blockage(kind="windows", link="the watermark", text=text) for text in texts])
    assert len(lines) < 24
    assert "… and 12 more: penstock status --all" in lines
    assert sum(" RUNNING " in line for line in lines) > 5
    assert "nothing is blocked" not in lines


def test_json_is_what_the_worker_replies(worker: RunningWorker, tmp_path: Path) -> None:
    found = json.loads(shown("--data", str(tmp_path / "data"), "--json"))
    assert found["ports"] == worker.ports
    assert found["rates"]["pipelines"] == {}


def test_without_a_worker_it_reports_it() -> None:
    with pytest.raises(Unavailable):
        shown("--worker", "127.0.0.1:1")
