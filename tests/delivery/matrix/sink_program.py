"""A sink program whose votes are scripted, and that records the frames it receives.

python -m tests.delivery.matrix.sink_program DIRECTORY HOST:PORT

The files in the directory:
  votes    one character for each vote, `y` or `n`, counted across restarts; yes after the last one
  hold     while it exists, a transaction whose id starts with its content is not voted on
  history  a line for each call: `asked ID`, `commit ID`, `abort ID`
  committed  a line of JSON for each transaction that is committed: [id, start, end, [payload, …]]

A write survives SIGKILL, so that nothing needs a sync here.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.client.sink import Message, Sink, Transaction

HOLD_POLL_SECONDS = 0.002
HOLD_SECONDS_MAX = 60.0


class Scripted:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: list[str] = []

    def write(self, messages: Sequence[Message]) -> None:
        self._written += [bytes(message.payload).decode() for message in messages]

    def prepare(self, transaction: Transaction) -> bool:
        number = sum(line.startswith("asked ") for line in self._lines("history"))
        self._note("asked", transaction)
        self._wait_while_held(transaction)
        if self._text("votes")[number : number + 1] == "n":
            return False
        prepared = [transaction.id.decode(), transaction.start, transaction.end, self._written]
        (self._directory / "prepared").write_text(json.dumps(prepared))
        return True

    def commit(self, transaction: Transaction) -> None:
        self._note("commit", transaction)
        committed = self._lines("committed")
        if not committed or json.loads(committed[-1])[0] != transaction.id.decode():
            self._append("committed", self._text("prepared"))
        self._written = []

    def abort(self, transaction: Transaction) -> None:
        self._note("abort", transaction)
        self._written = []

    def _wait_while_held(self, transaction: Transaction) -> None:
        deadline = time.monotonic() + HOLD_SECONDS_MAX
        while (held := self._text("hold")) and transaction.id.startswith(held.encode()):
            assert time.monotonic() < deadline, f"{transaction.id!r} is held for too long"
            time.sleep(HOLD_POLL_SECONDS)

    def _note(self, what: str, transaction: Transaction) -> None:
        self._append("history", f"{what} {transaction.id.decode()}")

    def _append(self, name: str, line: str) -> None:
        with (self._directory / name).open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    def _lines(self, name: str) -> list[str]:
        return self._text(name).splitlines()

    def _text(self, name: str) -> str:
        with suppress(FileNotFoundError):
            return (self._directory / name).read_text()
        return ""


def main(directory: Path, address: str) -> None:
    with suppress(KeyboardInterrupt):
        Sink(address, Scripted(directory), state=directory / "state").run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
