"""The port `in` of `redis`: a script adds rows to the stream together with the mark of how far the sink is.

A mark is `PIPELINE:INCARNATION:EPOCH ROWS`. The script writes only if the mark is still the one that this process has
seen: neither an answer that was lost nor a worker that was replaced can write rows twice.
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
local mark = redis.call('GET', KEYS[2]) or ''
if mark ~= ARGV[1] then
    return 0
end
local field, key_field, limit, exact = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
for place = 7, #ARGV, 2 do
    local command = {'XADD', KEYS[1]}
    if limit ~= '' then
        command[3], command[4], command[5] = 'MAXLEN', exact, limit
    end
    command[#command + 1] = '*'
    if key_field ~= '' and ARGV[place] ~= '' then
        command[#command + 1], command[#command + 2] = key_field, ARGV[place]
    end
    command[#command + 1], command[#command + 2] = field, ARGV[place + 1]
    redis.call(unpack(command))
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""


class Mark(NamedTuple):
    """How far the sink is."""

    epoch: str
    rows: int

    def __str__(self) -> str:
        return f"{self.epoch} {self.rows}"

    @classmethod
    def parse(cls, text: str) -> "Mark | None":
        epoch, _, rows = text.rpartition(" ")
        return cls(epoch, int(rows)) if epoch and rows.isdigit() else None


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
            written = await self._written(epoch)
            row = 0
            async for block in epoch.blocks():
                await self._write(epoch.name, block, row, written)
                row += len(block)

    async def close(self) -> None:
        self._mark = None
        await self._client.aclose()

    async def _written(self, epoch: Epoch) -> int:
        """How many rows of the epoch are there."""
        if self._mark is None:
            found: Any = await self._client.get(self._key)
            if found is None and epoch.start:
                self._note_loss()
            self._mark = "" if found is None else found.decode()
        mark = Mark.parse(self._mark)
        return mark.rows if mark is not None and mark.epoch == epoch.name else 0

    def _note_loss(self) -> None:
        reason = f"Redis at {self._options.place} has lost the sink's mark, the key {self._key!r}"
        if self._options.when_lost == "fail":
            raise SinkLost(
                f"{reason}: what was written before may be lost, too",
                "Restore Redis' data, or accept the loss with `when_lost: continue`.",
            )
        log.warning("%s: the sink goes on with the current epoch", reason)

    async def _write(self, epoch: str, block: Block, first: int, written: int) -> None:
        skipped = min(len(block), max(0, written - first))
        pairs = [*zip(block.keys.rows(), block.values.rows(), strict=True)][skipped:]
        end = first + skipped
        for chunk in chunks(pairs):
            end += len(chunk)
            await self._add(Mark(epoch, end), chunk)

    async def _add(self, mark: Mark, chunk: Sequence[Pair]) -> None:
        options = self._options
        limit, exact = "" if options.maxlen is None else str(options.maxlen), "=" if options.exact_maxlen else "~"
        arguments: list[Any] = [self._mark, str(mark), options.field, options.key_field, limit, exact]
        arguments += [part for pair in chunk for part in pair]
        if not await self._script(keys=[options.stream, self._key], args=arguments):
            raise SinkLost(
                f"Redis at {options.place}: the mark {self._key!r} was changed by another process",
                "Stop the other worker that writes as this sink.",
            )
        self._mark = str(mark)

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
