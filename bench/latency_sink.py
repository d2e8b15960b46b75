"""A sink program that notes when each transaction was committed: `python -m bench.latency_sink FOLDER`.

FOLDER gets the data, the log of votes, the port, and `commits`: a line with the offset up to which all is committed,
and the time in nanoseconds of the monotonic clock.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.processes import Server, ports_file, start_server
from penstock.client.sink import DataFile, Sink, Transaction, payloads

DATA, STATE, COMMITS, PORTS = "data", "state", "commits", "ports.json"


def serve(folder: Path) -> None:
    with (folder / COMMITS).open("a", buffering=1) as commits:

        def note(transaction: Transaction) -> None:
            commits.write(f"{transaction.end} {time.monotonic_ns()}\n")

        def tell(address: str) -> None:
            written = folder / f"{PORTS}.new"
            written.write_text(json.dumps({"sink": int(address.rpartition(":")[2])}))
            written.rename(folder / PORTS)

        sink = Sink("127.0.0.1:0", DataFile(folder / DATA), state=folder / STATE, encode=payloads, on_commit=note)
        sink.run(tell)


def start_sink(folder: Path) -> Server:
    """In a process of its own; it takes connections when this returns."""
    folder.mkdir(parents=True)
    return start_server([sys.executable, "-m", __spec__.name, str(folder)], folder, ports_file(folder / PORTS))


@dataclass(frozen=True, slots=True)
class Commits:
    """What a sink has committed, and when: up to `ends[n]` at `times_ns[n]`."""

    ends: NDArray[np.int64]
    times_ns: NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def when(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The times at which these offsets were committed."""
        return self.times_ns[np.searchsorted(self.ends, ends)]


def read_commits(folder: Path) -> Commits:
    """A line that is being written is left out."""
    text = (folder / COMMITS).read_text()
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    found = np.array(rows, np.int64).reshape(-1, 2)
    return Commits(found[:, 0], found[:, 1])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
