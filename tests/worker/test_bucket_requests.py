"""What a worker asks of its bucket: the cost model of docs/bucket.md."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.cli.connect import get_json
from penstock.cluster.records import ShardRecord, WorkerRecord, encode, shard_key, worker_key
from penstock.core.sizes import KIB
from penstock.store.bucket_files import OWNER_SECONDS, BucketFiles
from penstock.store.settings import BucketSettings
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.testing.memory_files import MemoryFiles
from penstock.worker.cluster import Cluster
from penstock.worker.cluster_access import LOOK_SECONDS
from tests.store.small import commit, open_store
from tests.support.open_stream import open_stream
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

EVERY_SECONDS = 2.0
RENEWALS = 4


@pytest.mark.process
def test_an_idle_worker_makes_at_most_one_put_and_one_get_every_two_seconds(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data", "--shard", "0", "--store", (tmp_path / "bucket").as_uri()) as worker:

        def status() -> Any:
            return get_json(f"127.0.0.1:{worker.http_port}", "/status")

        def requests(found: Any) -> dict[str, int]:
            return {kind: found["store"]["bucket"]["requests"].get(kind, 0) for kind in ("put", "get", "list")}

        start = status()
        first = requests(start)
        until(lambda: requests(status())["put"] >= first["put"] + RENEWALS)  # the start is over
        before, began = requests(status()), time.monotonic()
        until(lambda: requests(status())["put"] >= before["put"] + RENEWALS)
        after, seconds = requests(status()), time.monotonic() - began
    since_start = start["uptime_seconds"] / EVERY_SECONDS
    assert first["put"] <= 15 + since_start
    assert first["get"] <= 36 + start["store"]["bucket"]["log_objects"] + 2 * since_start
    assert first["list"] <= 6
    assert 1 / OWNER_SECONDS + 2 / LOOK_SECONDS <= 1 / EVERY_SECONDS, "in the long run"
    due = seconds / EVERY_SECONDS + 1
    assert after["put"] - before["put"] <= due
    looks = seconds / LOOK_SECONDS + 1
    assert after["get"] - before["get"] <= seconds / OWNER_SECONDS + 1 + 2 * looks  # the access list, the owner's token
    assert after["list"] == before["list"]


@pytest.mark.process
def test_a_lone_append_is_one_group_and_nothing_follows_it(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data", "--shard", "0", "--store", (tmp_path / "bucket").as_uri()) as worker:

        def bucket() -> Any:
            return get_json(f"127.0.0.1:{worker.http_port}", "/status")["store"]["bucket"]

        with open_stream(worker.connector_port, "letters", "one") as stream:
            stream.send(1, 1)
            until(lambda: stream.acked() == 1)
            quiet_for_two_renewals(bucket)
            before = bucket()["log_objects"]
            for number in (2, 3):
                stream.send(number, number)
                until(lambda: stream.acked() == number)  # noqa: B023
                quiet_for_two_renewals(bucket)
            assert bucket()["log_objects"] == before + 2


def quiet_for_two_renewals(bucket: Callable[[], Any]) -> None:
    """Some four seconds, in which the lease is renewed."""
    began = bucket()["requests"]["put"]
    until(lambda: bucket()["requests"]["put"] >= began + 2)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list the libraries of a process")
def test_a_worker_without_a_bucket_does_not_load_the_library_for_them(tmp_path: Path) -> None:
    """The default pays nothing for it. A process that uses it shows that it would be seen."""
    library = find_spec("obstore._obstore")
    assert library is not None
    assert library.origin is not None
    data, ports = tmp_path / "data", ["--connector-port", "0", "--segment-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(data), *ports]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as worker:
        try:
            until(lambda: (data / "ports.json").exists())
            assert library.origin not in Path(f"/proc/{worker.pid}/maps").read_text()
        finally:
            worker.kill()
    use = "import obstore; print(open('/proc/self/maps').read())"
    assert library.origin in subprocess.run([sys.executable, "-c", use], capture_output=True, text=True).stdout


def test_a_group_is_one_put_and_a_chapter_seven_more() -> None:
    """Three groups for the turn to the next chapter; the closed one and the beginning of the next as parts; a
    checkpoint of the log, and its head. No object is read or listed.
    """
    bucket = CountedBucket(FaultyBucket())
    files = BucketFiles(bucket, MemoryFiles(), settings=BucketSettings(release_seconds=0))
    store = open_store(files, chapter_bytes=64 * KIB)
    store.create("s")
    commit(store)
    while files.maintain():  # what a start does
        pass
    before = bucket.counts().requests
    chapters = len(store.journal.chapters)
    groups = 0
    while len(store.journal.chapters) < chapters + 4:
        store.append("s", [bytes(5 * KIB)])
        commit(store)
        groups += 1
        while files.maintain():
            pass
    after = bucket.counts().requests
    closed = len(store.journal.chapters) - chapters
    assert after["put"] - before["put"] == groups + 7 * closed
    assert after["get"] == before["get"]
    assert after.get("list") == before.get("list")


def test_the_map_of_a_cluster_costs_two_lists_and_a_get_for_each_record() -> None:
    bucket = CountedBucket(FaultyBucket())
    workers = ("host", "host.0", "host.1")
    for name in workers:
        bucket.create(worker_key(name), [encode(WorkerRecord(worker=name, revision=1, addresses={}))])
    for shard in range(2):
        bucket.create(shard_key(shard), [encode(ShardRecord(shard=shard, owner=f"host.{shard}", term=1))])
    cluster, before = Cluster(bucket, "host"), Counter(bucket.counts().requests)
    for _ in range(3):  # at most twice a second
        assert len(cluster.status().workers) == len(workers)
    made = Counter(bucket.counts().requests) - before
    assert made == {"list": 2, "get": len(workers) + 2 + 1}  # and the assignment
