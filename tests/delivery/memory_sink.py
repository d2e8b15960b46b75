"""Sinks in memory, with a disk that survives them, and a script that makes them fail at any step."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.connectors.sink_api import (
    YES,
    CheckReport,
    Epoch,
    Position,
    SinkLost,
    SinkReport,
    Transaction,
    Vote,
    accept_any,
)

Script = Callable[[str], None]
"""Called with each step; may raise SinkLost, or Refuse."""


class Refuse(Exception):
    """The vote is no."""


@dataclass
class Disk:
    """What survives a crash of the sink."""

    committed: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    in_doubt: dict[bytes, list[bytes]] = field(default_factory=dict)
    aborted: set[bytes] = field(default_factory=set)
    next_id: int = 0

    @property
    def values(self) -> list[bytes]:
        return [value for _, values in self.committed for value in values]

    @property
    def epochs(self) -> list[int]:
        return [int(txn.split(b":")[1]) for txn, _ in self.committed]

    @property
    def report(self) -> SinkReport:
        last = self.committed[-1][0] if self.committed else b""
        doubts = [Position(txn, self.next_id + sum(map(len, values))) for txn, values in self.in_doubt.items()]
        return SinkReport(Position(last, self.next_id), doubts[0] if doubts else None)

    def commit(self, txn: bytes) -> None:
        if txn in self.in_doubt:
            values = self.in_doubt.pop(txn)
            self.committed.append((txn, values))
            self.next_id += sum(map(len, values))
        assert txn in [one for one, _ in self.committed], f"{txn!r} was never promised"

    def abort(self, txn: bytes) -> None:
        assert txn not in [one for one, _ in self.committed], f"{txn!r} was committed"
        self.in_doubt.pop(txn, None)
        self.aborted.add(txn)


class MemorySink:
    def __init__(self, disk: Disk, script: Script = lambda _: None) -> None:
        self.is_open = False
        self._disk = disk
        self._script = script

    def _step(self, name: str) -> None:
        try:
            self._script(name)
        except SinkLost:
            self.is_open = False
            raise

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        self._step("before open")
        check(self._disk.report)
        for txn in [*self._disk.in_doubt]:
            if txn == decided:
                self._disk.commit(txn)
            else:
                self._disk.abort(txn)
        self.is_open = True
        self._step("after open")

    async def prepare(self, epoch: Epoch) -> Vote:
        assert self.is_open
        assert not self._disk.in_doubt
        assert epoch.start == self._disk.next_id, "a gap, or a repeat"
        values: list[bytes] = []
        async for block in epoch.blocks():
            self._step("in the data")
            values += block.values.rows()
        await epoch.journalled()
        self._step("before phase 1")
        transaction = epoch.transaction
        assert transaction.end - transaction.start == sum(map(len, values))
        assert transaction.id not in self._disk.aborted, "an attempt is used again"
        try:
            self._step("vote")
        except Refuse:
            return Vote(False, "not today")
        self._disk.in_doubt[transaction.id] = values
        self._step("after the vote")
        return YES

    async def commit(self, transaction: Transaction) -> None:
        self._step("before phase 2")
        self._disk.commit(transaction.id)
        self._step("after phase 2")

    async def abort(self, transaction_id: bytes) -> None:
        self._step("before abort")
        self._disk.abort(transaction_id)
        self._step("after abort")

    async def end(self) -> None:
        self._step("end")

    async def close(self) -> None:
        self.is_open = False


class MemoryNonVotingSink:
    def __init__(self, taken: list[tuple[str, list[bytes]]], script: Script = lambda _: None) -> None:
        self._taken = taken
        self._script = script

    async def deliver(self, epoch: Epoch) -> None:
        self._script("before deliver")
        values = [value async for block in epoch.blocks() for value in block.values.rows()]
        refused = [row for row, value in enumerate(values) if value.startswith(b"refused")]
        for row in refused:
            epoch.refuse(row, f"row {row} is refused")
        self._taken.append((epoch.name, [value for row, value in enumerate(values) if row not in refused]))
        self._script("after deliver")

    async def close(self) -> None:
        pass
