"""`script/test --campaign cluster [--minutes M] [--seed S] [--no-spark]`: hosts on SeaweedFS while ten programs send.

Hosts and shard processes are killed, or stopped and woken up when others have their shards; hosts join and are drained;
shards move; the store cannot be reached for a while: by one host, whose requests and their replies are lost on the
network, or by none, because it is overloaded. Between programs and hosts is a proxy, which cuts some or all of their
connections: what was sent arrives late, or never. Six programs use the SDK, three are raw sockets that know RESTART
with an address, one understands neither that nor MIGRATE. At the end every message of every program is stored once, in
order, up to the last one that was acknowledged.

Four more want the same stream of a source with two partitions, and let go of it every few seconds, and four another
one. What was acknowledged to one of them is stored, and nothing that another one has sent in its place: so no two of
them had the stream at the same time. Nor had the partitions, by the journal of the registry: what each has stored lies
between what the registry said when it was granted the stream and what it reported when it gave it up. In the end the
registry says that nobody has it.

A standalone Spark cluster with two workers runs two pipelines over seven of the sources. The sink of one writes files,
that of the other is a program, behind the same proxy. Executors are killed, and the driver, which is started again. An
acknowledgement of these sources means that the sinks have the message, which is checked all the time; at the end the
sinks have every message once, with its bytes, and the messages of each stream in order. With `--no-spark` there are no
pipelines, and programs send more: otherwise the cluster, Spark and the store share one machine.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

from rich.console import Console

from penstock.client.segments import SegmentClient
from penstock.client.sink import DataFile, Sink, lines, read_committed
from penstock.connectors.file import read_committed_parts
from penstock.core.errors import PenstockError
from penstock.ingest.stored_claims import claims_segment
from penstock.protocol.stored.names import Partition
from penstock.testing.seaweedfs import SeaweedFS
from tests.client.source.stored import StoredMessage, stored_messages
from tests.spark.test_run_command import Run, is_running
from tests.support.bucket_worker import BucketWorker
from tests.support.ports import free_port
from tests.support.program_network import ProgramNetwork
from tests.support.spark_cluster import SparkCluster, executor_conf
from tests.support.store_proxy import SLOW_DOWN, StoreProxy, store_proxy
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import EVERY_SECONDS, Sending, sending
from tests.worker.hosts import Hosts, children, kill
from tests.worker.raw_programs import RawProgram, raw_program
from tests.worker.rivals import Rival, Rivals, SdkRival, rivals
from tests.worker.stored_tenures import tenures_of

ABOUT = "hosts killed, stopped, drained, joined and cut off while ten programs of three kinds send"

SDK_PROGRAMS, RESTART_PROGRAMS, NAIVE_PROGRAMS, RIVALS, CONTESTED = 6, 3, 1, 3, 2
SPREAD, PARTITIONS = "spread", 2
"""The source of the rivals: for each of its contested streams, so many on plain sockets and one with the SDK."""
STREAMS = 3
HOSTS = 3
SHARDS_EACH = 2
PAUSE_SECONDS = (1.0, 6.0)
ASLEEP_SECONDS = (1.0, 12.0)
"""Shorter and longer than a lease."""
AWAY_SECONDS = (0.5, 8.0)
CUT_OFF_SECONDS = (0.5, 12.0)
"""Shorter and longer than a lease."""
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
def right(sdk_2, sdk_3, naive_0, spread):
    return rows(sdk_2, sdk_3, naive_0, spread)
"""
SOURCES = ("sdk_0", "sdk_1", "old_0", "sdk_2", "sdk_3", "naive_0", SPREAD)
PIPELINE_NAMES = ("left", "right")
FULL_CUTS_ENOUGH = 5
"""After so many, every program has been cut off: one of them may fall into the moment in which it has no connection."""
DRIVER_SECONDS_MAX = 600
"""Until a driver has started, or gone on after everything around it was killed, on a busy machine."""

EACH_FAULT = (
    *("kill_shard", "cut_programs", "move", "cut_off", "stop_shard", "drain"),
    *("stop_host", "join", "kill_host", "rebalance", "join", "overload"),
)
"""For a short run: each of them happens, one after the other."""
FAULTS_OF_SPARK = ("kill_executor", "kill_driver")

LOG_CHARS = 3000
"""The end of each host's log, which is printed after a failure."""

console = Console(highlight=False)


class Faults:
    """What happens to the cluster. At least one host is never stopped or killed at a time."""

    def __init__(
        self,
        hosts: Hosts,
        network: ProgramNetwork,
        proxies: Sequence[StoreProxy],
        random: Random,
        pipelines: "Pipelines | None" = None,
    ) -> None:
        """`network`: between programs and hosts; `proxies`: between each host and the store."""
        self._hosts = hosts
        self._pipelines = pipelines
        self._network = network
        self._proxies = proxies
        self._random = random
        self._wakers: list[threading.Timer] = []
        self._asleep: set[int] = set()
        self._leaving: set[int] = set()
        """Drained, and soon killed: no longer one of those that are left."""
        self.done: Counter[str] = Counter()
        self.full_cuts = 0
        """How often programs were cut off from everything."""

    def one(self) -> None:
        kinds = ["kill_host", "kill_shard", "stop_host", "stop_shard", "move", "rebalance", "drain", "cut_off"]
        kinds += ["overload", "join", "cut_programs", "cut_programs"]
        kinds += FAULTS_OF_SPARK if self._pipelines is not None else ()
        self.try_one(self._random.choice(kinds))

    def try_one(self, kind: str) -> bool:
        """Whether it could be done."""
        is_done: bool = getattr(self, f"_{kind}")()
        self.done[kind] += is_done
        return is_done

    @property
    def has_spark(self) -> bool:
        return self._pipelines is not None

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

    def _kill_executor(self) -> bool:
        return self._pipelines is not None and self._pipelines.kill_executor(self._random)

    def _kill_driver(self) -> bool:
        return self._pipelines is not None and self._pipelines.kill_driver()

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
        """One host with its processes, from the store alone: programs still reach it."""
        if not self._proxies:
            return False
        proxy = self._random.choice(self._proxies)
        proxy.cut()
        self._later(CUT_OFF_SECONDS, proxy.reconnect)
        return True

    def _cut_programs(self) -> bool:
        """Programs, and the sink that is one, from all that they are connected to or from some of it."""
        ports = self._network.ports
        count = self._random.choice((len(ports), (len(ports) + 1) // 2))
        self._network.cut(self._random.sample(ports, count))
        self.full_cuts += count == len(ports)
        resets = self._random.random() < 0.5
        self._later(CUT_OFF_SECONDS, lambda: self._network.reconnect(resets=resets))
        return True

    def _overload(self) -> bool:
        """The store refuses all requests."""
        for proxy in self._proxies:
            proxy.refuse = lambda *_: SLOW_DOWN

        def recover() -> None:
            for proxy in self._proxies:
                proxy.refuse = lambda *_: None

        self._later(AWAY_SECONDS, recover)
        return bool(self._proxies)


Program = Sending | RawProgram | Rivals


class Pipelines:
    """The driver of both pipelines, and what their sinks have: `left` writes files, `right` is a program."""

    def __init__(self, folder: Path, hosts: Hosts, network: ProgramNetwork, cluster: SparkCluster) -> None:
        folder.mkdir()
        self._cluster = cluster
        (folder / "both.py").write_text(PIPELINES)
        self._files, self._program = folder / "left", folder / "right"
        port = free_port()
        state = self._program.with_suffix(".state")
        self._sink = Sink(f"127.0.0.1:{port}", DataFile(self._program), state=state, encode=lines)
        self._serving = threading.Thread(target=self._sink.run)
        self._serving.start()
        sinks = {"left": f"file:{self._files}", "right": f"connector://{network.address(port)}"}
        workers = ",".join(f"127.0.0.1:{one.http_port}" for one in hosts.all)
        options = ["--worker", workers, "--master", cluster.url, "--checkpoint", str(folder / "shared")]
        options += [part for name, value in executor_conf().items() for part in ("--conf", f"{name}={value}")]
        options += [part for name, url in sinks.items() for part in ("--sink", f"{name}/out={url}")]
        self.run = Run(folder, "both.py", *options, "--shared-checkpoint", SPARK_LOCAL_IP="127.0.0.1")

    def rows(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """By source and stream, in the order in which the sinks have them: ids and values."""
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        parts = read_committed_parts(self._files) if self._files.exists() else ()
        written = [part.path.read_bytes()[: part.size] for part in parts]
        committed = read_committed(self._program.with_suffix(".state")).size
        written.append(self._program.read_bytes()[:committed] if committed else b"")
        for line in b"".join(written).decode().splitlines():
            source, stream, number, value = line.split(",")
            found.setdefault((source, stream), []).append((int(number), value))
        return found

    def kill_executor(self, random: Random) -> bool:
        """Spark starts another one."""
        executors = self._cluster.executors()
        if not executors:
            return False
        with suppress(ProcessLookupError):
            os.kill(random.choice(executors), signal.SIGKILL)
        return True

    def kill_driver(self) -> bool:
        """It is started again at once."""
        self.run.kill()
        self.run.__enter__()
        return True

    def close(self) -> None:
        self._sink.stop()
        self._serving.join(SECONDS_MAX)

    def check_acknowledged(self, programs: Sequence[Program]) -> None:
        """What was acknowledged before the sinks are read is in them."""
        acknowledged = {one.name: one.acknowledged_ids() for one in programs if one.name in SOURCES}
        rows = self.rows()
        for source, streams in acknowledged.items():
            for stream, last in streams.items():
                has = {number for number, _ in rows.get((source, stream), [])}
                assert last < 0 or last in has, f"{source}, {stream}: {last} is acknowledged, and not in the sink"

    def check(self, stored: Mapping[tuple[str, str], Sequence[StoredMessage]]) -> int:
        """The sinks get the messages that are stored of each stream: each once, as it was sent, and in order."""
        expected = {
            name: [(one.id, one.payload.decode()) for one in messages]
            for name, messages in stored.items()
            if name[0] in SOURCES
        }
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
def spark_pipelines(folder: Path, hosts: Hosts, network: ProgramNetwork) -> Iterator[Pipelines]:
    (folder / "spark").mkdir()
    with SparkCluster(folder / "spark") as cluster:
        made = Pipelines(folder / "pipelines", hosts, network, cluster)
        with closing(made), made.run:
            http = f"127.0.0.1:{hosts.all[0].http_port}"
            made.run.until(lambda: all(is_running(http, name) for name in PIPELINE_NAMES), DRIVER_SECONDS_MAX)
            yield made


def run(
    folder: Path,
    url: str,
    random: Random,
    seconds: float | None,
    proxies: Sequence[StoreProxy] = (),
    *,
    spark: bool = False,
) -> str:
    """`proxies`: between each host and the store, if any. `seconds`: of random faults; None: each fault once, and
    programs continue after it. Raises AssertionError. Returns what has happened.
    """
    every, patience = (SPARK_EVERY_SECONDS, DRIVER_SECONDS_MAX) if spark else (EVERY_SECONDS, SECONDS_MAX)
    options = ["--file-root", str(folder), "--retention", "keep", "--partitions", f"{SPREAD}={PARTITIONS}"]
    with ExitStack() as stack:
        made = Hosts(folder, url, *options, seconds=patience)
        stack.callback(made.close)
        for number in range(HOSTS):
            made.add(SHARDS_EACH, {"AWS_ENDPOINT_URL": proxies[number].endpoint} if proxies else None)
        network = stack.enter_context(ProgramNetwork())
        pipelines = stack.enter_context(spark_pipelines(folder, made, network)) if spark else None
        seeds = ",".join(network.address(one.connector_port) for one in made.all)
        programs = [stack.enter_context(one) for one in all_programs(seeds, random, every)]
        faults = Faults(made, network, proxies, random, pipelines)
        for _ in random_faults(faults, random, seconds) if seconds is not None else each_fault(faults, made, programs):
            if pipelines is not None:
                pipelines.check_acknowledged(programs)
        faults.end()
        for one in made.all:
            if not one.is_running:
                made.start(one)
        made.settle()
        for program in programs:
            program.wait_for_acks(patience)
        for program in programs:
            program.end()
        stored = {name: messages for one in programs for name, messages in check(made, one).items()}
        said = f"{sum(map(len, stored.values())):,} messages, once and in order; "
        said += f"{sum(one.sessions for one in programs if isinstance(one, Rivals))} sessions of rivals; "
        if faults.full_cuts >= FULL_CUTS_ENOUGH:
            assert all(network.cuts[one.name] for one in programs), network.cuts
        said += f"{network.cuts.total()} connections of programs cut, {network.resets} of them for good; "
        said += ", ".join(f"{number} {kind}" for kind, number in sorted(faults.done.items()))
        if pipelines is not None:
            said += f"; {pipelines.check(stored):,} of them in the sinks"
            pipelines.check_acknowledged(programs)
    return said


def random_faults(faults: Faults, random: Random, seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        faults.one()
        time.sleep(random.uniform(*PAUSE_SECONDS))
        yield


def each_fault(faults: Faults, hosts: Hosts, programs: Sequence[Program]) -> Iterator[None]:
    """After each of them, something is acknowledged."""

    def acknowledged() -> int:
        return sum(sum(one.acknowledged_ids().values()) for one in programs)

    for kind in (*EACH_FAULT, *(FAULTS_OF_SPARK if faults.has_spark else ())):
        until(partial(faults.try_one, kind), hosts.said, hosts.seconds)
        before = acknowledged()
        until(lambda before=before: acknowledged() > before, hosts.said, hosts.seconds)  # type: ignore[misc]
        yield


def all_programs(seeds: str, random: Random, every: float) -> Iterator[AbstractContextManager[Program]]:
    for number in range(SDK_PROGRAMS):
        yield sending(seeds, STREAMS, f"sdk_{number}", every)
    for number in range(RESTART_PROGRAMS):
        yield raw_program(seeds, f"old_{number}", follows=True, every_seconds=every)
    for number in range(NAIVE_PROGRAMS):
        yield raw_program(seeds, f"naive_{number}", follows=False, every_seconds=every)
    yield rivals(seeds, SPREAD, CONTESTED, RIVALS, random, every)


def check(hosts: Hosts, program: Program) -> dict[tuple[str, str], list[StoredMessage]]:
    """Every message is stored once, in order, and at least up to the last one that was acknowledged. Returns them, by
    source and stream.
    """
    program.finish(hosts.seconds)
    partitions = stored_in_partitions(hosts, program.name)
    if isinstance(program, Rivals):
        check_tenures(hosts, program, partitions)
    stored = joined(partitions)
    found = {}
    for stream, last in program.acknowledged_ids().items():
        messages = stored.pop(program.stream_ids()[stream])
        assert [one.id for one in messages] == [*range(len(messages))], f"{program.name}, {stream}"
        assert len(messages) > last, f"{program.name}, {stream}: {last} is acknowledged, and not stored"
        found[program.name, stream] = messages
    assert not stored
    if isinstance(program, Rivals):
        for stream, stream_id in program.stream_ids().items():
            check_confirmed(program.of(stream_id), found[program.name, stream])
    return found


def stored_in_partitions(hosts: Hosts, source: str) -> list[dict[int, list[StoredMessage]]]:
    """Of each partition, by stream id, in order."""
    shards, found = hosts.settle()["shards"], []
    for number, shard in enumerate(hosts.places_of(source)):
        address = shards[shard]["addresses"]["segment"]
        found.append(stored_messages(address, Partition(source, number).name))
        for messages in found[-1].values():
            assert [one.id for one in messages] == sorted(one.id for one in messages), f"{source}, {number}"
    return found


def joined(partitions: Sequence[Mapping[int, Sequence[StoredMessage]]]) -> dict[int, list[StoredMessage]]:
    """By stream id: streams may have changed their partition."""
    ids = {stream_id for one in partitions for stream_id in one}
    return {stream_id: sorted(chain(*(one.get(stream_id, ()) for one in partitions))) for stream_id in ids}


def check_confirmed(rivals: Sequence[Rival | SdkRival], stored: Sequence[StoredMessage]) -> None:
    """No two of them had the stream at the same time."""
    payloads = {one.id: one.payload for one in stored}
    for rival in rivals:
        assert rival.confirmed.items() <= payloads.items(), "what was acknowledged to one was not sent by another"


def check_tenures(hosts: Hosts, program: Rivals, partitions: Sequence[Mapping[int, Sequence[StoredMessage]]]) -> None:
    """Each partition has stored what it may have stored while it had the stream, and now nobody has it."""
    ids = program.stream_ids().values()

    def has_holder() -> bool:
        return any(one[-1].until is None for one in tenures_of(registry(hosts, program.name)).values())

    until(lambda: not has_holder(), hosts.said, hosts.seconds)
    tenures = tenures_of(registry(hosts, program.name))
    assert set(tenures) == set(ids)
    for stream_id, those in tenures.items():
        for number, partition in enumerate(partitions):
            for message in partition.get(stream_id, ()):
                own = [one for one in those if one.partition == number and one.has(message.id)]
                assert own, f"{program.name}, {number}: {message.id} of {stream_id} is in none of {those}"


def registry(hosts: Hosts, source: str) -> bytes:
    """The streams of a source with partitions, as the journal of partition 0's shard has them."""
    segment = claims_segment(source)
    address = hosts.settle()["shards"][hosts.places_of(source)[0]]["addresses"]["segment"]
    with SegmentClient(address) as client:
        info, data = client.info(segment), b""
        assert info.start == 0, "the first claims are not there any more"
        while len(data) < info.length:
            data += client.read(segment, len(data), info.length, wait=False).data
    return data


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="(default: 10)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--spark",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with pipelines on a standalone Spark cluster (default)",
    )
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-cluster-") as folder,
        SeaweedFS(Path(folder) / "store") as store,
        ExitStack() as stack,
    ):
        proxies = [stack.enter_context(store_proxy(store.endpoint)) for _ in range(HOSTS)]
        os.environ.update(store.environment())
        console.print(f"seed {options.seed}, {options.minutes:g} minutes")
        try:
            random, seconds = Random(options.seed), 60 * options.minutes
            said = run(Path(folder), store.url("cluster"), random, seconds, proxies, spark=options.spark)
        except Exception:
            console.print_exception()
            for log in sorted([*Path(folder).glob("host-*/worker.log"), *Path(folder).glob("pipelines/run-*.log")]):
                console.print(f"{log.parent.name}:\n{log.read_text(errors='replace')[-LOG_CHARS:]}", markup=False)
            again = f"script/test --campaign cluster --seed {options.seed}{'' if options.spark else ' --no-spark'}"
            console.print(f"[bold red]It fails.[/] Run it again: {again}")
            return 1
    console.print(said)
    console.print("[bold green]No failure.[/]")
    return 0
