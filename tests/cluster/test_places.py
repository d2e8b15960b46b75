"""Places: each thing has one shard, for ever."""

from collections import Counter
from uuid import uuid4

import pytest

from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.cluster.places import APPLICATION, Kind, Places, Thing, choose
from penstock.cluster.records import ASSIGNMENT, SHARDS, AssignmentRecord, encode
from penstock.core.errors import RequestError


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


def assign(bucket: Bucket, count: int) -> None:
    record = AssignmentRecord(revision=count, leader="h", count=count, shards={"h": tuple(range(count))})
    bucket.delete([ASSIGNMENT])
    bucket.create(ASSIGNMENT, [encode(record)])


def source(number: int) -> Thing:
    return Thing(Kind.SOURCE, f"source {number}")


def test_things_are_spread_and_a_further_shard_takes_its_share_only() -> None:
    before = {number: choose(source(number), range(4)) for number in range(1000)}
    assert all(200 < count < 300 for count in Counter(before.values()).values())
    after = {number: choose(source(number), range(5)) for number in range(1000)}
    assert {after[number] for number in before if after[number] != before[number]} == {4}


def test_a_place_never_changes_even_if_there_are_more_shards(bucket: Bucket) -> None:
    assign(bucket, 1)
    assert Places(bucket).get(source(1)) == 0
    assign(bucket, 50)
    assert Places(bucket).get(source(1)) == 0
    assert Places(bucket).find(source(2)) is None
    assert {Places(bucket).get(source(number)) for number in range(2, 20)} != {0}


def test_of_two_processes_that_place_a_thing_at_once_one_decides(bucket: Bucket) -> None:
    assert Places(bucket).get(APPLICATION, 3) == 3
    assert Places(bucket).get(APPLICATION, 4) == 3


def test_every_name_fits_into_a_key(bucket: Bucket) -> None:
    names = ["a", "a b", "\N{SNOWMAN}" * 200, "\N{SNOWMAN}" * 199, "s" * 240, "long/1"]
    things = [Thing(Kind.SOURCE, name) for name in names]
    assert len({one.key for one in things}) == len(things)
    assert max(len(one.key) for one in things) < 300
    for thing in things:
        assert Places(bucket).get(thing, 7) == Places(bucket).find(thing) == 7


def test_looking_places_nothing(bucket: Bucket) -> None:
    assign(bucket, 2)
    likely = Places(bucket).likely(source(1))
    assert Places(bucket).find(source(1)) is None
    assert Places(bucket).get(source(1)) == likely


def test_a_place_is_read_once(bucket: Bucket) -> None:
    places = Places(bucket)
    placed = places.get(source(1))
    bucket.delete([source(1).key])
    assert places.known(source(1)) == places.find(source(1)) == placed


def test_names_with_slashes_and_spaces_are_keys_of_their_own(bucket: Bucket) -> None:
    for name in ("a/b", "a", "a b", "ä", "%2F"):
        Places(bucket).get(Thing(Kind.SEGMENT, name))
    assert len(list(bucket.list("cluster/places/segment/"))) == 5


def test_without_hosts_the_shards_are_those_that_were_started(bucket: Bucket) -> None:
    assert Places(bucket).shards() == [0]
    bucket.create(f"{SHARDS}7", [b"{}"])
    assert Places(bucket, 3).shards() == [3, 7]


def test_the_partitions_of_a_source_are_in_different_shards_forever(bucket: Bucket) -> None:
    assign(bucket, 5)
    orders = Thing(Kind.SOURCE, "orders")
    shards = Places(bucket).partitions(orders, 3)
    assert len({*shards}) == 3
    assert shards[0] == choose(orders, range(5))
    assign(bucket, 9)
    later = Places(bucket)
    assert later.partitions(orders, 7) == later.find_partitions(orders) == shards
    assert [Places(bucket).get(orders._replace(partition=number)) for number in range(3)] == [*shards]
    assert later.known(orders._replace(partition=9)) == shards[0]


def test_the_first_partition_is_in_the_wanted_shard(bucket: Bucket) -> None:
    assign(bucket, 4)
    orders = Thing(Kind.SOURCE, "orders")
    wanted = next(shard for shard in range(4) if shard != choose(orders, range(4)))
    shards = Places(bucket).partitions(orders, 4, wanted)
    assert shards[0] == wanted
    assert {*shards} == {0, 1, 2, 3}


def test_a_source_gets_no_more_partitions_than_there_are_shards(bucket: Bucket) -> None:
    assign(bucket, 2)
    orders = Thing(Kind.SOURCE, "orders")
    with pytest.raises(RequestError, match="is to have 3 partitions, and the cluster has only 2 shards"):
        Places(bucket).partitions(orders, 3)
    assert Places(bucket).find_partitions(orders) == ()
    with pytest.raises(RequestError, match="source 'orders' has no partitions"):
        Places(bucket).get(orders._replace(partition=1))


def test_partitions_are_spread_over_hosts(bucket: Bucket) -> None:
    shards: dict[str, tuple[int, ...]] = {"a": (0, 1, 2), "b": (3, 4, 5), "c": (6, 7, 8)}
    bucket.create(ASSIGNMENT, [encode(AssignmentRecord(revision=1, leader="a", count=9, shards=shards))])
    for number in range(20):
        found = Places(bucket).partitions(source(number), 6, wanted=7)
        assert found[0] == 7
        for turn in (found[:3], found[3:]):
            assert {shard // 3 for shard in turn} == {0, 1, 2}
