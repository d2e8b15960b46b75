"""A store that does not honour conditions is found out."""

import time
from collections.abc import Sequence
from uuid import uuid4

import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.objects import Bucket
from penstock.bucket.probe import LEFT_BEHIND_SECONDS, PREFIX, probe
from penstock.bucket.stores import open_bucket
from penstock.core.errors import BucketFailed, BucketForbidden, BucketUnreachable, BucketUnsuitable
from tests.bucket.scripted_store import CarelessBucket


def test_a_suitable_store_passes_and_nothing_is_left_behind(bucket: Bucket) -> None:
    counted = CountedBucket(bucket)
    probe(counted)
    assert list(bucket.list("")) == []
    assert sum(counted.counts().requests.values()) == 8


@pytest.mark.parametrize(
    ("ignores", "sentence"),
    [
        ("create-only", "the store overwrites an object that was to be created only"),
        ("compare", "the store replaces an object that has changed in the meantime"),
        ("match", "the store refuses to replace an object that has not changed"),
        ("found", "the store does not find an object that was just written"),
        ("writes", "the store replaces an object that has changed in the meantime"),
    ],
)
def test_an_unsuitable_store_is_refused_with_what_it_does(ignores: str, sentence: str) -> None:
    plain = open_bucket(f"memory://{uuid4().hex}")
    with pytest.raises(BucketUnsuitable, match=sentence) as caught:
        probe(CarelessBucket(plain, ignores=ignores))
    assert "conditional writes" in caught.value.hint
    assert list(plain.list("")) == []


@pytest.mark.parametrize("error", [BucketForbidden, BucketUnsuitable, BucketUnreachable])
def test_a_store_in_which_nothing_can_be_deleted_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: type[BucketFailed]
) -> None:
    bucket = open_bucket(f"memory://{uuid4().hex}")

    def delete(_: Sequence[str]) -> None:
        raise error("the store answered")

    monkeypatch.setattr(bucket, "delete", delete)
    with pytest.raises(error, match="the store answered"):
        probe(bucket)


def test_what_dead_probes_have_left_is_removed() -> None:
    bucket = open_bucket(f"memory://{uuid4().hex}")
    now = int(time.time())
    bucket.create(f"{PREFIX}{now - LEFT_BEHIND_SECONDS - 1}-dead", [b"1"])
    bucket.create(f"{PREFIX}{now}-at-work", [b"1"])
    bucket.create("cluster/problem", [b"1"])
    probe(bucket)
    assert sorted(each.key for each in bucket.list("")) == [f"{PREFIX}{now}-at-work", "cluster/problem"]
