"""The port `in` of `redis`: a script adds rows to the stream together with the mark of how far the sink is.

A mark is `PIPELINE:INCARNATION:EPOCH ROWS TIME`. The script writes only if the mark is still the one that this process
has seen: neither an answer that was lost nor a worker that was replaced can write rows twice.

The id of a row's entry is `TIME-ROW`, with one more for TIME after each 2^20 rows: the same whenever the row is
written, as long as nothing else writes to the stream. Ids that Redis chooses would not do. A server that is killed
while it writes a script to its append-only file keeps the beginning of the script there, and executes it at the next
start but one, when the rows have been written again. With ids of our own, Redis then refuses the second of two equal
rows.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from penstock.connectors.redis.client import connect
from penstock.connectors.redis.options import RedisOptions
from penstock.connectors.sink_api import Block, Epoch, SinkLost

log = logging.getLogger(__name__)

ROWS_MAX = 2000
"""Of one script: a few milliseconds, in which Redis does nothing else."""

BYTES_MAX = 4 << 20
"""Of one script, unless a single row is longer."""

SCRIPT = """
local stream, key = KEYS[1], KEYS[2]
local known, epoch, row, time = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local field, key_field, limit, exact = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if (redis.call('GET', key) or '') ~= known then
    return false
end
local last_ms, last_sequence = 0, 0
if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for place = 1, #info, 2 do
        if info[place] == 'last-generated-id' then
            last_ms, last_sequence = string.match(info[place + 1], '^(%d+)-(%d+)$')
            last_ms, last_sequence = tonumber(last_ms), tonumber(last_sequence)
        end
    end
end
if time == 0 then
    local now = redis.call('TIME')
    time = now[1] * 1000 + math.floor(now[2] / 1000)
end
local first_ms, first_sequence = time + math.floor(row / 1048576), row % 1048576
if first_ms < last_ms or (first_ms == last_ms and first_sequence <= last_sequence) then
    time = time + last_ms + 1 - first_ms
end
for place = 9, #ARGV, 2 do
    local command = {'XADD', stream}
    if limit ~= '' then
        command[3], command[4], command[5] = 'MAXLEN', exact, limit
    end
    command[#command + 1] = string.format('%.0f-%.0f', time + math.floor(row / 1048576), row % 1048576)
    if key_field ~= '' and ARGV[place] ~= '' then
        command[#command + 1], command[#command + 2] = key_field, ARGV[place]
    end
    command[#command + 1], command[#command + 2] = field, ARGV[place + 1]
    redis.call(unpack(command))
    row = row + 1
end
local mark = string.format('%s %.0f %.0f', epoch, row, time)
redis.call('SET', key, mark)
return mark
"""
"""Adds rows to an epoch, and returns the mark. The first call, without rows, gives the epoch its time, after all
entries. It gets a later one if another program has added entries meanwhile.
"""


TIME_UNKNOWN = 0


class Mark(NamedTuple):
    """How far the sink is."""

    epoch: str
    rows: int
    time_ms: int

    def __str__(self) -> str:
        return f"{self.epoch} {self.rows} {self.time_ms}"

    @classmethod
    def parse(cls, text: str) -> "Mark | None":
        epoch, *numbers = text.rsplit(" ", 2)
        return cls(epoch, *map(int, numbers)) if len(numbers) == 2 and all(map(str.isdigit, numbers)) else None


Pair = tuple[bytes, bytes]
"""Key and value."""


def chunks(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """In order, each within the limits of a script."""
    start = size = 0
    for place, (key, value) in enumerate(pairs):
        own = len(key) + len(value)
        if place > start and (place - start >= ROWS_MAX or size + own > BYTES_MAX):
            yield pairs[start:place]
            start, size = place, 0
        size += own
    if start < len(pairs):
        yield pairs[start:]


class RedisSink:
    """A NonVotingSink, exactly once as far as Redis keeps what it has acknowledged. `name` must be the same whenever
    the sink runs.
    """

    def __init__(self, options: RedisOptions, name: str) -> None:
        self._options = options
        self._client = connect(options)
        self._script = self._client.register_script(SCRIPT)
        self._key = f"{options.stream}:penstock:{name}"
        self._mark: str | None = None
        """As Redis has it; None: not known."""

    async def deliver(self, epoch: Epoch) -> None:
        with self._lost():
            mark = await self._begun(epoch)
            row = 0
            async for block in epoch.blocks():
                mark = await self._write(mark, block, row)
                row += len(block)

    async def close(self) -> None:
        self._mark = None
        await self._client.aclose()

    async def _begun(self, epoch: Epoch) -> Mark:
        """The mark of this epoch, which says how many of its rows are there."""
        if self._mark is None:
            found: Any = await self._client.get(self._key)
            if found is None and epoch.start:
                self._note_loss()
            self._mark = "" if found is None else found.decode()
        mark = Mark.parse(self._mark)
        if mark is not None and mark.epoch == epoch.name:
            return mark
        return await self._add(Mark(epoch.name, 0, TIME_UNKNOWN), ())

    def _note_loss(self) -> None:
        reason = f"Redis at {self._options.place} has lost the sink's mark, the key {self._key!r}"
        if self._options.when_lost == "fail":
            raise SinkLost(
                f"{reason}: what was written before may be lost, too",
                "Restore Redis' data, or accept the loss with `when_lost: continue`.",
            )
        log.warning("%s: the sink continues with the current epoch", reason)

    async def _write(self, begun: Mark, block: Block, first: int) -> Mark:
        """The mark after this block."""
        skipped = min(len(block), max(0, begun.rows - first))
        pairs = [*zip(block.keys.rows(), block.values.rows(), strict=True)][skipped:]
        for chunk in chunks(pairs):
            begun = await self._add(begun, chunk)
        return begun

    async def _add(self, mark: Mark, chunk: Sequence[Pair]) -> Mark:
        options = self._options
        limit, exact = "" if options.maxlen is None else str(options.maxlen), "=" if options.exact_maxlen else "~"
        arguments: list[Any] = [self._mark, *mark, options.field, options.key_field, limit, exact]
        arguments += [part for pair in chunk for part in pair]
        written = await self._script(keys=[options.stream, self._key], args=arguments)
        if written is None:
            raise SinkLost(
                f"Redis at {options.place}: the mark {self._key!r} was changed by another process",
                "Stop the other worker that writes as this sink.",
            )
        self._mark = written.decode()
        return Mark.parse(self._mark) or mark

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """After any error the mark is read again: it says what was written."""
        try:
            yield
        except (RedisError, OSError) as error:
            self._mark = None
            raise SinkLost(f"Redis at {self._options.place}: {error}") from error
        except BaseException:
            self._mark = None
            raise
