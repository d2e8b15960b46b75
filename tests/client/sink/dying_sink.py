"""A sink that kills itself with SIGKILL at a chosen point of the round of transaction `2:1`.

python -m tests.client.sink.dying_sink KIND FOLDER ADDRESS [POINT]
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client import AsyncSink, DataFile, Sink
from penstock.client.sink import Transaction, lines
from penstock.client.sink.log import TransactionLog, encode_record
from penstock.client.sink.participant import DataTarget
from penstock.core.types import Buffer

TXN_ID = b"2:1"

POINTS = (
    "in the data",
    "before the sync",
    "before the vote",
    "in the vote",
    "after the vote",
    "before the decision",
    "in the decision",
    "after the decision",
    "after the participant",
    "after all",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingFile(DataFile):
    def write_at(self, offset: int, data: Buffer) -> None:
        if offset:  # the second transaction's
            super().write_at(offset, data[: len(data) // 2])
            die()
        super().write_at(offset, data)


class DyingLog:
    """Stands around the log's two ways of writing."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._append, self._append_lazily = TransactionLog.append, TransactionLog.append_lazily

    def append(self, log: TransactionLog, record: Any) -> None:
        what = {"Voted": "the vote", "Committed": "the decision", "Aborted": "the decision"}.get(type(record).__name__)
        self._die_at(record, f"before {what}")
        if self._is_at(record, f"in {what}"):
            data = encode_record(log._number, log._durable, record)
            assert log._file is not None
            log._file.write(log._end, (data[: len(data) - 3],))
            die()
        self._append(log, record)
        self._die_at(record, f"after {what}")

    def append_lazily(self, log: TransactionLog, record: Any) -> None:
        self._die_at(record, "after the participant")
        self._append_lazily(log, record)
        self._die_at(record, "after all")

    def _is_at(self, record: Any, point: str) -> bool:
        return point == self._point and record.txn_id == TXN_ID

    def _die_at(self, record: Any, point: str) -> None:
        if self._is_at(record, point):
            die()


def die_at(point: str) -> None:
    log = DyingLog(point)
    TransactionLog.append = lambda self, record: log.append(self, record)  # type: ignore[method-assign]
    TransactionLog.append_lazily = lambda self, record: log.append_lazily(self, record)  # type: ignore[method-assign]
    prepare: Callable[[DataTarget, Transaction], bool] = DataTarget.prepare

    def dying_prepare(self: DataTarget, transaction: Transaction) -> bool:
        if transaction.id == TXN_ID and point == "before the sync":
            die()
        return prepare(self, transaction)

    DataTarget.prepare = dying_prepare  # type: ignore[method-assign]


def main(kind: str, folder: Path, address: str, point: str) -> None:
    die_at(point)
    data = DyingFile(folder / "out") if point == "in the data" else DataFile(folder / "out")
    if kind == "asyncio":
        asyncio.run(AsyncSink(address, data, state=folder / "state", encode=lines).run())
    else:
        Sink(address, data, state=folder / "state", encode=lines).run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "")
