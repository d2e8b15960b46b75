"""Hosts with shard processes: shards and sources are spread, and go where hosts are lost, join, and are drained."""

import os
import signal
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread

import pytest
from typer.testing import CliRunner

from penstock.bucket.stores import open_bucket
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.cluster.places import APPLICATION, Kind, Places, Thing
from penstock.cluster.secret import cluster_secret
from penstock.core.address import Address
from penstock.core.errors import NoSuchSegment, RequestError
from penstock.protocol.api.deployment import PASSTHROUGH, ConnectorSpec, Deployment, End, Link, PipelineSpec
from penstock.protocol.connector import Migrate, Ok, Restart
from penstock.spark.run.executor_probe import reach
from tests.client.source.stored import stored_messages
from tests.support import http
from tests.support.ports import free_port
from tests.support.tokens import TOKEN
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import sending
from tests.worker.hosts import Hosts, all_pids, children, hosts, is_running, kill, open_files
from tests.worker.posting import SOURCE, Clients, deployed, listening, stored
from tests.worker.programs import Program

pytestmark = pytest.mark.process

SOURCES = ("red", "green", "blue", "white", "black", "yellow")


def test_what_a_killed_host_had_is_served_by_another_one(tmp_path: Path) -> None:
    with hosts(tmp_path, 2, 2) as made, ExitStack() as stack:
        first, second = made.all
        assert [len(made.shards_of(one)) for one in made.all] == [2, 2]
        programs = [stack.enter_context(sending(made.seeds, 2, name)) for name in SOURCES]
        assert len({made.place_of(name) for name in SOURCES}) > 1
        pids = children(first.pid)
        assert len(pids) == 2
        first.kill()
        until(lambda: not any(map(is_running, pids)), made.said)  # the children of a killed host end
        made.settle()
        assert sorted(made.shards_of(second)) == [0, 1, 2, 3]
        for one in programs:
            one.wait_for_acks()
        for one in programs:
            assert made.check(one)


def test_shards_follow_a_join_a_move_and_a_drain(tmp_path: Path) -> None:
    with hosts(tmp_path, 2) as made, ExitStack() as stack:
        programs = [stack.enter_context(sending(made.seeds, 2, name)) for name in SOURCES[:3]]
        second = made.add(0)  # adds nothing, so it gets nothing
        assert made.shards_of(second) == []
        first, name = made.names[made.all[0]], made.names[second]
        assert command(made, "move", "0", name) == f"shard 0 is served by {name}"
        assert (made.shards_of(made.all[0]), made.shards_of(second)) == ([1], [0])
        for one in programs:
            one.wait_for_acks()
        assert command(made, "rebalance") == "shard 0 moved"
        assert made.shards_of(second) == []
        assert command(made, "drain", first) == f"{first} has no shards now: shards 0, 1 moved"
        assert made.shards_of(second) == [0, 1]
        for one in programs:
            one.wait_for_acks()
        for one in programs:
            assert made.check(one)


def command(made: Hosts, *words: str) -> str:
    """What `penstock cluster` prints, when it is done."""
    done = CliRunner().invoke(app, ["cluster", *words, "--worker", f"127.0.0.1:{made.all[-1].http_port}"])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@pytest.mark.timeout(600)
def test_a_connector_of_the_application_listens_where_its_shard_is_and_nowhere_else(tmp_path: Path) -> None:
    port = free_port()
    clients, posts = Clients(port), Event()

    def post() -> None:
        while not posts.wait(0.01):  # a port where nobody listens refuses at once
            clients.post()

    with hosts(tmp_path, 1, 1, options=("--retention", "keep")) as made:
        with ApplicationClient(f"127.0.0.1:{made.all[0].http_port}", 5) as application:
            application.apply(deployed(replace(listening(port), partitions=1, listen="one-worker", ack="durable")))
        until(clients.post, made.said)
        shard = made.place_of(SOURCE)
        old, new = sorted(made.all, key=lambda one: shard in made.shards_of(one), reverse=True)
        assert only_listener(port) in children(old.pid)
        posting = Thread(target=post)
        posting.start()
        try:
            made.ask("/cluster/move", shard=shard, to=made.names[new])
            made.wait(lambda found: found["shards"][shard]["host"] == made.names[new])
            until(clients.post, made.said)
            assert only_listener(port) in children(new.pid)
            new.kill()
            made.settle()
            until(clients.post, made.said)
            assert only_listener(port) in children(old.pid)
        finally:
            posts.set()
            posting.join()
        (streams,) = stored(made)
    times = Counter(payload for payloads in streams.values() for payload in payloads)
    assert {*times.values()} == {1}
    assert times.keys() >= {*clients.answered}


def test_an_application_declares_a_source_that_has_a_place_in_another_shard(tmp_path: Path) -> None:
    """Its programs came first. Acknowledgements tell whether its shard has its settings: no pipeline runs."""
    with hosts(tmp_path, 2) as made, ExitStack() as stack:
        worker = f"127.0.0.1:{made.all[0].http_port}"
        application = stack.enter_context(ApplicationClient(worker, 5))
        application.apply(Deployment())
        home = Places(open_bucket(made.url)).find(APPLICATION)
        name = next(one for one in SOURCES if Places(open_bucket(made.url)).likely(Thing(Kind.SOURCE, one)) != home)
        program = stack.enter_context(sending(made.seeds, 2, name))
        program.wait_for_acks()
        spec = ConnectorSpec(name=name, id=name, instance="01", type="connector-protocol", ack="durable")
        pipeline = PipelineSpec(name="p", id="p", instance="01", spark=PASSTHROUGH)
        link = Link(End("connector", name, "out"), End("pipeline", "p", "in"))
        application.apply(Deployment(connectors={name: spec}, pipelines={"p": pipeline}, links=(link,)))
        program.wait_for_acks()
        with CoordinatorClient(worker, 5) as client:
            until(lambda: [one.lag_bytes > 0 for one in client.status().pipelines] == [True], made.said)
        pids = children(made.all[0].pid)
        for pid in pids:  # the application's shard, and the source's
            kill(pid)
        until(lambda: not {*pids} & {*children(made.all[0].pid)}, made.said)
        made.settle()
        program.wait_for_acks()
        with pytest.raises(RequestError, match="has events in other shards, where it cannot be paused"):
            application.pause(name)
        assert made.check(program)


def only_listener(port: int) -> int:
    """The process that listens on this port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = (row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port)
    (found,) = (pid for pid in all_pids() if f"socket:[{inode}]" in open_files(pid))
    return found


def test_a_shard_process_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with hosts(tmp_path, 1) as made, sending(made.seeds, 2) as program:
        (pid,) = children(made.all[0].pid)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: not is_running(pid), made.said)
        program.wait_for_acks()
        assert made.check(program)
        assert f"process {pid} does not answer" in made.all[0].said


def test_whoever_comes_to_the_wrong_process_is_sent_to_the_right_one(tmp_path: Path) -> None:
    with hosts(tmp_path, 2) as made:
        host, shards = made.all[0], made.settle()["shards"]
        with sending(made.seeds, 1, "red") as program:
            right = shards[made.place_of("red")]["addresses"]
            wrong = shards[1 - made.place_of("red")]["addresses"]
            for port in (host.connector_port, port_of(wrong["connector"])):
                check_frames(port, Address.parse(right["connector"]))
            for port in (host.http_port, port_of(wrong["http"])):
                assert location(port, "/sources/red/dead-letters?limit=1") == (
                    f"http://{right['http']}/sources/red/dead-letters?limit=1"
                )
            assert location(port_of(right["http"]), "/sources/red/dead-letters") == ""
            for worker in (f"127.0.0.1:{host.http_port}", wrong["http"]):  # the client follows, with its token
                with CoordinatorClient(worker) as client:  # on a busy machine a process is away for a moment
                    client.declare_watermark("red", 1)
                    assert client.status().version
            until(lambda: sum(map(len, stored_messages(right["segment"], "red").values())) > 0)
            assert reach(f"127.0.0.1:{host.http_port}", TOKEN) == ("", "")  # executors of a Spark cluster
            for address in (host.address, wrong["segment"]):  # passed on, and followed
                assert stored_messages(address, "red")
            with SegmentClient(host.address) as segments:
                for name in ("one", "two", "three"):
                    segments.create(name)
            for address in (host.address, wrong["segment"], right["segment"]):
                for name in ("one", "two", "three"):  # all were created over one connection
                    with SegmentClient(address) as segments:
                        segments.create(name, exist_ok=True)
                        assert segments.info(name).length == 0
            with SegmentClient(wrong["segment"]) as segments, pytest.raises(NoSuchSegment):
                segments.info("four")
            metrics = http.ask(host.http_port, "GET", "/metrics")[1].decode()
            assert all(f'shard="{shard}"' in metrics for shard in range(2))
            assert http.ask(host.http_port, "POST", "/log-level", {"level": "info"})[0] == 200
            until(lambda: all(is_audited(host.said, shard) for shard in range(2)), lambda: host.said)
            shown = CliRunner().invoke(app, ["status", "--data", str(host.data)]).output
            assert f"shard {made.place_of('red')} on {made.names[host]}" in shown
            assert "red" in shown
            assert made.check(program)
        assert "is ready" in host.said
        assert "[0] " in host.said
        assert cluster_secret(open_bucket(made.url)).token not in host.said


def is_audited(said: str, shard: int) -> bool:
    return any(line.startswith(f"[{shard}] ") and "/log-level" in line for line in said.splitlines())


def check_frames(port: int, right: Address) -> None:
    """MIGRATE for a program that knows it, RESTART for one that does not."""
    program = Program(port, version="0.0.1+migrate", source="red")
    assert program.next() == Migrate(right.host, right.port)
    program.close()
    old = Program(port, f"old at {port}", source="red")
    assert [old.next(), old.next()] == [Ok(0), Restart(str(right))]
    old.close()


def port_of(address: str) -> int:
    return Address.parse(address).port


def location(port: int, path: str) -> str:
    """Where a request is sent; "" if it is answered."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().headers.get("Location", "")


def test_a_killed_shard_process_is_started_again(tmp_path: Path) -> None:
    with hosts(tmp_path, 1) as made, sending(made.seeds, 2) as program:
        (pid,) = children(made.all[0].pid)
        kill(pid)
        until(lambda: [one for one in children(made.all[0].pid) if one != pid and is_running(one)], made.said)
        program.wait_for_acks()
        assert made.check(program)
