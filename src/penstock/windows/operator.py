"""A window operator as its stages know it: picklable, and the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.windows.engine import Plan

# Buckets of keys: the unit in which state is kept, visited and moved between tasks.
#
# Spark sends a row to the partition `murmur3(bucket) mod partitions`. Murmur3 of an int is a bijection, so for every
# number there is the one int whose hash it is: with those as the buckets' ids, bucket i goes to partition i mod
# partitions, whatever their number is. The ids depend on nothing else: a checkpoint can be taken to another machine.

BUCKETS = 16
"""As many tasks can share the work; every one of them costs a visit in every epoch, also without data."""

BUCKETS_MAX = 4096
"""Each is a row of every epoch's control load, and an entry in the worker's metrics."""

_SEED = 42
_BITS_32 = 0xFFFFFFFF


def check_buckets(count: int) -> int:
    """Raises RequestError."""
    if type(count) is not int or not 1 <= count <= BUCKETS_MAX:
        raise RequestError(f"{count!r} buckets", f"Give a whole number from 1 to {BUCKETS_MAX}.")
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
    """What, multiplied by the odd factor, gives the value modulo 2^32."""
    return value * pow(factor, -1, 1 << 32) & _BITS_32


def _undo_shift(value: int, bits: int) -> int:
    """What x was when x ^ (x >> bits) is the value."""
    found = value
    for shift in range(bits, 32, bits):
        found ^= value >> shift
    return found


def _rotated_right(value: int, bits: int) -> int:
    return (value >> bits | value << (32 - bits)) & _BITS_32


class Kind(IntEnum):
    """Of rows that enter the state, or leave it."""

    PARTIALS = 0
    """Enter: what a task has made of its rows, for one bucket."""
    CONTROL = 1
    """Enter: the epoch's word."""
    LETTERS = 2
    """Pass through: of an earlier stage."""
    TIMELESS = 3
    """Pass through: rows without an event time."""
    PANES = 4
    """Leave."""
    LATE = 5
    """Leave."""


ENTERING = "bucket int, kind int, data binary, epoch bigint, before bigint, watermark bigint"
LEAVING = "kind int, data binary, part int"

BLOB_BYTES = 8 << 20
"""Tables travel in pieces of about so much: Spark holds several copies of a row, each in one piece of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    plan: Plan
    worker: str
    """Its HTTP address."""
    pipeline: str
    generation: int | None
    tls: tuple[str | None, str | None, str | None]
    carried: tuple[str, ...]
    """Which field of a letter each of the columns c0, c1, … is."""
    repeats: bool
    """Whether several rows may be of one event: it leaves late once all the same."""
    output: pa.Schema
    """Of what leaves, letters among it."""

    @property
    def ids(self) -> tuple[int, ...]:
        return bucket_ids(self.plan.buckets)


def written(table: pa.Table) -> Iterator[bytes]:
    """As Arrow IPC streams, in pieces; nothing of an empty table."""
    rows = max(1, int(table.num_rows * BLOB_BYTES / max(table.nbytes, 1)))
    for start in range(0, table.num_rows, rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(start, rows))
        yield sink.getvalue().to_pybytes()


def read(data: bytes | pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def as_batch(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
