"""Hosts of a cluster on one bucket, with their shard processes."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from penstock.bucket.stores import open_bucket
from penstock.client.coordinator.connection import Connection
from penstock.cluster.places import Kind, Places, Thing
from penstock.core.address import Address
from tests.client.source.stored import stored_messages
from tests.support import http
from tests.support.bucket_worker import BucketWorker
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import Sending


class Hosts:
    def __init__(self, folder: Path, url: str, *options: str, seconds: float = SECONDS_MAX) -> None:
        """`seconds`: how long to wait for anything."""
        self.url = url
        self.seconds = seconds
        self.all: list[BucketWorker] = []
        self.names: dict[BucketWorker, str] = {}
        self._folder = folder
        self._options = options

    def add(self, shards: int, environment: Mapping[str, str] | None = None) -> BucketWorker:
        """Returns when it is in the cluster, and all shards are served."""
        host = self.begin(shards, environment)
        self.wait(lambda found: self.names[host] in [one["worker"] for one in found["workers"]] and found["leader"])
        self.settle()
        return host

    def begin(self, shards: int, environment: Mapping[str, str] | None = None) -> BucketWorker:
        """Returns when it listens."""
        folder = self._folder / f"host-{len(self.all)}"
        host = BucketWorker(folder, self.url, "--shards", str(shards), *self._options)
        host.seconds_max = self.seconds
        host.environment.update(environment or {})
        self.start(host)
        self.all.append(host)
        return host

    def start(self, host: BucketWorker) -> None:
        """For the first time, or on a machine that was lost. Returns when it listens."""
        host.start()
        self.names[host] = self.cluster(host)["worker"]

    def cluster(self, host: BucketWorker | None = None) -> dict[str, Any]:
        found: list[dict[str, Any] | None] = [None]

        def asked() -> bool:
            found[0] = self.try_cluster(host or self.live()[0])
            return found[0] is not None

        until(asked, self.said, self.seconds)
        assert found[0] is not None
        return found[0]

    def try_cluster(self, host: BucketWorker) -> dict[str, Any] | None:
        """None: it does not answer."""
        with suppress(OSError, HTTPException, AssertionError):
            found: dict[str, Any] = http.get(host.http_port, "/cluster")
            return found
        return None

    def live(self) -> list[BucketWorker]:
        return [one for one in self.all if one.is_running]

    def said(self) -> str:
        return "\n".join(one.said for one in self.all)

    def wait(self, condition: Any) -> dict[str, Any]:
        found = [self.cluster()]

        def holds() -> object:
            found[0] = self.cluster()
            return condition(found[0])

        until(holds, lambda: f"{found[0]}\n{self.said()}", self.seconds)
        return found[0]

    def settle(self) -> dict[str, Any]:
        """Every shard is served by the host to which it is assigned, and every live host knows."""
        live = {self.names[one] for one in self.live()}

        def is_settled(found: dict[str, Any]) -> bool:
            hosts = {one["worker"]: one for one in found["workers"] if one["wants"] is not None}
            want = sum(one["wants"] for one in hosts.values() if not one["is_drained"])
            shards = found["shards"]
            return (
                live <= set(hosts)
                and len(shards) >= want
                and all(one["assigned"] in live and one["host"] == one["assigned"] for one in shards)
                and all(_answers(one["addresses"]) for one in shards)
            )

        return self.wait(is_settled)

    def shards_of(self, host: BucketWorker) -> list[int]:
        return [one["shard"] for one in self.cluster()["shards"] if one["host"] == self.names[host]]

    def ask(self, path: str, host: BucketWorker | None = None, **body: object) -> None:
        """At this host or the first one, which may send us to the one that it concerns."""
        port = (host or self.live()[0]).http_port
        with closing(Connection(Address("127.0.0.1", port), SECONDS_MAX)) as connection:
            connection.ask("POST", path, json.dumps(body).encode())

    @property
    def seeds(self) -> str:
        return ",".join(f"127.0.0.1:{one.connector_port}" for one in self.all)

    def place_of(self, source: str) -> int:
        (shard,) = self.places_of(source)
        return shard

    def places_of(self, source: str) -> tuple[int, ...]:
        """The shards of its partitions."""
        return Places(open_bucket(self.url)).find_partitions(Thing(Kind.SOURCE, source))

    def check(self, sending: Sending) -> int:
        """Every message is stored once, in order, and up to the last one that was acknowledged."""
        last, found = sending.finish(self.seconds), self.settle()
        shard = found["shards"][self.place_of(sending.name)]
        stored = stored_messages(shard["addresses"]["segment"], sending.name)
        assert set(stored) == set(last)
        for stream_id, messages in stored.items():
            assert [one.id for one in messages] == list(range(last[stream_id] + 1))
        return sum(map(len, stored.values()))

    def close(self) -> None:
        """The processes of a host that is killed end by themselves."""
        pids = [pid for one in self.live() for pid in children(one.pid)]
        for one in self.all:
            one.close()
        until(lambda: not any(map(is_running, pids)), self.said)


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_pids() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]


def open_files(pid: int) -> list[str]:
    """Also sockets; empty for a process that has ended."""
    with suppress(OSError):
        return [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    return []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _answers(addresses: dict[str, str]) -> bool:
    if "http" not in addresses:
        return False
    with suppress(OSError, HTTPException, AssertionError):
        return http.ask(int(addresses["http"].rpartition(":")[2]), "GET", "/ready")[0] == 200
    return False


@contextmanager
def hosts(folder: Path, *shards: int, options: tuple[str, ...] = ()) -> Iterator[Hosts]:
    made = Hosts(folder, (folder / "bucket").as_uri(), *options)
    try:
        for count in shards:
            made.add(count)
        yield made
    finally:
        made.close()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
