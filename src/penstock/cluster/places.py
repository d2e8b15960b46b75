"""In which shard a thing is: a source, a pipeline, a segment of its own, or the application.

A place is written once, create-only, when the thing is first named: `cluster/places/KIND/NAME`. The shard is chosen by
rendezvous hashing over the shards that exist then. Places never change, so whoever has read one never reads it again.
"""

from collections.abc import Collection
from enum import Enum
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote

from penstock.bucket.objects import Bucket, ObjectExists
from penstock.cluster.records import (
    ASSIGNMENT,
    SHARDS,
    AssignmentRecord,
    PlaceRecord,
    encode,
    read_record,
)

PLACES = "cluster/places/"

_KNOWN_MAX = 100_000
"""Places that are remembered: some 20 MB. The oldest is read again when it is needed."""


_KEY_CHARS_MAX = 240
"""Of a name in a key, quoted: stores allow 1,024 bytes, and file systems 255."""


class Kind(Enum):
    SOURCE = "source"
    PIPELINE = "pipeline"
    SEGMENT = "segment"
    APPLICATION = "application"


class Thing(NamedTuple):
    kind: Kind
    name: str

    @property
    def key(self) -> str:
        name = quote(self.name, safe="")
        if len(name) > _KEY_CHARS_MAX:
            name = f"long/{blake2b(self.name.encode(), digest_size=32).hexdigest()}"  # quoted names have no slash
        return f"{PLACES}{self.kind.value}/{name}"

    def __str__(self) -> str:
        return "the application" if self.kind is Kind.APPLICATION else f"{self.kind.value} {self.name!r}"


APPLICATION = Thing(Kind.APPLICATION, "default")
"""A cluster has one, as a worker has."""


def choose(thing: Thing, shards: Collection[int]) -> int:
    """The shard with the highest hash: a further shard changes the choice for its own share of the things only."""
    return max(shards, key=lambda shard: (_weight(thing, shard), shard))


def _weight(thing: Thing, shard: int) -> bytes:
    return blake2b(f"{thing.kind.value}/{thing.name}/{shard}".encode(), digest_size=8).digest()


class Places:
    """Reads and writes places. May be used by several threads; each call may make requests."""

    def __init__(self, bucket: Bucket, own: int | None = None) -> None:
        """`own`: the shard of this process, which exists even if nobody has served it yet."""
        self._bucket = bucket
        self._own = () if own is None else (own,)
        self._known: dict[Thing, int] = {}
        self._lock = Lock()

    def known(self, thing: Thing) -> int | None:
        """Without a request; None if it would take one."""
        return self._known.get(thing)

    def find(self, thing: Thing) -> int | None:
        """None if it has no place. Raises what the store raises."""
        shard = self._known.get(thing)
        if shard is None and (found := read_record(self._bucket, thing.key, PlaceRecord)) is not None:
            shard = self._remember(thing, found[0].shard)
        return shard

    def get(self, thing: Thing, wanted: int | None = None) -> int:
        """Its shard. One without a place gets one, in the wanted shard if one is named. Raises as the store does."""
        if (shard := self.find(thing)) is not None:
            return shard
        shard = choose(thing, self.shards()) if wanted is None else wanted
        try:
            self._bucket.create(thing.key, [encode(PlaceRecord(shard=shard))])
        except ObjectExists:  # by another process, or by an earlier try
            found = read_record(self._bucket, thing.key, PlaceRecord)
            assert found is not None, "places are not deleted"
            shard = found[0].shard
        return self._remember(thing, shard)

    def likely(self, thing: Thing) -> int:
        """Its shard, or where it would be placed. Writes nothing."""
        shard = self.find(thing)
        return choose(thing, self.shards()) if shard is None else shard

    def shards(self) -> list[int]:
        """Those that exist. Without hosts, those that were started by hand."""
        found = read_record(self._bucket, ASSIGNMENT, AssignmentRecord)
        if found is not None and found[0].count:
            return sorted({*range(found[0].count), *self._own})
        numbers = (one.key.removeprefix(SHARDS) for one in self._bucket.list(SHARDS))
        return sorted({*self._own, *(int(number) for number in numbers if number.isdigit())}) or [0]

    def _remember(self, thing: Thing, shard: int) -> int:
        with self._lock:
            self._known[thing] = shard
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return shard
