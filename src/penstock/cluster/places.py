"""In which shard a thing is: a source, a pipeline, a segment of its own, or the application.

A place is written once, create-only, when the thing is first named: `cluster/places/KIND/NAME`. The shard is chosen by
rendezvous hashing over the shards that exist then. Places never change, so whoever has read one never reads it again.

A source with several partitions has one place, too, which names the shards of all of them: their number and their
shards are decided together, by whoever is first. No two partitions of a source are in one shard.
"""

from collections import Counter
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
from penstock.core.errors import RequestError

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
    partition: int = 0
    """Of a source."""

    @property
    def key(self) -> str:
        name = quote(self.name, safe="")
        if len(name) > _KEY_CHARS_MAX:
            name = f"long/{blake2b(self.name.encode(), digest_size=32).hexdigest()}"  # quoted names have no slash
        return f"{PLACES}{self.kind.value}/{name}"

    def __str__(self) -> str:
        shown = "the application" if self.kind is Kind.APPLICATION else f"{self.kind.value} {self.name!r}"
        return f"partition {self.partition} of {shown}" if self.partition else shown


APPLICATION = Thing(Kind.APPLICATION, "default")
"""A cluster has one, as a worker has."""


def choose(thing: Thing, shards: Collection[int]) -> int:
    """The shard with the highest hash: a further shard changes the choice for its own share of the things only."""
    return _ranked(thing, shards)[0]


def _ranked(thing: Thing, shards: Collection[int]) -> list[int]:
    return sorted(shards, key=lambda shard: (_weight(thing, shard), shard), reverse=True)


def _weight(thing: Thing, shard: int) -> bytes:
    return blake2b(f"{thing.kind.value}/{thing.name}/{shard}".encode(), digest_size=8).digest()


class Places:
    """Reads and writes places. May be used by several threads; each call may make requests."""

    def __init__(self, bucket: Bucket, own: int | None = None) -> None:
        """`own`: the shard of this process, which exists even if no worker has served it yet."""
        self._bucket = bucket
        self._own = () if own is None else (own,)
        self._known: dict[Thing, tuple[int, ...]] = {}
        """Its shards; more than one for a source with several partitions."""
        self._lock = Lock()

    def known(self, thing: Thing) -> int | None:
        """Without a request; None if it would take one."""
        found = self._known.get(thing._replace(partition=0))
        return None if found is None else _shard(thing, found)

    def known_partitions(self, thing: Thing) -> tuple[int, ...] | None:
        return self._known.get(thing)

    def find(self, thing: Thing) -> int | None:
        """None if it has no place. Raises what the store raises."""
        found = self._find(thing._replace(partition=0))
        return None if found is None else _shard(thing, found)

    def find_partitions(self, thing: Thing) -> tuple[int, ...]:
        """The shards of its partitions; none if it has no place. Raises what the store raises."""
        return self._find(thing) or ()

    def _find(self, thing: Thing) -> tuple[int, ...] | None:
        shards = self._known.get(thing)
        if shards is None and (found := read_record(self._bucket, thing.key, PlaceRecord)) is not None:
            shards = self._remember(thing, found[0])
        return shards

    def get(self, thing: Thing, wanted: int | None = None) -> int:
        """Its shard. One without a place gets one, in the wanted shard if one is named. Raises as the store does."""
        if thing.partition:
            shard = self.find(thing)
            if shard is None:
                raise RequestError(f"{thing._replace(partition=0)} has no partitions", "Use its name without a number.")
            return shard
        return self.partitions(thing, 1, wanted)[0]

    def partitions(self, thing: Thing, count: int, wanted: int | None = None) -> tuple[int, ...]:
        """The shards of its partitions. Without a place, it gets so many, the first one in the wanted shard. Raises as
        the store does, and RequestError if there are not enough shards.
        """
        if (found := self._find(thing)) is not None:
            return found
        ranked = _ranked(thing, self._enough_shards(thing, count))
        if wanted is not None:
            ranked = [wanted, *(one for one in ranked if one != wanted)]
        if count > 1:
            ranked = self._spread(ranked)
        record = PlaceRecord(shard=ranked[0], others=tuple(ranked[1:count]))
        try:
            self._bucket.create(thing.key, [encode(record)])
        except ObjectExists:  # by another process, or by an earlier try
            existing = read_record(self._bucket, thing.key, PlaceRecord)
            assert existing is not None, "places are not deleted"
            record = existing[0]
        return self._remember(thing, record)

    def check_count(self, thing: Thing, count: int) -> None:
        """Whether `partitions` could place it. Writes nothing. Raises like that."""
        if self._find(thing) is None:
            self._enough_shards(thing, count)

    def _enough_shards(self, thing: Thing, count: int) -> list[int]:
        shards = self.shards()
        if count > len(shards):
            raise RequestError(
                f"{thing} is to have {count} partitions, and the cluster has only {len(shards)} shards",
                "Start more workers first (--shards), or declare fewer partitions: their number never changes.",
            )
        return shards

    def _spread(self, ranked: list[int]) -> list[int]:
        """In turn one of each host, as far as the shards are assigned now."""
        found = read_record(self._bucket, ASSIGNMENT, AssignmentRecord)
        hosts = {shard: host for host, own in found[0].shards.items() for shard in own} if found is not None else {}
        turns, turn = Counter[str](), dict[int, int]()
        for shard in ranked:
            host = hosts.get(shard, f"shard {shard}")
            turn[shard] = turns[host]
            turns[host] += 1
        return sorted(ranked, key=lambda shard: turn[shard])  # stable

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

    def _remember(self, thing: Thing, record: PlaceRecord) -> tuple[int, ...]:
        with self._lock:
            self._known[thing] = shards = (record.shard, *record.others)
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return shards


def _shard(thing: Thing, shards: tuple[int, ...]) -> int:
    """A partition that does not exist is looked for in partition 0's shard, which does not have it."""
    return shards[thing.partition if thing.partition < len(shards) else 0]
