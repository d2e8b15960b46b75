"""The registry of the streams of a source with several partitions, in the journal of partition 0's shard.

Every command that changes the registry is an entry in the segment `connector/SOURCE/claims`, and is answered when it is
durable: so a process that was replaced answers nothing that its successor does not know. From time to time the whole
registry is written, and what was before is removed.
"""

import asyncio
import logging
import struct
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Self

from penstock.core.errors import Damaged
from penstock.core.types import QUOTA
from penstock.ingest.stream_claims import (
    Answer,
    Begin,
    Claim,
    ClaimId,
    Command,
    Full,
    Outcome,
    Replaced,
    StreamClaims,
    encode,
)
from penstock.protocol.stored.names import CONNECTOR_PREFIX
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">I")
_NO_QUOTA = {QUOTA: 2**63 - 1}

SNAPSHOT_BYTES = 2 << 20
"""Of commands, after which the registry is written as a whole: some 60,000 of them. The next process reads them all
before it answers anything, in a fraction of a second.
"""

SNAPSHOT_BYTES_PER_STREAM = 32
"""The same for each stream: about as much as writing it takes, so that snapshots at most double what is written."""

_ROWS_PER_PART = 10_000
"""Of a snapshot, in one append: below 1 MB."""

_ROWS_PER_TURN = 500
"""To read before yielding to the loop: a few milliseconds. There may be millions of them."""


def claims_segment(source: str) -> str:
    return f"{CONNECTOR_PREFIX}{source}/claims"


class StoredClaims:
    """Of one source. In the worker's event loop. Call `open` first."""

    def __init__(self, source: str, store: SegmentStore, durability: Durability, streams_max: int) -> None:
        self.source = source
        self._store = store
        self._durability = durability
        self._streams_max = streams_max
        self._segment = claims_segment(source)
        self._claims = StreamClaims()
        self._bytes_since_snapshot = 0
        self._is_full = False

    async def open(self) -> Self:
        """Read what is stored, while others continue. Raises Damaged if it cannot be read; then it must not be used."""
        if not self._store.exists(self._segment):
            self._store.create(self._segment, _NO_QUOTA, draining=True)
        for count, row in enumerate(self._stored(), 1):
            if self._claims.restore(row):  # also if no process lives long enough to write so many
                self._bytes_since_snapshot += _LENGTH.size + len(row)
            if count % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        return self

    def __len__(self) -> int:
        return len(self._claims)

    async def apply(self, commands: Sequence[Command]) -> list[Answer]:
        """The answers, when everything that they rest on is durable. Raises NoRoom with nothing changed."""
        self._store.journal.check_room(draining=True)
        outcomes = [self._applied(command) for command in commands]
        changed = [command for command, outcome in zip(commands, outcomes, strict=True) if outcome.is_changed]
        if changed:
            self._append([encode(command) for command in changed])
            self._snapshot_if_due()
        await self._durable()
        return [outcome.answer for outcome in outcomes]

    def _applied(self, command: Command) -> Outcome:
        is_new = isinstance(command, Claim) and command.stream_id not in self._claims
        if is_new and len(self._claims) >= self._streams_max:
            if not self._is_full:  # streams are never forgotten, so once is enough
                log.warning("source %r has %d streams already (streams_per_source_max)", self.source, len(self._claims))
            self._is_full = True
            return Outcome(Full(self._streams_max), False)
        return self._claims.apply(command)

    async def held(self, partition: int, term: int) -> dict[int, ClaimId] | Replaced:
        """Streams that the partition has under older terms than this one. An entry is written each time: only an owner
        that was not replaced can do that, and a reply from an older one would miss streams.
        """
        begin = Begin(partition, term)
        answer = self._claims.apply(begin).answer
        if isinstance(answer, Replaced):
            return answer
        self._append([encode(begin)])
        for _ in self._claims.find_held(partition, term):
            await asyncio.sleep(0)
            answer = self._claims.apply(begin).answer
            if isinstance(answer, Replaced):  # meanwhile
                return answer
        found = self._claims.held(partition, term)
        await self._durable()
        return found

    def _append(self, rows: Sequence[bytes]) -> None:
        data = b"".join(part for row in rows for part in (_LENGTH.pack(len(row)), row))
        self._store.append(self._segment, [data], draining=True)
        self._bytes_since_snapshot += len(data)

    async def _durable(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self._durability.after(self._store.journal.end, lambda: None if done.done() else done.set_result(None))
        await done

    def _snapshot_if_due(self) -> None:
        if self._bytes_since_snapshot <= max(SNAPSHOT_BYTES, SNAPSHOT_BYTES_PER_STREAM * len(self._claims)):
            return
        start, rows = self._store.length(self._segment), self._claims.snapshot()
        while part := [*islice(rows, _ROWS_PER_PART)]:
            self._append(part)
        # The truncation follows the snapshot in the journal: it cannot be durable without it. Entries from before the
        # snapshot that are still there change nothing: the rows that follow replace what they have made.
        self._store.truncate(self._segment, start)
        self._bytes_since_snapshot = 0

    def _stored(self) -> Iterator[bytes]:
        info = self._store.info(self._segment)
        at, data = info.start, b""
        while at < info.length:
            more = self._store.read(self._segment, at, info.length - at)
            at += len(more)
            data += more
            data = yield from rows_of(data)
        if data:
            raise Damaged(f"segment {self._segment!r} is not a valid registry of streams: it ends inside an entry")


def rows_of(data: bytes) -> Generator[bytes, None, bytes]:
    """Read the complete entries of these bytes of a registry's segment. Returns the bytes that remain."""
    at = 0
    while at + _LENGTH.size <= len(data):
        end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            break
        yield data[at + _LENGTH.size : end]
        at = end
    return data[at:]
