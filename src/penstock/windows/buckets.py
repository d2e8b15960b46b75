"""Buckets of keys: the unit in which state is stored, visited and moved between tasks.

Spark sends a row to the partition `murmur3(bucket) mod partitions`. Murmur3 of an int is a bijection, so every
number is the hash of exactly one int: with those ints as the buckets' ids, bucket i goes to partition i mod
partitions, whatever their number is. The ids depend on nothing else: a checkpoint can be moved to another machine.
"""

from functools import cache

from penstock.core.errors import RequestError

BUCKETS = 16
"""The maximum number of tasks that share the work. Each costs a visit in every epoch, even without data."""

BUCKETS_MAX = 4096
"""Each is a control row in every epoch, and an entry in the worker's metrics."""

_SEED = 42
_BITS_32 = 0xFFFFFFFF


def check_buckets(count: int) -> int:
    """Raises RequestError."""
    if type(count) is not int or not 1 <= count <= BUCKETS_MAX:
        raise RequestError(f"buckets={count!r} is not valid", f"Choose a whole number from 1 to {BUCKETS_MAX}.")
    return count


@cache
def bucket_ids(count: int) -> tuple[int, ...]:
    """The id of each bucket, by its number."""
    return tuple(_with_hash(number) for number in range(count))


def _with_hash(value: int) -> int:
    """The 32-bit int whose Murmur3 hash (Spark's seed) is `value`: the steps of the hash, undone from the last one."""
    mixed = _undo_shift(value, 16)
    mixed = _undo_shift(_divided(mixed, 0xC2B2AE35), 13)
    mixed = _undo_shift(_divided(mixed, 0x85EBCA6B), 16)
    mixed ^= 4  # the length in bytes
    mixed = _rotated_right(_divided(mixed - 0xE6546B64, 5), 13) ^ _SEED
    mixed = _rotated_right(_divided(mixed, 0x1B873593), 15)
    found = _divided(mixed, 0xCC9E2D51)
    return found - (1 << 32) if found >> 31 else found


def _divided(value: int, factor: int) -> int:
    """The number that, multiplied by the odd factor, equals the value modulo 2^32."""
    return value * pow(factor, -1, 1 << 32) & _BITS_32


def _undo_shift(value: int, bits: int) -> int:
    """The x for which x ^ (x >> bits) is the value."""
    found = value
    for shift in range(bits, 32, bits):
        found ^= value >> shift
    return found


def _rotated_right(value: int, bits: int) -> int:
    return (value >> bits | value << (32 - bits)) & _BITS_32
