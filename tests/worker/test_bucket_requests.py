"""What a worker asks of its bucket: the cost model of docs/bucket.md."""

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.cli.connect import get_json
from penstock.store.bucket_files import OWNER_SECONDS, BucketFiles
from penstock.store.settings import KIB, BucketSettings
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.testing.memory_files import MemoryFiles
from penstock.worker.cluster_access import LOOK_SECONDS
from tests.store.small import commit, open_store
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

EVERY_SECONDS = 2.0
RENEWALS = 4


@pytest.mark.process
def test_an_idle_worker_makes_at_most_one_put_and_one_get_every_two_seconds(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data", "--shard", "0", "--store", (tmp_path / "bucket").as_uri()) as worker:

        def requests() -> dict[str, int]:
            status: Any = get_json(f"127.0.0.1:{worker.http_port}", "/status")
            return {kind: status["store"]["bucket"]["requests"].get(kind, 0) for kind in ("put", "get", "list")}

        first = requests()["put"]
        until(lambda: requests()["put"] >= first + RENEWALS)  # the start is over: dead workers were looked for
        before, began = requests(), time.monotonic()
        until(lambda: requests()["put"] >= before["put"] + RENEWALS)
        after, seconds = requests(), time.monotonic() - began
    assert 1 / OWNER_SECONDS + 2 / LOOK_SECONDS <= 1 / EVERY_SECONDS, "in the long run"
    due = seconds / EVERY_SECONDS + 1
    assert after["put"] - before["put"] <= due
    looks = seconds / LOOK_SECONDS + 1
    assert after["get"] - before["get"] <= seconds / OWNER_SECONDS + 1 + 2 * looks  # the access list, the owner's token
    assert after["list"] == before["list"]


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
