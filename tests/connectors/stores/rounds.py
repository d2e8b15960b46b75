"""Epochs as a blocking sink receives them, one call after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.connectors.sink_api import Block, Transaction, Vote
from penstock.connectors.threaded import BlockingSink
from tests.delivery.fake_epoch import Row, block_of


@dataclass(frozen=True)
class Round:
    """One attempt at an epoch."""

    number: int
    rows: Sequence[Row]
    start: int = 0
    attempt: int = 1

    @property
    def transaction(self) -> Transaction:
        end = self.start + sum(len(row.value) for row in self.rows)
        return Transaction(self.id, self.number, self.start, end)

    @property
    def id(self) -> bytes:
        return b"orders:%d:%d" % (self.number, self.attempt)

    def again(self) -> "Round":
        return replace(self, attempt=self.attempt + 1)

    def blocks(self, block_rows: int = 3) -> Iterator[Block]:
        at = self.start
        for first in range(0, len(self.rows), block_rows):
            block = block_of(self.rows[first : first + block_rows], at)
            at = block.end_id
            yield block

    def write(self, sink: BlockingSink) -> None:
        for block in self.blocks():
            sink.write(block)

    def prepare(self, sink: BlockingSink) -> Vote:
        self.write(sink)
        return sink.prepare(self.transaction)

    def deliver(self, sink: BlockingSink) -> None:
        vote = self.prepare(sink)
        assert vote.yes, vote.reason
        sink.commit(self.transaction)


def chain(epochs: Sequence[Sequence[Row]]) -> list[Round]:
    """Consecutive epochs."""
    rounds: list[Round] = []
    for number, rows in enumerate(epochs):
        rounds.append(Round(number, rows, rounds[-1].transaction.end if rounds else 0))
    return rounds


def example(count: int) -> list[Round]:
    """Epochs with values and keys that are empty, binary, repeated and long; with and without a time."""
    return chain([_rows(number) for number in range(1, count + 1)])


def _rows(number: int) -> list[Row]:
    name = b"%d" % number
    return [
        Row(b"first of " + name, b"a", 1_700_000_000_000_000 + number),
        Row(b"", b"b"),
        Row(bytes(range(256)), b"\x00\xff" + name, -5),
        Row(b"no key " + name),
        Row(b"long " * 1000 + name, b"a", 0),
        Row(b"no key again " + name),
        Row(b"last of " + name, name),
    ]
