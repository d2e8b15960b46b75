"""Makes a stored ledger of the controller: `python -m tests.pravega.stored_ledger tests/fixtures/pravega/ledger-N`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from penstock.pravega import ledger
from penstock.pravega.machine import (
    Abort,
    Begin,
    Command,
    Commit,
    CreateScope,
    CreateStream,
    DeleteScope,
    DeleteStream,
    NoteTime,
    RemoveWriter,
    Scale,
    SealStream,
    TruncateStream,
    UpdateStream,
)
from penstock.pravega.state import Config
from penstock.protocol.stored.names import PRAVEGA_LEDGER
from tests.pravega.test_ledger import opened

CONFIG = Config(1, 10, 2, 2, 1, 1000, 2000, ("a", "b"), 5000)
FIRST: list[Command] = [
    CreateScope("sc"),
    CreateScope("gone"),
    DeleteScope("gone"),
    CreateStream("sc", "st", CONFIG),
    CreateStream("sc", "old", Config()),
    Begin("sc", "st", "ab", 1000),
    Begin("sc", "st", "cd", 1000),
    Commit("sc", "st", "ab", "w", 7),
]
SECOND: list[Command] = [
    Abort("sc", "st", "cd"),
    Begin("sc", "st", "ef", 1000),
    Scale("sc", "st", (0, 1), ((0.0, 0.25), (0.25, 1.0))),
    UpdateStream("sc", "st", msgspec.structs.replace(CONFIG, tags=("c",))),
    NoteTime("sc", "st", "v", 9, {1 << 32 | 2: 0}),
    RemoveWriter("sc", "st", "w"),
    TruncateStream("sc", "st", {1 << 32 | 2: 0, 1 << 32 | 3: 0}),
    SealStream("sc", "old"),
    DeleteStream("sc", "old"),
]


def make(place: Path) -> None:
    """With a snapshot between the commands."""
    with TemporaryDirectory() as folder, opened(Path(folder)) as run:
        for command in FIRST:
            run.keeper.commit(command)
        for entry in ledger.snapshot(run.keeper.state):
            run.store.append(PRAVEGA_LEDGER, [entry])
        for command in SECOND:
            run.keeper.commit(command)
        run.store.journal.wait(run.store.journal.end)
        place.with_suffix(".bin").write_bytes(run.store.read(PRAVEGA_LEDGER, 0, 1 << 20))
        state = msgspec.json.format(msgspec.json.encode(run.keeper.state))
        place.with_suffix(".json").write_bytes(state + b"\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
