"""What is pickled with the code of tasks brings the driver's token to executors, and to nobody else."""

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.client.coordinator import CoordinatorClient, Range
from penstock.client.credentials import PORTS_FORMAT, accept_port, accept_token, accept_worker, read_token
from penstock.core.address import Address
from penstock.core.errors import ProtocolError, Unavailable
from penstock.spark import carried
from penstock.spark.carried import Carried, OtherVersion, advertised_address, shown
from penstock.spark.pipeline_context import PipelineContext
from penstock.spark.python_worker import hinted
from penstock.spark.sink.writer import SinkOptions
from penstock.spark.source.fused import as_option
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import PlacedRange, SegmentRanges, placed, split_ranges
from tests.spark.sending import send
from tests.support.ports import free_port
from tests.support.shard_process import ShardProcess, ShardProcesses
from tests.support.tokens import TOKEN

CLUSTER = {"worker": "127.0.0.1:7102", "advertisedWorker": "worker.example.com:7102"}

ON_EXECUTOR = """
import pickle, sys
from penstock.client.credentials import read_token
from penstock.core.address import Address
pickle.load(sys.stdin.buffer)
print([read_token(Address(host, 7101)) for host in ("worker.example.com", "other.example.com")])
"""

READING = """
import pickle, sys
from penstock.spark.source.arrow import read_partition
batches = read_partition(*pickle.load(sys.stdin.buffer))
print([row for batch in batches for row in zip(*batch.to_pydict().values())])
"""


def on_executor(pickled: bytes, script: str = ON_EXECUTOR, cwd: Path | None = None, **environment: str) -> str:
    """What a process that has no token of its own prints: by default, the tokens for the worker's host and for another
    one.
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickled,
        capture_output=True,
        check=True,
        cwd=cwd,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
    )
    return done.stdout.decode().strip()


@pytest.mark.process
def test_readers_writers_and_operators_bring_the_token_for_the_workers_that_are_named_alone() -> None:
    source = SourceOptions.parse({**CLUSTER, "source": "lines"})
    sink = SinkOptions.parse({**CLUSTER, "pipeline": "count"})
    operator = PipelineContext({**CLUSTER, "source": "lines", "pipeline": "count"}).origin()
    assert on_executor(pickle.dumps((source, sink, operator))) == str([TOKEN, ""])
    both = SourceOptions.parse({**CLUSTER, "advertisedWorker": "worker.example.com,other.example.com", "source": "a"})
    assert on_executor(pickle.dumps(both)) == str([TOKEN, TOKEN])


@pytest.mark.process
def test_a_task_reads_at_every_machine_of_the_cluster_with_the_token_that_it_brings(tmp_path: Path) -> None:
    hosts = {1: "127.0.0.2"}
    with ShardProcesses(tmp_path, {"a": 0, "b": 1}, hosts, TOKEN) as (home, other):
        send(other.connector, "b", "s", [b"one", b"two"])
        nowhere = f"127.0.0.3:{free_port()}"
        loads = [
            reading(home.http),  # the source is on another machine
            reading(home.http, moved_from=nowhere),  # which is not the one where it was planned
            reading(f"{nowhere},{other.http}"),  # one of the machines that are named is lost
        ]
        found = [on_executor(pickle.dumps(load), READING) for load in loads]
        here = pickle.dumps(reading(home.http, is_here=True))
        own_data(tmp_path, home)
        found.append(on_executor(here, READING, tmp_path))  # next to the data of one worker, without a Spark cluster
    assert found == [str([("s", b"one"), ("s", b"two")])] * len(found)


def own_data(folder: Path, worker: ShardProcess) -> None:
    """What a worker on ./penstock-data leaves for commands beside it."""
    (folder / "penstock-data").mkdir()
    (folder / "penstock-data" / "token").write_text(TOKEN)
    ports = {name: Address.parse(getattr(worker, name)).port for name in ("connector", "segment", "http")}
    (folder / "penstock-data" / "ports.json").write_text(json.dumps({"format": PORTS_FORMAT, "id": "w", **ports}))


def reading(
    worker: str, moved_from: str = "", *, is_here: bool = False
) -> tuple[SourceOptions, tuple[str, ...], SegmentRanges]:
    """A task, as the driver plans it. `is_here`: it runs where the driver does."""
    advertised = {} if is_here else {"advertisedWorker": worker}
    options = SourceOptions.parse({"worker": worker, "source": "b", **advertised})
    with CoordinatorClient(worker) as coordinator:
        ranges = [Range(segment, 0, end) for segment, end in coordinator.resolve(["b"], "latest").items() if end]
        (task,) = split_ranges(coordinator, options, ranges)
    if moved_from:
        task = SegmentRanges(tuple(PlacedRange(moved_from, one.piece) for one in task.placed))
    return options, ("stream", "value"), task


@pytest.mark.process
def test_a_token_file_of_the_executor_takes_precedence(tmp_path: Any) -> None:
    own = tmp_path / "token"
    own.write_text("mine\n")
    pickled = pickle.dumps(SourceOptions.parse({**CLUSTER, "source": "lines"}))
    assert on_executor(pickled, PENSTOCK_TOKEN_FILE=str(own)) == str(["mine", "mine"])


def test_no_token_is_pickled_where_executors_have_a_file_or_tasks_run_here() -> None:
    for given in ({**CLUSTER, "carriesToken": "false"}, {"worker": CLUSTER["worker"]}):
        source = SourceOptions.parse({**given, "source": "lines"})
        sink = SinkOptions.parse({**given, "pipeline": "count"})
        assert TOKEN.encode() not in pickle.dumps((source, sink))
    assert TOKEN.encode() in pickle.dumps(SourceOptions.parse({**CLUSTER, "source": "lines"}))


@dataclass
class Operator:
    origin: Any


def test_an_operator_that_becomes_an_option_has_no_token() -> None:
    origin = PipelineContext({**CLUSTER, "source": "lines", "pipeline": "count"}).origin()
    with shown():
        pickled = pickle.dumps(origin)
    assert TOKEN.encode() not in pickled
    assert TOKEN.encode() in pickle.dumps(origin)
    from base64 import b64decode

    operator: Any = Operator(origin)
    assert TOKEN.encode() not in b64decode(as_option(operator))


def test_nothing_that_python_prints_has_the_token() -> None:
    assert TOKEN not in repr(SourceOptions.parse({**CLUSTER, "source": "lines"}))


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives in this process is forgotten afterwards."""
    monkeypatch.setattr(carried, "_arrived_at", None)
    monkeypatch.setattr("penstock.client.credentials._accepted", {})


@pytest.mark.usefixtures("executor")
def test_another_version_of_penstock_is_refused_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(Carried(worker="a:1", advertised="b:1"))
    monkeypatch.setattr(carried, "_version", lambda: "0.0.1")
    with pytest.raises(OtherVersion, match=r"has Penstock 0\.0\.1, the driver has "):
        pickle.loads(pickled)


@pytest.mark.usefixtures("executor")
def test_a_worker_that_is_named_by_another_one_gets_its_token_unless_only_that_one_has_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    accept_token("a.example.com", "secret")
    with pytest.raises(ProtocolError, match=r"names http://b\.example\.com:1, which does not use TLS"):
        accept_worker("http://b.example.com:1", "https://a.example.com:1")
    assert read_token(Address("b.example.com", 1)) == ""
    accept_worker("https://b.example.com:1", "https://lost.example.com:1,https://a.example.com:1")
    accept_worker("https://d.example.com:1", "https://c.example.com:1")
    tokens = [read_token(Address(f"{name}.example.com", 1)) for name in "abcd"]
    assert tokens == ["secret", "secret", "", ""]


@pytest.mark.usefixtures("executor")
def test_the_token_of_the_worker_beside_us_is_for_the_ports_that_it_names_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "penstock-data"
    folder.mkdir()
    (folder / "token").write_text("own")
    (folder / "ports.json").write_text(
        json.dumps({"format": PORTS_FORMAT, "id": "w", "connector": 1, "segment": 2, "http": 3})
    )
    accept_worker("127.0.0.1:5", "127.0.0.1:4")
    accept_worker("127.0.0.1:6", "127.0.0.1:3")
    accept_port(Address("127.0.0.1", 7), Address("127.0.0.1", 6))
    accept_port(Address("127.0.0.1", 9), Address("127.0.0.1", 8))
    assert [read_token(Address("127.0.0.1", port)) for port in range(2, 10)] == [
        "own",
        "own",
        "",
        "",
        "own",
        "own",
        "",
        "",
    ]


@pytest.mark.usefixtures("executor")
def test_a_task_that_cannot_connect_says_where_it_ran_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def note() -> str:
        with pytest.raises(Unavailable) as caught, hinted():
            raise Unavailable("the worker cannot be reached")
        return "".join(caught.value.__notes__)

    assert note() == Unavailable.hint
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    pickle.loads(pickle.dumps(Carried("127.0.0.1:7102", "10.0.0.7:7102")))
    assert "where the worker's address is 10.0.0.7:7102" in note()
    assert "--advertised-worker HOST:PORT" in note()
    assert read_token(Address("10.0.0.7", 7101)) == "", "there was none to carry"


def test_each_range_has_the_address_that_its_reader_connects_to() -> None:
    pieces = [Range("connector/lines/0", 0, 10), Range("connector/lines/1", 5, 7)]
    here = SourceOptions.parse({"worker": "127.0.0.1:7102", "source": "lines"})
    elsewhere = SourceOptions.parse({**CLUSTER, "source": "lines"})
    assert placed(here, pieces) == tuple(PlacedRange("127.0.0.1:7102", piece) for piece in pieces)
    assert {one.worker for one in placed(elsewhere, pieces)} == {"worker.example.com:7102"}
    assert SegmentRanges(placed(elsewhere, pieces)).ranges == tuple(pieces)


def test_an_advertised_address_says_whether_it_speaks_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert advertised_address("worker.example.com") == "worker.example.com:7102"
    monkeypatch.setenv("PENSTOCK_TLS_CA", "ca.pem")
    assert advertised_address("worker.example.com:1") == "https://worker.example.com:1"
