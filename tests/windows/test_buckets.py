"""Buckets are distributed evenly over any number of shuffle partitions."""

import pytest

from penstock.core.errors import RequestError
from penstock.windows.buckets import BUCKETS_MAX, bucket_ids, check_buckets

BITS_32 = 0xFFFFFFFF


def murmur3(value: int, seed: int = 42) -> int:
    """Spark's hash of an int, implemented from the definition of the algorithm."""
    key = (value & BITS_32) * 0xCC9E2D51 & BITS_32
    key = (key << 15 | key >> 17) & BITS_32
    mixed = seed ^ (key * 0x1B873593 & BITS_32)
    mixed = (mixed << 13 | mixed >> 19) & BITS_32
    mixed = (mixed * 5 + 0xE6546B64 & BITS_32) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & BITS_32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & BITS_32
    return mixed ^ mixed >> 16


def test_the_hash_of_a_bucket_id_is_the_number_of_the_bucket() -> None:
    ids = bucket_ids(BUCKETS_MAX)
    assert [*map(murmur3, ids)] == [*range(BUCKETS_MAX)]
    assert all(-(2**31) <= number < 2**31 for number in ids)


def test_the_ids_of_fewer_buckets_are_a_prefix_of_those_of_more() -> None:
    assert bucket_ids(3) == bucket_ids(64)[:3]


@pytest.mark.parametrize("count", [0, -1, BUCKETS_MAX + 1, 1.5, True, "8"])
def test_an_invalid_number_of_buckets_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match="buckets") as caught:
        check_buckets(count)
    assert "from 1 to 4096" in caught.value.hint
