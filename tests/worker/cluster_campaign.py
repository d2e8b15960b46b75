"""`script/test --campaign cluster [--minutes M] [--seed S]`: hosts on SeaweedFS while ten programs send.

Hosts and shard processes are killed, or stopped and woken up when others have their shards; hosts join and are drained;
shards move; the store cannot be reached for a while. Six programs use the SDK, three are raw sockets that know RESTART
with an address, one understands neither that nor MIGRATE. At the end every message of every program is stored once, in
order, up to the last one that was acknowledged.

With `--spark`, a standalone Spark cluster with two workers runs two pipelines over six of the sources, and their sinks
write files. Then an acknowledgement of these sources means that the sinks have the message, which is checked all the
time; at the end the sinks have every message once, with its bytes, and the messages of each stream in order. Programs
send less then: the cluster, Spark and the store share one machine.
"""

import argparse
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

from rich.console import Console

from penstock.connectors.file import read_committed_parts
from penstock.core.errors import PenstockError
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Restart,
    Use,
    announce_window,
    encode,
)
from penstock.testing.seaweedfs import SeaweedFS
from tests.client.source.stored import stored_messages
from tests.spark.test_run_command import Run, is_running
from tests.support.bucket_worker import BucketWorker
from tests.support.spark_cluster import SparkCluster, executor_conf
from tests.support.store_proxy import SLOW_DOWN, StoreProxy, store_proxy
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import EVERY_SECONDS, Sending, sending
from tests.worker.hosts import Hosts, children, kill

ABOUT = "hosts killed, stopped, drained, joined and cut off while ten programs of three kinds send"

SDK_PROGRAMS, RESTART_PROGRAMS, NAIVE_PROGRAMS = 6, 3, 1
STREAMS = 3
HOSTS = 3
SHARDS_EACH = 2
PAUSE_SECONDS = (1.0, 6.0)
ASLEEP_SECONDS = (1.0, 12.0)
"""Shorter and longer than a lease."""
AWAY_SECONDS = (0.5, 8.0)
SPARK_EVERY_SECONDS = 0.2
"""Between two messages of a stream, if Spark runs on the same machine."""

PIPELINES = """
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.spark import pipeline

COLUMNS = ("source", "stream", "message_id", "value")


def rows(*frames):
    texts = (F.col(name).cast("string") for name in ("message_id", "value"))
    row = F.concat_ws(",", "source", "stream", *texts).alias("value")
    return reduce(DataFrame.unionByName, frames).select(row)


@pipeline(columns=COLUMNS)
def left(sdk_0, sdk_1, old_0):
    return rows(sdk_0, sdk_1, old_0)


@pipeline(columns=COLUMNS)
def right(sdk_2, sdk_3, naive_0):
    return rows(sdk_2, sdk_3, naive_0)
"""
SOURCES = ("sdk_0", "sdk_1", "old_0", "sdk_2", "sdk_3", "naive_0")
PIPELINE_NAMES = ("left", "right")
DRIVER_SECONDS_MAX = 600
"""Until a driver has started, or gone on after everything around it was killed, on a busy machine."""

LOG_CHARS = 3000
"""The end of each host's log, which is printed after a failure."""

console = Console(highlight=False)


class RawProgram:
    """Version 0.0.1 on a plain socket, with one stream, as it was before there was MIGRATE. `follows`: it knows that
    RESTART may have an address; otherwise it connects to the seed that it has, again and again.
    """

    def __init__(self, seeds: str, name: str, *, follows: bool, every_seconds: float = EVERY_SECONDS) -> None:
        self.name = name
        self._every_seconds = every_seconds
        self.acknowledged = self.stored = -1
        self.restarts = 0
        self._seeds = [int(one.rpartition(":")[2]) for one in seeds.split(",")]
        self._follows = follows
        self._is_ending = threading.Event()
        self._has_ended = threading.Event()
        self._next = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wait_for_acks()

    def _run(self) -> None:
        number, port = 0, self._seeds[0]
        while not self._has_ended.is_set():
            address = ""
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
                address = self._session(connection)
            number += 1
            port = int(address.rpartition(":")[2]) if address else self._seeds[number % len(self._seeds)]
            time.sleep(0.05)

    def _session(self, connection: socket.socket) -> str:
        """Until the connection ends. Returns the address to which it is sent."""
        connection.settimeout(0.02)
        decoder = Decoder(Use.SOURCE)
        hello = Hello("0.0.1", b"", announce_window(self.name), self.name)
        connection.sendall(encode(hello) + encode(Notify(1, "one")))
        is_open, due = False, 0.0
        while not self._has_ended.is_set():
            for frame in self._received(connection, decoder):
                match frame:
                    case NotifyAck():
                        if not frame.success:
                            return ""
                        stored = -1 if frame.point_of_reference == NOTHING_YET else frame.point_of_reference
                        self._next, is_open = stored + 1, True
                        self.stored = max(self.stored, stored)
                    case Ack():
                        self.acknowledged = max([self.acknowledged, *(last for _, last in frame.acked)])
                    case Restart():
                        self.restarts += 1
                        return frame.address if self._follows else ""
            if is_open and not self._is_ending.is_set() and time.monotonic() >= due:
                connection.sendall(encode(Message(1, self._next, 1000 + self._next, b"", b"%d" % self._next)))
                self._next, due = self._next + 1, time.monotonic() + self._every_seconds
        return ""

    def _received(self, connection: socket.socket, decoder: Decoder) -> Iterator[Frame]:
        try:
            data = connection.recv(65536)
        except TimeoutError:
            return
        if not data:
            raise ConnectionResetError
        yield from decoder.feed(data)

    def wait_for_acks(self, seconds: float = SECONDS_MAX) -> None:
        before = self.acknowledged
        until(lambda: self.acknowledged > before, lambda: f"{self.name} gets no acknowledgement", seconds)

    def end(self) -> None:
        """Nothing more is sent."""
        self._is_ending.set()

    def finish(self, seconds: float = SECONDS_MAX) -> dict[int, int]:
        self.end()
        until(
            lambda: max(self.acknowledged, self.stored) >= self._next - 1,
            lambda: f"{self.name} is not acknowledged: {self.acknowledged} of {self._next - 1}",
            seconds,
        )
        self._has_ended.set()
        self._thread.join(SECONDS_MAX)
        return {1: self.acknowledged}

    def acknowledged_ids(self) -> dict[str, int]:
        return {"one": self.acknowledged}

    def stream_ids(self) -> dict[str, int]:
        return {"one": 1}

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join(SECONDS_MAX)


@contextmanager
def raw_program(seeds: str, name: str, *, follows: bool, every_seconds: float) -> Iterator[RawProgram]:
    made = RawProgram(seeds, name, follows=follows, every_seconds=every_seconds)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Faults:
    """What happens to the cluster. At least one host is never stopped or killed at a time."""

    def __init__(self, hosts: Hosts, proxy: StoreProxy | None, random: Random) -> None:
        self._hosts = hosts
        self._proxy = proxy
        self._random = random
        self._wakers: list[threading.Timer] = []
        self._asleep: set[int] = set()
        self._leaving: set[int] = set()
        """Drained, and soon killed: no longer one of those that are left."""
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        kinds: list[Callable[[], bool]] = [self._kill_host, self._kill_shard, self._stop_host, self._stop_shard]
        kinds += [self._move, self._rebalance, self._drain, self._cut_off, self._join]
        kind = self._random.choice(kinds)
        if kind():
            self.done[kind.__name__.strip("_")] += 1

    def end(self) -> None:
        """Everybody is awake, and the store can be reached."""
        for timer in self._wakers:
            timer.join()

    # Each returns whether it could be done.

    def _awake(self) -> list[BucketWorker]:
        return [one for one in self._hosts.live() if one.pid not in self._asleep | self._leaving]

    def _kill_host(self) -> bool:
        awake = self._awake()
        if len(awake) < 2:
            return False
        self._random.choice(awake).kill()
        return True

    def _join(self) -> bool:
        """On a machine that was lost, with its addresses: programs know no others."""
        dead = [one for one in self._hosts.all if not one.is_running]
        if not dead:
            return False
        self._hosts.start(self._random.choice(dead))
        return True

    def _kill_shard(self) -> bool:
        pids = [pid for one in self._awake() for pid in children(one.pid)]
        if not pids:
            return False
        with suppress(ProcessLookupError):
            kill(self._random.choice(pids))
        return True

    def _stop_host(self) -> bool:
        """With all its processes: a machine that sleeps."""
        awake = self._awake()
        if len(awake) < 2:
            return False
        chosen = self._random.choice(awake)
        self._sleep([chosen.pid, *children(chosen.pid)])
        return True

    def _stop_shard(self) -> bool:
        pids = [pid for one in self._awake() for pid in children(one.pid)]
        if not pids:
            return False
        self._sleep([self._random.choice(pids)])
        return True

    def _sleep(self, pids: list[int]) -> None:
        self._signal(pids, signal.SIGSTOP)
        self._asleep.update(pids)
        self._later(ASLEEP_SECONDS, lambda: self._wake(pids))

    def _wake(self, pids: list[int]) -> None:
        self._asleep.difference_update(pids)
        self._signal(pids, signal.SIGCONT)

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _later(self, seconds: tuple[float, float], act: Callable[[], None]) -> None:
        timer = threading.Timer(self._random.uniform(*seconds), act)
        timer.start()
        self._wakers.append(timer)

    def _move(self) -> bool:
        return self._ask(
            "/cluster/move",
            lambda found: {
                "shard": self._random.choice(found["shards"])["shard"],
                "to": self._random.choice([one["worker"] for one in found["workers"] if one["wants"] is not None]),
            },
        )

    def _rebalance(self) -> bool:
        return self._ask("/cluster/rebalance", lambda _: {})

    def _drain(self) -> bool:
        """It stays, and gets nothing more: it is killed soon, and another one joins."""
        awake = self._awake()
        if len(awake) < 2:
            return False
        chosen = self._random.choice(awake)
        if not self._ask("/cluster/drain", lambda _: {"worker": self._hosts.names.get(chosen, "")}):
            return False
        self._leaving.add(chosen.pid)
        self._later((5.0, 10.0), chosen.kill)
        return True

    def _ask(self, path: str, body: Callable[[dict], dict[str, object]]) -> bool:  # type: ignore[type-arg]
        """It may be refused: the worker is gone, the shard moves already, the store cannot be reached."""
        host = self._random.choice(self._awake())
        try:
            found = self._hosts.try_cluster(host)
            if found is None or not found["shards"]:
                return False
            self._hosts.ask(path, host, **body(found))
        except (PenstockError, OSError, AssertionError):
            return False
        return True

    def _cut_off(self) -> bool:
        if self._proxy is None:
            return False
        proxy = self._proxy
        proxy.refuse = lambda *_: SLOW_DOWN

        def reach() -> None:
            proxy.refuse = lambda *_: None

        self._later(AWAY_SECONDS, reach)
        return True


class Pipelines:
    """The driver of both pipelines, and what their sinks have."""

    def __init__(self, folder: Path, hosts: Hosts, master: str) -> None:
        folder.mkdir()
        (folder / "both.py").write_text(PIPELINES)
        self._sinks = {name: folder / name for name in PIPELINE_NAMES}
        workers = ",".join(f"127.0.0.1:{one.http_port}" for one in hosts.all)
        options = ["--worker", workers, "--master", master, "--checkpoint", str(folder / "shared")]
        options += [part for name, value in executor_conf().items() for part in ("--conf", f"{name}={value}")]
        options += [part for name in PIPELINE_NAMES for part in ("--sink", f"{name}/out=file:{self._sinks[name]}")]
        self.run = Run(folder, "both.py", *options, "--shared-checkpoint", SPARK_LOCAL_IP="127.0.0.1")

    def rows(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """By source and stream, in the order in which the sinks have them: ids and values."""
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for directory in self._sinks.values():
            for part in read_committed_parts(directory) if directory.exists() else ():
                for line in part.path.read_bytes()[: part.size].decode().splitlines():
                    source, stream, number, value = line.split(",")
                    found.setdefault((source, stream), []).append((int(number), value))
        return found

    def check_acknowledged(self, programs: Sequence["Sending | RawProgram"]) -> None:
        """What was acknowledged before the sinks are read is in them."""
        acknowledged = {one.name: one.acknowledged_ids() for one in programs if one.name in SOURCES}
        rows = self.rows()
        for source, streams in acknowledged.items():
            for stream, last in streams.items():
                has = {number for number, _ in rows.get((source, stream), [])}
                assert last < 0 or last in has, f"{source}, {stream}: {last} is acknowledged, and not in the sink"

    def check(self, counts: Mapping[tuple[str, str], int]) -> int:
        """The sinks get as many messages as are stored of each stream: each once, as it was sent, and in order."""
        expected = {name: [(n, str(n)) for n in range(count)] for name, count in counts.items() if name[0] in SOURCES}
        rows = self.rows

        def has_all() -> bool:
            found = rows()
            return all(len(found.get(name, [])) >= len(wanted) for name, wanted in expected.items())

        self.run.until(has_all, DRIVER_SECONDS_MAX)
        found = rows()
        assert set(found) == set(expected)
        for name, wanted in expected.items():
            assert found[name] == wanted, name
        return sum(map(len, found.values()))


@contextmanager
def spark_pipelines(folder: Path, hosts: Hosts) -> Iterator[Pipelines]:
    (folder / "spark").mkdir()
    with SparkCluster(folder / "spark") as cluster:
        made = Pipelines(folder / "pipelines", hosts, cluster.url)
        with made.run:
            http = f"127.0.0.1:{hosts.all[0].http_port}"
            made.run.until(lambda: all(is_running(http, name) for name in PIPELINE_NAMES), DRIVER_SECONDS_MAX)
            yield made


def run(
    folder: Path, url: str, random: Random, seconds: float, proxy: StoreProxy | None = None, *, spark: bool = False
) -> str:
    """Raises AssertionError. Returns what has happened."""
    every, patience = (SPARK_EVERY_SECONDS, DRIVER_SECONDS_MAX) if spark else (EVERY_SECONDS, SECONDS_MAX)
    with ExitStack() as stack:
        made = Hosts(folder, url, "--file-root", str(folder), "--retention", "keep", seconds=patience)
        stack.callback(made.close)
        for _ in range(HOSTS):
            made.add(SHARDS_EACH)
        pipelines = stack.enter_context(spark_pipelines(folder, made)) if spark else None
        programs = [
            stack.enter_context(sending(made.seeds, STREAMS, f"sdk_{number}", every)) for number in range(SDK_PROGRAMS)
        ]
        kinds = [(f"old_{number}", True) for number in range(RESTART_PROGRAMS)]
        kinds += [(f"naive_{number}", False) for number in range(NAIVE_PROGRAMS)]
        raw = [
            stack.enter_context(raw_program(made.seeds, name, follows=follows, every_seconds=every))
            for name, follows in kinds
        ]
        everybody: list[Sending | RawProgram] = [*programs, *raw]
        faults = Faults(made, proxy, random)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            faults.one()
            time.sleep(random.uniform(*PAUSE_SECONDS))
            if pipelines is not None:
                pipelines.check_acknowledged(everybody)
        faults.end()
        for one in made.all:
            if not one.is_running:
                made.start(one)
        made.settle()
        for program in everybody:
            program.wait_for_acks(patience)
        for program in everybody:
            program.end()
        counts = {name: count for one in everybody for name, count in check(made, one).items()}
        said = f"{sum(counts.values()):,} messages, once and in order; "
        said += ", ".join(f"{number} {kind}" for kind, number in sorted(faults.done.items()))
        if pipelines is not None:
            said += f"; {pipelines.check(counts):,} of them in the sinks"
            pipelines.check_acknowledged(everybody)
    return said


def check(hosts: Hosts, program: Sending | RawProgram) -> dict[tuple[str, str], int]:
    """Every message is stored once, in order, and at least up to the last one that was acknowledged. Returns how many,
    by source and stream.
    """
    program.finish(hosts.seconds)
    shard = hosts.settle()["shards"][hosts.place_of(program.name)]
    stored = stored_messages(shard["addresses"]["segment"], program.name)
    found = {}
    for stream, last in program.acknowledged_ids().items():
        messages = stored.pop(program.stream_ids()[stream])
        assert [one.id for one in messages] == [*range(len(messages))], f"{program.name}, {stream}"
        assert len(messages) > last, f"{program.name}, {stream}: {last} is acknowledged, and not stored"
        found[program.name, stream] = len(messages)
    assert not stored
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="(default: 10)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--spark", action="store_true", help="with pipelines on a standalone Spark cluster")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-cluster-") as folder,
        SeaweedFS(Path(folder) / "store") as store,
        store_proxy(store.endpoint) as proxy,
    ):
        os.environ.update(store.environment() | {"AWS_ENDPOINT_URL": proxy.endpoint})
        console.print(f"seed {options.seed}, {options.minutes:g} minutes")
        try:
            random, seconds = Random(options.seed), 60 * options.minutes
            said = run(Path(folder), store.url("cluster"), random, seconds, proxy, spark=options.spark)
        except Exception:
            console.print_exception()
            for log in sorted([*Path(folder).glob("host-*/worker.log"), *Path(folder).glob("pipelines/run-*.log")]):
                console.print(f"{log.parent.name}:\n{log.read_text(errors='replace')[-LOG_CHARS:]}", markup=False)
            again = f"script/test --campaign cluster --seed {options.seed}{' --spark' if options.spark else ''}"
            console.print(f"[bold red]It fails.[/] Run it again: {again}")
            return 1
    console.print(said)
    console.print("[bold green]No failure.[/]")
    return 0
