"""Where things are in the cluster."""

from uuid import uuid4

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.cluster.places import APPLICATION, PLACES
from penstock.cluster.records import ShardRecord, WorkerRecord, encode, shard_key, worker_key
from penstock.core.errors import Unavailable
from penstock.worker.directory import Directory


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


def serve(bucket: Bucket, shard: int, address: str) -> None:
    owner = WorkerRecord(worker=f"w{shard}", revision=1, addresses={"segment": address})
    bucket.create(worker_key(owner.worker), [encode(owner)])
    bucket.create(shard_key(shard), [encode(ShardRecord(shard=shard, owner=owner.worker, term=1))])


async def test_a_segment_belongs_to_the_shard_in_which_it_is_created_first(bucket: Bucket) -> None:
    first, second = Directory(bucket, 3), Directory(bucket, 4)
    names = [f"segment {number}" for number in range(5)]
    assert {await first.claim_segment(name) for name in names} == {""}
    with pytest.raises(Unavailable, match="no worker serves shard 3"):
        await second.claim_segment(names[0])
    serve(bucket, 3, "machine:7")
    third = Directory(bucket, 4)  # which has not asked for the owner of shard 3 yet
    assert {await third.claim_segment(name) for name in names} == {"machine:7"}
    assert {await third.segment_elsewhere(name) for name in names} == {"machine:7"}
    assert await first.claim_segment(names[0]) == ""


async def test_all_segments_of_pravegas_clients_are_where_the_application_is(bucket: Bucket) -> None:
    first, second = Directory(bucket, 3), Directory(bucket, 4)
    assert await first.claim_segment("sc/group_kvtable/0.#epoch.0") == ""
    serve(bucket, 3, "machine:7")
    for name in ("sc/st/0.#epoch.0", "sc/st/1.#epoch.2#transaction.ab", "sc/st/1.#epoch.2#transient.cd"):
        assert await second.claim_segment(name) == "machine:7"
    assert await second.place(APPLICATION) == await second.shard_of("pravega:sc/st") == 3


async def test_what_belongs_to_the_worker_itself_is_not_claimed(bucket: Bucket) -> None:
    for name in ("staging/p/1/2", "pipeline/p/out", "connector/orders/0", "coordinator/ledger"):
        assert await Directory(bucket, 3).claim_segment(name) == ""
    assert [*bucket.list(PLACES)] == []


async def test_partitions_that_contradict_the_place_are_reported_once(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    first = Directory(bucket, 3)
    first.declared = {"orders": 1, "new": 2}
    await first.check_declared()
    await first.partitions("orders")
    assert first.problems == []
    second = Directory(bucket, 3)
    second.declared = {"orders": 4}
    await second.check_declared()
    assert await second.partitions("orders") == (3,)
    (problem,) = second.problems
    assert problem.startswith("source 'orders' has 1 partition, not 4 (--partitions)")
    assert "--partitions orders=1" in problem
    assert caplog.text.count("source 'orders' has 1 partition, not 4") == 1
