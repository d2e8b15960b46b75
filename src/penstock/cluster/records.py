"""The small objects that say which worker owns a shard, that it lives, and who is to have which shard.

    cluster/workers/W   written by worker W alone, every two seconds with the next revision; its last one says that it
                        has ended, also if another worker has to write that; deleted by the next owner of its shard
    cluster/shards/S    the owner of shard S and its term; changes at a take-over, and when an owner gives the shard up
                        for a successor
    cluster/assignment  which host is to serve which shard; written by the leader
    cluster/places/…    the shard of a source, a pipeline or the application; create-only

W is unique to one run of a worker.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import Damaged, UnreadableFormat

FORMAT = 1
WORKERS = "cluster/workers/"
SHARDS = "cluster/shards/"
ASSIGNMENT = "cluster/assignment"
READERS = 16
"""Requests at a time for all records of a kind. One after the other, the leader of 18 workers with 10 shards each would
need more than 6 s to look at them.
"""
NAME_LENGTH_MAX = 60
"""Of a worker's name within its id, which is part of a key."""

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9.-]+")


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    worker: str
    revision: int
    """Grows with every renewal."""
    addresses: dict[str, str]
    """By port: where others reach it."""
    shards: tuple[int, ...] | None = None
    """Which shards it serves, as a hint that `cluster/shards/S` may have changed; None from an older version."""
    waits_for: tuple[int, ...] = ()
    """Which shards it waits for, as a standby."""
    moving_to: str = ""
    """An owner's: the worker for which it is about to give up its shard."""
    ready_for: str = ""
    """A standby's: the owner whose `moving_to` it has seen, and for whose release it now waits."""
    is_drained: bool = False
    """It was drained, and takes over only if no other worker does."""
    wants: int | None = None
    """A host's: how many shards it adds to the cluster; 0 for one that only takes over. None: not a host."""
    host: str = ""
    """A shard process's: the host that has started it; "" for one that was started by hand."""
    machine: str = ""
    """See `this_machine`."""
    assignment: int = 0
    """A host's: the revision of the assignment that it knows. Others need not read that again while it is the same."""
    has_ended: bool = False
    """It has stopped, or was taken for dead: whoever waits for its shard need not wait any longer."""


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    shard: int
    owner: str
    term: int
    """Grows with every take-over."""
    successor: str = ""
    """The owner has given the shard up for this worker; others wait for it as long as for a lease."""
    resumed: int = 0
    """How often the owner was late and has gone on. A candidate that has decided to take over before that, and slept
    since, finds another version of the record.
    """


class PlaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    shard: int
    others: tuple[int, ...] = ()
    """Of a source with several partitions: the shards of those after partition 0, which is in `shard`."""


class AssignmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    revision: int
    """Grows with every write."""
    leader: str
    """The host that has written it."""
    count: int
    """How many shards the cluster has: 0 to count - 1. Never shrinks."""
    shards: dict[str, tuple[int, ...]]
    """By host, in order. By host and not by shard, so that a host's name is there once: with 1,000 hosts and 10,000
    shards that is a tenth of the bytes, and every host reads them.
    """


Record = TypeVar("Record", WorkerRecord, ShardRecord, AssignmentRecord, PlaceRecord)


_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (WorkerRecord, ShardRecord, AssignmentRecord, PlaceRecord)
}
"""Made here, in one thread: msgspec analyses a type when it first decodes it, and several threads read records."""


class _Format(msgspec.Struct):
    format: int | None = None


def worker_id(name: str) -> str:
    """A new id for one run of the worker of this name, which is a host or whatever helps people to find it."""
    return f"{_NOT_IN_KEYS.sub('-', name)[:NAME_LENGTH_MAX]}-{uuid4().hex[:12]}"


def worker_key(worker: str) -> str:
    return f"{WORKERS}{worker}"


def shard_key(shard: int) -> str:
    return f"{SHARDS}{shard}"


def encode(record: WorkerRecord | ShardRecord | AssignmentRecord | PlaceRecord) -> bytes:
    return msgspec.json.encode(record)


def read_record(bucket: Bucket, key: str, kind: type[Record]) -> tuple[Record, str] | None:
    """The record and its version; None if there is none. Raises UnreadableFormat and Damaged."""
    try:
        found = bucket.get(key)
    except NoSuchObject:
        return None
    return decode(found.data, kind, f"{bucket.url}/{key}"), found.version


def read_records(
    bucket: Bucket, prefix: str, kind: type[Record], meanwhile: Callable[[], None] = lambda: None
) -> list[Record]:
    """All records below the prefix, in the order of their keys, several at a time. Raises like `read_record`.
    `meanwhile` is called often.
    """
    keys, found = sorted(each.key for each in bucket.list(prefix)), list[Record]()
    with ThreadPoolExecutor(READERS, thread_name_prefix="records") as readers:
        for record in readers.map(lambda key: read_record(bucket, key, kind), keys):
            meanwhile()
            if record is not None:
                found.append(record[0])
    return found


def decode(data: bytes, kind: type[Record], where: str) -> Record:
    """`where` is for messages. Fields that a later version may add are ignored."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found != FORMAT:
            raise UnreadableFormat(where, found, FORMAT, "Use another prefix of the bucket.")
        return cast("Record", _DECODERS[kind].decode(data))
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"{where} is not valid: {error}", "Stop all workers on the bucket, then delete this object."
        ) from None
