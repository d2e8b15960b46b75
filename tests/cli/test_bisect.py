"""`penstock pipeline bisect` and `penstock dead-letters bury` as a person uses them, with a driver that is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.cli import bisect as bisect_command
from penstock.cli.app import app
from penstock.cli.bisect import _interrupts, _pipeline
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import PipelineError, RequestError
from penstock.spark.run.bisection import Failing
from penstock.spark.run.failures import Failure
from penstock.spark.run.trial import EpochEvents
from tests.spark.sending import outputs, send
from tests.support.java import need_java
from tests.support.running_worker import RunningWorker

COUNT = 60
POISON = 41
SECONDS_MAX = 240
FILE = f"""
import json
import os
import signal
from pathlib import Path

from pyspark.sql.functions import udf
from pyspark.sql.types import IntegerType

from penstock.spark import pipeline

DRIVER = os.getpid()
KILLED = Path(__file__).with_name("killed")


def doubled(value):
    number = json.loads(value)["n"]
    if number == {COUNT - 1} and KILLED.with_name("kill").exists() and not KILLED.exists():
        KILLED.touch()
        os.kill(DRIVER, signal.SIGKILL)
    return 2 * int(number)


@pipeline
def orders(shop):
    return shop.select(udf(doubled, IntegerType())("value").alias("twice"))
"""


APPLICATION = """
connector:
  - {id: shop, type: metronome, config: {interval: 1s}, codec: json}
  - {id: nowhere, type: "null", codec: json}
pipeline:
  - {id: orders, spark: shop.py:orders}
binding:
  id: b
  links:
    connector/shop/out: pipeline/orders/in
    pipeline/orders/out: connector/nowhere/in
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "shop.py"
    made.write_text(FILE)
    return made


def address(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def penstock(worker: RunningWorker, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments, "--worker", address(worker), "--master", "local[2]"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def plan(worker: RunningWorker, client: CoordinatorClient) -> list[bytes]:
    """An epoch that is planned and not committed, as one that fails leaves it."""
    values = [b'{"n": "x"}' if n == POISON else b'{"n": %d}' % n for n in range(COUNT)]
    send(f"127.0.0.1:{worker.ports['connector']}", "shop", "till", values, key=b"k")
    run = client.start("orders", {"shop": InputSpec(["shop"])}, ["out"])
    client.cut("orders", run.generation, "shop", client.initial("orders", run.generation, "shop"), wait_ms=5000)
    client.heartbeat("orders", run.generation, failed=True)
    return values


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_poison_is_found_and_buried_and_everything_leaves_once_although_the_driver_is_killed(
    worker: RunningWorker, client: CoordinatorClient, file: Path
) -> None:
    need_java()
    values = plan(worker, client)
    done = penstock(worker, file.parent, "pipeline", "bisect", "orders", "shop.py", "--bury", "--json")
    assert done.returncode == 0, done.stderr
    found, *report = done.stdout.splitlines()
    (one,) = json.loads(found)
    assert (base64.b64decode(one["value"]), one["message_id"], one["stream"]) == (values[POISON], POISON + 1, "till")
    assert "ValueError: invalid literal for int() with base 10: 'x'" in one["error"]
    assert report[0] == "buried 1 event of orders"
    (buried,) = client.buried("orders")
    assert (buried.segment, buried.offset) == (one["segment"], one["offset"])

    run = ["run", "shop.py", "--available-now", "--checkpoint", str(file.parent / "checkpoints")]
    file.with_name("kill").touch()
    killed = penstock(worker, file.parent, *run)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert outputs(worker.address, "orders") == []
    assert penstock(worker, file.parent, *run).returncode == 0
    twice = [json.loads(event.payload)["twice"] for event in outputs(worker.address, "orders")]
    assert twice == [2 * n for n in range(COUNT) if n != POISON]
    (dead_letter,) = outputs(worker.address, "orders", "err")
    assert (dead_letter.payload, dead_letter.key, dead_letter.event_id) == (values[POISON], b"k", POISON + 1)
    assert dead_letter.metadata["reason"].startswith("buried by an operator: ValueError: invalid literal for int()")
    assert (dead_letter.metadata["segment"], dead_letter.metadata["offset"]) == (one["segment"], one["offset"])


def test_the_function_of_an_application_is_found_in_its_file(tmp_path: Path, file: Path) -> None:
    application = tmp_path / "app.yaml"
    application.write_text(APPLICATION)
    found = _pipeline("orders", application, "")
    assert (found.name, dict(found.inputs)) == ("orders", {"in": ("shop",)})
    with pytest.raises(RequestError, match="has no pipeline 'others'"):
        _pipeline("others", application, "")
    assert _pipeline("orders", file, "").inputs == {"shop": ("shop",)}
    with pytest.raises(RequestError, match="pipeline 'others' not found"):
        _pipeline("others", file, "")


def test_the_function_of_the_deployed_application_needs_no_file(worker: RunningWorker, file: Path) -> None:
    application = file.with_name("app.yaml")
    application.write_text(APPLICATION)
    deployment = load(application, KnownTypes(), os.environ, leaves_unset=True).deployment
    with ApplicationClient(address(worker), 5) as client:
        client.apply(deployment)
    found = _pipeline("orders", None, address(worker))
    assert (found.name, dict(found.inputs)) == ("orders", {"in": ("shop",)})
    assert found.function is not None


def test_ctrl_c_ends_the_search_where_it_can_be_ended_and_at_once_the_second_time() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _interrupts() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def bisect(worker: RunningWorker, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "bisect", *arguments, "--worker", address(worker)])


class Terminal:
    """What `bisect` takes for the module `sys`."""

    def __init__(self, *, is_there: bool) -> None:
        self.stdin = self
        self.isatty = lambda: is_there


@pytest.fixture
def searched(worker: RunningWorker, client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """The event that is found, without Spark. Returns its place."""
    failing = Failing(POISON, POISON + 1, Failure("  File shop.py\nValueError: 'x'"))
    monkeypatch.setattr(bisect_command, "_spark", lambda *_: nullcontext())
    monkeypatch.setattr(bisect_command, "_search", lambda *_: ([failing], False))
    plan(worker, client)
    return str(EpochEvents.read(address(worker), client.batch("orders"), []).place(POISON))


@pytest.mark.parametrize(("answer", "buries"), [("y", True), ("n", False)])
def test_on_a_terminal_it_asks_before_it_buries(
    worker: RunningWorker,
    client: CoordinatorClient,
    file: Path,
    searched: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    buries: bool,
) -> None:
    monkeypatch.setattr(bisect_command, "sys", Terminal(is_there=True))
    result = CliRunner().invoke(
        app, ["pipeline", "bisect", "orders", str(file), "--worker", address(worker)], input=f"{answer}\n"
    )
    assert result.exit_code == 0, result.output
    assert f"all other events pass ({COUNT - 1})\nBury 1 event of orders? [y/N]: {answer}" in result.stdout
    assert ("buried 1 event of orders" in result.stdout) is buries
    assert [f"{one.segment}@{one.offset}" for one in client.buried("orders")] == ([searched] if buries else [])


def test_elsewhere_it_prints_the_command_that_buries(
    worker: RunningWorker, client: CoordinatorClient, file: Path, searched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect_command, "sys", Terminal(is_there=False))
    result = bisect(worker, "orders", str(file))
    assert result.exit_code == 0, result.output
    said = f"To bury: penstock dead-letters bury orders --at {searched}"
    assert result.stdout.splitlines()[-1] == said
    assert client.buried("orders") == []
    command = said.partition(": penstock ")[2].split()
    assert CliRunner().invoke(app, [*command, "--worker", address(worker)]).exit_code == 0
    assert [f"{one.segment}@{one.offset}" for one in client.buried("orders")] == [searched]


def test_what_cannot_be_searched_is_refused_before_spark_is_started(
    worker: RunningWorker, client: CoordinatorClient, file: Path
) -> None:
    def refusal(*arguments: str) -> str:
        result = bisect(worker, *arguments)
        assert isinstance(result.exception, RequestError), result.output
        return str(result.exception)

    assert refusal("orders", str(file)) == "pipeline 'orders' not found"
    plan(worker, client)
    assert refusal("orders") == "the application that is deployed has no pipeline 'orders'"
    file.rename(file.with_name("other.py"))
    assert refusal("orders", str(file)) == f"file {file} not found"
    generation = client.pipelines()[0].generation
    client.merge("orders", 0, [], generation=generation)
    result = bisect(worker, "orders", str(file))
    assert isinstance(result.exception, PipelineError)
    assert str(result.exception) == "orders has no epoch that is planned and not committed: its last one is 0"
