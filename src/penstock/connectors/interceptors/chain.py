"""All interceptors of one stream, one after the other.

peer ──▶ first ──▶ … ──▶ last ──▶ events            IncomingChain: bytes in, records out
peer ◀── last ◀── … ◀── first ◀── events            OutgoingChain: values in, fewer or as many out
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.connectors.interceptors.api import (
    FEED_BYTES,
    BadBytes,
    Incoming,
    OutgoingInterceptor,
    Rejected,
)

if TYPE_CHECKING:
    from penstock.protocol.stored.bulk import Bytes  # here: kernels take a second to import

WAITING_BYTES_MAX = 16 << 20
"""Whole records that a stream that resumes may buffer until there is a position between records in its raw bytes."""


class IncomingChain:
    """From the peer's bytes to records. Without interceptors each piece that is fed is a record.

    The first `consumed` raw bytes have become records that have all been returned, and no returned record contains a
    byte after them: a peer that continues there repeats nothing and omits nothing. Where one interceptor's records
    cross those of the next, a stream that `resumes` buffers records until that is true.

    If the first interceptors transform the stream as a whole (decompression), positions count the bytes behind them,
    since nothing can be decompressed from its middle: the peer is read from its beginning (`is_transformed`), and the
    bytes up to `position` are left out again.
    """

    def __init__(self, stages: Sequence[Incoming] = (), *, resumes: bool = False, position: int = 0) -> None:
        """`position`: how many raw bytes of the stream came before the first that is fed."""
        self._stages = tuple(stages)
        self._head = len([*takewhile(lambda stage: stage.is_transform, stages)])
        self._resumes = resumes
        self._is_timed = any(stage.is_timed for stage in stages)
        self._only = stages[0] if len(stages) == 1 and not self._head else None
        self._fed, self._consumed = 0 if self._head else position, position
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    @property
    def consumed(self) -> int:
        return self._consumed

    @property
    def is_transformed(self) -> bool:
        """Whether positions are not those of the raw bytes: the peer is always read from its beginning."""
        return self._head > 0

    @property
    def buffered(self) -> int:
        """Raw bytes that were fed and are not in a returned record."""
        return max(0, self._fed - self._consumed)

    @property
    def feed_bytes(self) -> int:
        """The most that should be fed at once."""
        return min((stage.feed_bytes for stage in self._stages), default=FEED_BYTES)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that are complete now. Raises BadBytes with the records before the bad bytes, also those
        that later interceptors have buffered, and with everything that is left: nothing is fed afterwards.
        """
        if self._only is not None and (found := self._only.feed_whole([data])) is not None:
            self._passed(len(data), self._only)
            return found
        records, failures = self._through([data], is_end=False)
        if failures:
            raise self._failure(records, failures)
        return self._released(records)

    @property
    def is_timed(self) -> bool:
        """Whether `wait_seconds` is ever anything but None."""
        return self._is_timed

    def wait_seconds(self) -> float | None:
        """How long what the interceptors buffer may still wait: `expire` is due then, if nothing is fed before."""
        waits = [stage.wait_seconds() for stage in self._stages if stage.is_timed]
        return min((wait for wait in waits if wait is not None), default=None)

    def expire(self) -> None:
        """Reject what has waited too long."""
        for stage in self._stages:
            stage.expire()

    def feed_columns(self, data: bytes) -> "Bytes | None":
        """As `feed`, if its only interceptor can return columns; None: it was not fed."""
        found = self._only.feed_columns(data) if self._only is not None else None
        if found is not None and self._only is not None:
            self._passed(len(data), self._only)
        return found

    def _passed(self, size: int, only: Incoming) -> None:
        """As in `_released`, for one interceptor."""
        self._fed += size
        self._consumed = max(self._consumed, self._fed - only.buffered)

    def take_rejected(self) -> list[Rejected]:
        """Records that an interceptor could not convert since the last call: each is a dead letter."""
        return [one for stage in self._stages for one in stage.take_rejected()]

    def _entered(self, number: int, pieces: list[bytes]) -> list[bytes]:
        """What interceptor `number` is fed: positions are counted where the stream has its final form."""
        if number != self._head:
            return pieces
        position, self._fed = self._fed, self._fed + sum(map(len, pieces))
        if position >= self._consumed:
            return pieces
        data = b"".join(pieces)[self._consumed - position :]
        return [data] if data else []

    def finish(self) -> list[bytes]:
        """The peer has sent everything: what is buffered becomes records, as far as possible. Raises BadBytes with the
        rest, and with the records. The chain is empty afterwards, and may be fed again.
        """
        records, failures = self._through([], is_end=True)
        if failures:
            raise self._failure(records, failures)
        return self._let_go(records)

    def _through(self, records: list[bytes], *, is_end: bool) -> tuple[list[bytes], dict[int, BadBytes]]:
        """The records behind the last interceptor, and the failures by the interceptors' numbers. Behind a failure the
        stream is cut off: whole records that later interceptors have buffered came before the bad bytes, and are
        handed on. One that is not whole may have continued in them, and is part of the dead letter.
        """
        failures: dict[int, BadBytes] = {}
        for number, stage in enumerate(self._stages):
            records, bad = _fed(stage, self._entered(number, records))
            if failures:
                whole, rest = stage.cut_off()
                records = records + whole
                if bad is not None or rest:
                    bad = BadBytes("cut off" if bad is None else str(bad), rest + (b"" if bad is None else bad.data))
            elif bad is None and is_end:
                last, bad = _finished(stage)
                records = records + last
            if bad is not None:
                failures[number] = bad
        return self._entered(len(self._stages), records), failures

    def cut_off(self) -> tuple[list[bytes], bytes]:
        """There is no more, perhaps in the middle of a record: returns the whole records that the interceptors have
        buffered, and the rest in its current form; empty if there is nothing. The chain is empty afterwards. Records
        that waited for a position to resume at are left out: they are read again.
        """
        records: list[bytes] = []
        rests: list[bytes] = []
        for stage in self._stages:
            records, bad = _fed(stage, records)
            whole, rest = stage.cut_off()
            records += whole
            rests.append(rest if bad is None else rest + bad.data)
        self._let_go([])
        return records, b"".join(reversed(rests))

    def _released(self, records: list[bytes]) -> list[bytes]:
        body = self._stages[self._head :]
        between = any(stage.buffered for stage in body[1:])
        if not between and self._fed > self._consumed:
            self._consumed = self._fed - (body[0].buffered if body else 0)
        if not (between and self._resumes):
            return self._with_waiting(records)
        self._waiting += records
        self._waiting_bytes += sum(map(len, records))
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise self._failure([], {0: BadBytes(_NO_PLACE, _left(self._stages[0]))})
        return []

    def _failure(self, records: list[bytes], failures: dict[int, BadBytes]) -> BadBytes:
        """The failure, with all records: those behind an interceptor are older than those in front of it."""
        numbers = reversed(range(len(self._stages)))
        data = b"".join(failures[n].data if n in failures else _left(self._stages[n]) for n in numbers)
        return BadBytes(str(failures[min(failures)]), data, self._let_go(records))

    def _let_go(self, records: list[bytes]) -> list[bytes]:
        self._consumed = max(self._fed, self._consumed)
        return self._with_waiting(records)

    def _with_waiting(self, records: list[bytes]) -> list[bytes]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting + records if waiting else records


_NO_PLACE = f"no position between records to resume from in {WAITING_BYTES_MAX:,} bytes"


def _fed(stage: Incoming, records: list[bytes]) -> tuple[list[bytes], BadBytes | None]:
    """The interceptor's records; if some bytes are bad, also these with everything after them."""
    whole = stage.feed_whole(records)
    if whole is not None:
        return whole, None
    results: list[bytes] = []
    for at, record in enumerate(records):
        try:
            results += stage.feed(record)
        except BadBytes as bad:
            return results + bad.records, BadBytes(str(bad), bad.data + b"".join(records[at + 1 :]))
    return results, None


def _finished(stage: Incoming) -> tuple[list[bytes], BadBytes | None]:
    try:
        return stage.finish(), None
    except BadBytes as bad:
        return bad.records, bad


def _left(stage: Incoming) -> bytes:
    if not stage.buffered:
        return b""
    records, bad = _finished(stage)
    return b"".join(records) + (bad.data if bad is not None else b"")


@dataclass(slots=True)
class _Outgoing:
    """An interceptor, with how many of the chain's values end in each of those that wait in it."""

    interceptor: OutgoingInterceptor
    waiting: list[int] = field(default_factory=list)

    def counted(self, counts: list[int]) -> list[int]:
        """For each result of the last call: how many of the chain's values end in it."""
        own = self.interceptor.counts
        if own is None:
            return counts
        ends = self.waiting + counts
        found, at = [], 0
        for one in own:
            found.append(ends[at] if one == 1 else sum(ends[at : at + one]))
            at += one
        self.waiting = ends[at:]
        return found


class OutgoingChain:
    """From values to what the peer receives. Without interceptors they leave unchanged.

    The owner checks `wait_seconds` after each call: if values wait, `flush` is due that long after the last `feed` that
    returned a result, or the first since the chain was empty.
    """

    def __init__(self, interceptors: Sequence[OutgoingInterceptor] = ()) -> None:
        self._stages = [_Outgoing(interceptor) for interceptor in interceptors]
        self._counts: list[int] = []
        self._buffered = 0

    @property
    def buffered(self) -> int:
        """Values that were fed and are in no result yet."""
        return self._buffered

    @property
    def counts(self) -> list[int]:
        """For the last `feed` or `flush`: how many of the values, earlier ones first, end in each result."""
        return self._counts

    @property
    def wait_seconds(self) -> float | None:
        """How long buffered values may wait, counted from the first; None: nothing waits, or only for `flush`."""
        waits = (stage.interceptor.wait_seconds for stage in self._stages if stage.interceptor.buffered)
        return min((wait for wait in waits if wait is not None), default=None)

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        """Returns what is ready now. Raises BadBytes if one of the values can never be sent like this: then nothing of
        this chain has left since its last result, and it is not used again.
        """
        return self._passed(list(values), is_flush=False)

    def flush(self) -> list[bytes]:
        """Returns what waits."""
        return self._passed([], is_flush=True)

    def _passed(self, results: list[bytes], *, is_flush: bool) -> list[bytes]:
        counts = [1] * len(results)
        self._buffered += len(results)
        for stage in self._stages:
            fed, counts = stage.interceptor.feed(results), stage.counted(counts)
            if is_flush:
                flushed = stage.interceptor.flush()
                fed, counts = fed + flushed, counts + stage.counted([])
            results = fed
        self._counts = counts
        self._buffered -= sum(counts)
        return results
