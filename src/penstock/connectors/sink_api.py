"""What delivery requires of a sink: to vote and then carry out the decision, or only to accept epochs that
are decided.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.core.errors import PenstockError
from penstock.protocol.stored.bulk import Bytes, Column, Events, Wanted
from penstock.protocol.stored.event import NO_TIME

# Part of an epoch's output on its way to a sink: events as columns, and their message ids.


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole events, at least one. A message's id is the number of payload bytes before it in the sink's history, so the
    next id is the id plus the length of the payload.
    """

    events: Events
    first_id: int

    def __len__(self) -> int:
        return len(self.events)

    @property
    def end_id(self) -> int:
        """The id of the message after the last one."""
        offsets = self.values.offsets
        return self.first_id + int(offsets[len(self)]) - int(offsets[0])

    @property
    def times(self) -> Column:
        """In microseconds, or NO_TIME."""
        assert self.events.event_times is not None
        return self.events.event_times

    @property
    def keys(self) -> Bytes:
        assert self.events.keys is not None
        return self.events.keys

    @property
    def values(self) -> Bytes:
        assert self.events.values is not None
        return self.events.values


PLAIN = Wanted(origins=False)
"""The columns for sinks that do not need to know where events come from."""


class SinkLost(PenstockError):
    """The sink cannot be reached, or cannot work now: the whole round is void, and is tried again later."""

    hint = "It is retried automatically; see penstock epoch list."


class Vote(NamedTuple):
    yes: bool
    reason: str = ""
    """For a no vote: the reason, for people."""


YES = Vote(True)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One epoch's bytes for one sink, by their message ids: from `start` to `end`, exclusive."""

    id: bytes
    """`pipeline:epoch:attempt`, never used again."""
    epoch: int
    start: int
    end: int


class Position(NamedTuple):
    """How far a sink is."""

    transaction: bytes | None
    """The last transaction up to there; b"" if there is none, None if the sink does not report it."""
    end: int | None
    """Bytes of payloads: the id of the next message. None if the sink does not report it."""


class SinkReport(NamedTuple):
    """A sink's position, before transactions in doubt are settled."""

    committed: Position | None
    """None if the sink does not know it while a transaction is in doubt."""
    in_doubt: Position | None = None


CheckReport = Callable[[SinkReport], None]
"""Raises SinkLost if the sink's data do not match the worker's: then the sink must not be changed."""


def accept_any(report: SinkReport) -> None:
    """For a sink whose data are not compared."""


def attempt_of(transaction: bytes) -> int:
    """The attempt in a transaction id, which grows with every round of a worker; 0 if it is not such an id."""
    number = transaction.rpartition(b":")[2]
    return int(number) if number.isdigit() else 0


def epoch_of(transaction: bytes) -> int | None:
    """The epoch in a transaction id; None if it is not such an id."""
    number = transaction.rpartition(b":")[0].rpartition(b":")[2]
    return int(number) if number.isdigit() else None


class Epoch(Protocol):
    """One epoch's output for one sink. `transaction` is known when all blocks have been taken."""

    @property
    def name(self) -> str:
        """`pipeline:incarnation:epoch`: the same whenever it is tried again."""

    @property
    def transaction_id(self) -> bytes: ...

    @property
    def start(self) -> int:
        """The id of its first message."""

    def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        """Can be iterated once, from the first to the last."""

    @property
    def transaction(self) -> Transaction: ...

    def refuse(self, row: int, reason: str) -> None:
        """For a non-voting sink: this row, counted from the epoch's first, can never be sent. It becomes a dead letter
        of the sink in the step in which the epoch counts as accepted.
        """

    async def journalled(self) -> None:
        """Returns when the attempt is durable: before that, nothing may be asked or stored under its transaction id."""


class VotingSink(Protocol):
    """Takes part in two-phase commit. One call at a time; each may be cancelled, and then `close` follows.

    Every call raises SinkLost when the sink is gone; `close` and a new `open` follow. Any other exception is treated
    the same way, and logged.
    """

    @property
    def is_open(self) -> bool:
        """False also when the other end has disconnected since."""

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        """Connect, call `check`, and settle what is in doubt: commit it if it is the transaction `decided`, abort any
        other. `decided` is b"" if there was never a decision. Nothing at the sink changes if `check` raises.
        """

    async def prepare(self, epoch: Epoch) -> Vote:
        """Take all blocks, wait until the attempt is journalled, and vote. A yes promises that `commit` will succeed,
        also after a crash.
        """

    async def commit(self, transaction: Transaction) -> None:
        """Commit after a yes vote; the decision is final. Idempotent."""

    async def abort(self, transaction_id: bytes) -> None:
        """Abort after a vote, or after a cancelled `prepare`: nothing of the transaction may remain."""

    async def end(self) -> None:
        """The output has ended, or the worker stops properly: no more follows for now. Called when open and idle."""

    async def close(self) -> None:
        """Release everything, in any state, without raising."""


class Settling(Protocol):
    """An epoch that a sink has received completely, but not sent completely: a part waits for more values."""

    @property
    def is_done(self) -> bool: ...

    def result(self) -> None:
        """Called when it is done. If it raises SinkLost, this and all later epochs must be delivered again."""

    def when_done(self, call: Callable[[], None]) -> None: ...

    def flush(self) -> None:
        """Send it now: nothing more follows."""

    def cancel(self) -> None:
        """Discard it: this and all later epochs will be delivered again."""


class NonVotingSink(Protocol):
    """Cannot vote: it receives each epoch after the decision, in order, until it has accepted it."""

    async def deliver(self, epoch: Epoch) -> Settling | None:
        """Deliver the whole epoch. Raise SinkLost to be called again with the whole epoch; epochs that were settling
        are then discarded. None: it has finally accepted the epoch. Otherwise it may receive the next ones before this
        one is settled.
        """

    async def close(self) -> None: ...


class Row(NamedTuple):
    """An event of a block."""

    id: int
    """Payload bytes before it in the sink's history: the same whenever it is delivered again."""
    event_time_us: int | None
    key: bytes
    value: bytes


def rows_of(block: Block) -> list[Row]:
    times: list[int | None] = [None if time == NO_TIME else time for time in block.times.tolist()]
    rows, message_id = [], block.first_id
    for time, key, value in zip(times, block.keys.rows(), block.values.rows(), strict=True):
        rows.append(Row(message_id, time, key, value))
        message_id += len(value)
    return rows
