"""Requests, bytes, rates and problems of a bucket."""

from collections.abc import Sequence

import pytest

from penstock.bucket.counted_bucket import KEYS_PER_REQUEST, RATE_SECONDS, CountedBucket, Rate
from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, StoredObject
from penstock.bucket.stores import open_bucket
from penstock.core.errors import BucketFailed, BucketForbidden, BucketFull, BucketThrottled, BucketUnreachable
from penstock.core.types import Buffer


class FailingBucket:
    """Raises the errors in turn, then finds nothing."""

    url = "memory://failing"

    def __init__(self, *errors: BucketFailed) -> None:
        self._errors = list(errors)

    def get(self, key: str) -> StoredObject:
        raise self._errors.pop(0) if self._errors else NoSuchObject(key)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def counted(name: str) -> CountedBucket:
    return CountedBucket(open_bucket(f"memory://{name}"))


def test_it_is_the_same_bucket() -> None:
    bucket: Bucket = counted("same")
    version = bucket.replace("a", b"2", bucket.create("a", [b"1"]))
    with pytest.raises(ObjectExists):
        bucket.create("a", [b"1"])
    assert bucket.get("a") == (b"2", version)
    assert bucket.get_range("a", 0, 1) == b"2"
    assert [each.key for each in bucket.list("")] == ["a"]
    bucket.delete(["a"])
    assert bucket.url == "memory://same"


def test_requests_are_counted_by_kind_and_bytes_by_direction() -> None:
    bucket = counted("kinds")
    buffers: Sequence[Buffer] = [b"12345", memoryview(b"67890")]
    bucket.create("a", buffers)
    bucket.replace("a", b"123", bucket.get("a").version)
    bucket.get_range("a", 1, 2)
    with pytest.raises(NoSuchObject):
        bucket.get("none")
    list(bucket.list(""))
    bucket.delete(["a", "b"])
    counts = bucket.counts()
    assert counts.requests == {"put": 2, "get": 3, "list": 1, "delete": 1}
    assert (counts.bytes_written, counts.bytes_read) == (13, 12)
    assert (counts.failures, counts.problem) == ({}, None)


def test_lists_and_deletions_count_as_many_requests_as_they_need() -> None:
    plain, bucket = open_bucket("memory://pages"), counted("pages")
    names = [str(number) for number in range(2 * KEYS_PER_REQUEST + 1)]
    for name in names:
        plain.create(name, [])
    assert sorted(each.key for each in bucket.list("")) == sorted(names)
    bucket.delete(names)
    assert bucket.counts().requests == {"list": 3, "delete": 3}


def test_a_problem_lasts_from_the_first_failure_to_the_next_answer() -> None:
    clock = Clock()
    bucket = CountedBucket(FailingBucket(BucketUnreachable("a"), BucketUnreachable("b")), clock)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(BucketUnreachable):
            bucket.get("x")
        clock.now += 2
    problem = bucket.counts().problem
    assert problem is not None
    assert (problem.kind, problem.message, problem.seconds) == ("unreachable", "b", 4.0)
    with pytest.raises(NoSuchObject):
        bucket.get("x")
    assert bucket.counts().problem is None
    assert bucket.counts().failures == {"unreachable": 2}


def test_problems_are_distinguished() -> None:
    errors = [BucketThrottled(""), BucketForbidden(""), BucketFull(""), BucketFailed(""), BucketThrottled("")]
    bucket = CountedBucket(FailingBucket(*errors))  # type: ignore[arg-type]
    for error in errors:
        with pytest.raises(type(error)):
            bucket.get("x")
    assert bucket.counts().failures == {"throttled": 2, "forbidden": 1, "full": 1, "unreachable": 1}


def test_the_rate_is_an_average_over_the_last_seconds() -> None:
    rate = Rate(100.0)
    for tenth in range(1000, 1000 + 10 * RATE_SECONDS):
        rate.add(tenth / 10, 2)
    assert rate.per_second(100.0 + RATE_SECONDS) == 20.0
    assert rate.per_second(100.0 + RATE_SECONDS * 1.5) == 10.0
    assert rate.per_second(100.0 + RATE_SECONDS * 2) == 0.0


def test_the_rate_of_the_first_seconds_is_not_diluted() -> None:
    rate = Rate(100.0)
    rate.add(100.1, 4)
    rate.add(101.1, 4)
    assert rate.per_second(102.0) == 4.0
