"""A sink on a simulated disk and a worker that delivers to it, without sockets: crashes at any operation of the disk.

The model is the worker's: what it has decided. After every start the sink may lack the last decision, unless it had
done what it says, and nothing else; after every greeting it lacks nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.sink.log import LOG_BYTES, ROUND_BYTES_MAX, TransactionLog
from penstock.client.sink.participant import DataTarget, ParticipantTarget, Target, Transaction, lines, perform
from penstock.client.sink.session import Desk, SinkSession, Terms
from penstock.client.sink.transactions import Transactions
from penstock.client.source.message import Message
from penstock.protocol.connector import (
    OUTPUT_STREAM,
    SINK_VERSION,
    Decoder,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Notify,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    Use,
    encode,
    encode_messages,
)
from penstock.testing.faulty_files import Faults, FaultyFiles, SimulatedCrash

TERMS = Terms(b"", None, None, 2**20)
UNCOMMITTED_BYTES_MAX = 2**20
SMALL_LOG_BYTES = ROUND_BYTES_MAX + 600
"""It is rewritten every few rounds."""


class FaultyData:
    """A file of the simulated disk."""

    def __init__(self, files: FaultyFiles) -> None:
        if "data" not in files.list():
            files.create("data")
            files.sync()
        self._file = files.open("data")

    def write_at(self, offset: int, data: bytes) -> None:
        self._file.write(offset, (data,))

    def sync(self) -> None:
        self._file.sync()

    def truncate(self, offset: int) -> None:
        self._file.truncate(offset)

    def size(self) -> int:
        return self._file.size()


@dataclass
class Rows:
    """What a database holds, whatever happens to the process."""

    rows: list[Message]
    staged: list[Message]
    last: bytes = b""


class Table:
    """A participant with a database whose transactions are atomic and durable; one may be the last thing it does."""

    def __init__(self, faults: Faults, kept: Rows) -> None:
        self._faults = faults
        self._kept = kept
        self._staged = list(kept.staged)

    def write(self, messages: Sequence[Message]) -> None:
        self._staged += messages

    def prepare(self, transaction: Transaction) -> bool:
        assert not self._staged or self._staged[0].id == transaction.start
        self._faults.perform("prepare", lambda: self._set_staged(self._staged))
        return True

    def commit(self, transaction: Transaction) -> None:
        self._faults.perform("commit", lambda: self._commit(transaction))

    def abort(self, transaction: Transaction) -> None:
        left = [message for message in self._staged if message.id < transaction.start]
        self._faults.perform("abort", lambda: self._set_staged(left))

    def _commit(self, transaction: Transaction) -> None:
        if self._kept.last != transaction.id:
            self._kept.rows += self._kept.staged
            self._kept.last = transaction.id
            self._set_staged([])

    def _set_staged(self, messages: list[Message]) -> None:
        self._kept.staged, self._staged = list(messages), list(messages)


@dataclass(frozen=True)
class Step:
    """One attempt at an epoch, and what goes wrong in it."""

    commits: bool
    """What the worker decides on a yes."""
    crash_after: int | None
    """Operations of the disk, from the beginning of the attempt on."""
    crash_in_recovery_after: int | None
    is_power_cut: bool
    lost_at: str | None
    """Where the connection is lost."""
    fails_sync: bool
    is_full: bool
    """The disk, during the attempt."""
    fails_directory_sync: bool = False


GOOD = Step(True, None, None, False, None, False, False)


class Lost(Exception):
    """The connection is."""


def epoch_payloads(number: int) -> list[bytes]:
    return [b"%d:%d" % (number, part) * (number % 3 + 1) for part in range(number % 4)] + [b"", b"%d." % number]


class Simulation:
    def __init__(self, seed: int, has_table: bool, log_bytes: int = LOG_BYTES) -> None:
        self._files = FaultyFiles(seed)
        self._log_bytes = log_bytes
        self._rows = Rows([], []) if has_table else None
        self._decided: dict[bytes, bool] = {}
        self._arrived = 0
        self._attempts = 0
        self._session: SinkSession | None = None
        self._start(None)

    @property
    def epochs(self) -> int:
        """How many the worker has decided to commit."""
        return sum(self._decided.values())

    def run(self, steps: Sequence[Step]) -> None:
        """All the steps; then all is well, and epochs get through."""
        for step in steps:
            self._take(step)
        before = self.epochs
        for _ in range(3):
            self._take(GOOD)  # a crash that was planned in a step may still come in the first one
        assert self.epochs >= before + 2

    def _take(self, step: Step) -> None:
        try:
            if self._session is None:
                self._connect()
            try:
                self._attempt(step)
            except Lost:
                self._lose()
        except (SimulatedCrash, OSError):
            self._restart(step)

    def _attempt(self, step: Step) -> None:
        if step.crash_after is not None:
            self._files.crash_at(self._files.operations + step.crash_after)
        self._files.fail_next_sync(int(step.fails_sync))
        self._files.fail_next_directory_sync(int(step.fails_directory_sync))
        self._files.set_space(0 if step.is_full else None)
        self._attempts += 1
        txn_id = b"p:%d:%d" % (self.epochs, self._attempts)
        start = offset_of(self.epochs)
        entries, end = [], start
        for payload in epoch_payloads(self.epochs):
            entries.append((end, 0, b"", payload))
            end += len(payload)
        self._lose_at(step, "data", encode_messages(OUTPUT_STREAM, entries))
        (reply,) = self._lose_at(step, "vote", encode(Phase1(txn_id, (Range(OUTPUT_STREAM, start, end),))))
        assert isinstance(reply, Reply), reply
        self._decided[txn_id] = reply.commit and step.commits
        self._lose_at(step, "decision", encode(Phase2(txn_id, self._decided[txn_id])))
        self._check_arrived()

    def _lose_at(self, step: Step, point: str, data: bytes) -> list[Frame]:
        if step.lost_at == f"before {point}":
            raise Lost
        replies = self._send(data)
        if step.lost_at == f"after {point}":
            raise Lost
        return replies

    def _send(self, data: bytes) -> list[Frame]:
        assert self._session is not None
        perform(self._session.receive(data))
        replies = list(self._decoder.feed(b"".join(self._session.take())))
        assert not any(isinstance(reply, Error) for reply in replies), replies
        return replies

    def _connect(self) -> None:
        self._session = SinkSession(self._desk, "model")
        self._decoder = Decoder(Use.SINK)
        hello = Hello(SINK_VERSION, b"", "model", "model")
        frames = self._send(b"".join(map(encode, (hello, Notify(OUTPUT_STREAM, "output"), ListUncommitted(1)))))
        reply = frames[-1]
        assert isinstance(reply, ReplyUncommitted)
        for txn_id in reply.txn_ids:
            self._send(encode(Phase2(txn_id, self._decided.get(txn_id, False))))
        self._check_arrived()

    def _lose(self) -> None:
        """The connection; the sink lives on, or learns of it only when the next one has come."""
        assert self._session is not None
        if self._attempts % 2:
            perform(self._session.ended())
        self._session = None

    def _restart(self, step: Step) -> None:
        """A crash, or a disk that has failed: the next process."""
        while True:
            self._files = self._files.crash() if step.is_power_cut else self._files.restart()
            self._files.set_space(None)
            try:
                self._start(step.crash_in_recovery_after)
                return
            except SimulatedCrash:
                step = Step(step.commits, None, None, step.is_power_cut, None, False, False)

    def _start(self, crash_after: int | None) -> None:
        if crash_after is not None:
            self._files.crash_at(crash_after)
        self._session = None
        self._log = TransactionLog(self._files, self._log_bytes)
        target: Target
        if self._rows is None:
            target = DataTarget(FaultyData(self._files), lines)
        else:
            target = ParticipantTarget(Table(self._files, self._rows))
        transactions = Transactions(self._log, target, UNCOMMITTED_BYTES_MAX)
        perform(transactions.recover())
        self._desk = Desk(TERMS, transactions)
        self._check(*range(self._arrived, self.epochs + 1))
        assert self.epochs <= self._arrived + 1

    def _check_arrived(self) -> None:
        """All that was decided has arrived, and never goes away again."""
        self._arrived = self.epochs
        self._check(self.epochs)

    def _check(self, *epochs: int) -> None:
        """The committed prefix is whole epochs, so many of them."""
        offset = self._log.state.offset
        assert offset in [offset_of(count) for count in epochs]
        if self._rows is None:
            file: Any = self._files._find("data")
            committed = bytes(file.content[: self._log.state.mark])
            assert committed in [expected_lines(count) for count in epochs]
        else:
            rows = b"".join(bytes(message.payload) + b"\n" for message in self._rows.rows)
            assert rows in [expected_lines(count) for count in epochs]


def offset_of(epochs: int) -> int:
    return sum(len(payload) for number in range(epochs) for payload in epoch_payloads(number))


def expected_lines(epochs: int) -> bytes:
    return b"".join(payload + b"\n" for number in range(epochs) for payload in epoch_payloads(number))
