"""What a worker's shard does while it opens."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.cluster.lease import ShardCandidate, acquire
from penstock.cluster.lease_state import LeaseState
from penstock.cluster.records import WORKERS, shard_key
from penstock.core.errors import PenstockError, TakenOver
from penstock.store.bucket_files import BucketFiles
from penstock.worker import bucket_shard
from penstock.worker.bucket_shard import BucketMember, BucketShard
from penstock.worker.settings import BucketOptions
from tests.support.waiting import until


class Shards:
    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.url = (folder / "bucket").as_uri()
        self._folder = folder
        self._cleanup = cleanup

    def open(self) -> BucketShard:
        (self._folder / "data").mkdir()
        member = BucketMember(BucketOptions(self.url, self._folder / "cache", 1 << 20), self._folder / "data")
        self._cleanup.callback(member.close)
        shard = member.acquire()
        assert shard is not None
        self._cleanup.callback(shard.close)
        self._cleanup.callback(shard.files.close)
        return shard

    def lose_lease(self) -> None:
        lease = acquire(ShardCandidate(open_bucket(self.url), "other", {}), force=True)
        assert lease is not None
        self._cleanup.callback(lease.release)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    with ExitStack() as cleanup:
        yield Shards(tmp_path, cleanup)


def test_a_lease_that_is_lost_while_the_log_is_read_ends_the_start(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[LeaseState]()

    def open_slowly(*arguments: object, **more: object) -> object:
        shards.lose_lease()
        until(lambda: LeaseState.TAKEN in lost)
        return BucketFiles(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket_shard, "BucketFiles", open_slowly)
    monkeypatch.setattr(BucketShard, "lease_changed", lambda _, lease: lost.append(lease.state))
    with pytest.raises(TakenOver, match="worker other has taken over"):
        shards.open()


def test_a_lease_that_is_lost_while_the_journal_is_read_is_reported_when_the_worker_serves(shards: Shards) -> None:
    shard = shards.open()
    shards.lose_lease()
    until(lambda: not shard.may_act())
    until(lambda: shard.status().lease == "taken")
    reported = list[PenstockError]()
    shard.on_lost = reported.append
    shard.serve({})
    assert "worker other has taken over" in str(reported[0])


def test_a_record_of_the_owner_that_was_deleted_is_named(shards: Shards) -> None:
    shard = shards.open()
    reported = list[PenstockError]()
    shard.on_lost = reported.append
    bucket = open_bucket(shards.url)
    bucket.delete([shard_key(0), *(each.key for each in bucket.list(WORKERS))])
    until(lambda: reported)
    assert f"{shards.url}/cluster/shards/0, the record of the shard's owner, was deleted" in str(reported[0])
