"""The ledger restores the state; a merge and its ledger entry are one record."""

import contextlib
from random import Random
from typing import Any

import pytest

from penstock.coordinator import ledger as ledgers
from penstock.coordinator.ledger import Ledger, encode_state
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Adopt, Ask, Bind, Command, Describe, Merge, Plan, Reset, Start, pack
from penstock.coordinator.machine.state import Accepted, State
from penstock.core.errors import Damaged, Fenced, StoreFailed, UnreadableFormat
from penstock.protocol.stored.names import LEDGER
from penstock.store.files import Files
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles, SimulatedCrash
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, journal_of, open_store

A, OUT = "connector/s/0", "pipeline/p/out"


def framed(entry: list[Any]) -> bytes:
    return ledgers.framed(pack(entry))


class Book:
    """A store, its ledger and the state, without the service."""

    def __init__(self, files: Files) -> None:
        self.store: SegmentStore = open_store(files)
        self.ledger = Ledger(self.store)
        self.state: State = self.ledger.recover()

    def do(self, command: Command, *pairs: tuple[str, str]) -> None:
        self.state, _ = apply(self.state, command)
        if pairs:
            self.ledger.merge(command, pairs)
        else:
            self.ledger.append(command)
        self.ledger.compact_if_due(self.state)

    def start(self, request: str = "r") -> None:
        self.do(Start("p", request, {"in": (("s",), {A: 0})}, ("out",), (None, None, None)))

    def epoch(self, number: int) -> None:
        """A cut, or the one that was decided before, something staged, and its merge."""
        pipeline = self.state.pipelines["p"]
        generation = pipeline.generation
        if pipeline.planned >= number:
            self.do(Ask("p", generation, "in", number - 1, number))
        else:
            self.do(Plan("p", generation, "in", {A: number + 1}, None))
        staged = f"staging/p/{generation}/{number}/0-0/out"
        self.store.create(staged)
        self.store.append(staged, [b"%d;" % number])
        ends = {"out": self.store.length(OUT) + self.store.length(staged)}
        self.do(Merge("p", generation, number, ends), (OUT, staged))


def test_a_worker_without_pipelines_has_no_ledger() -> None:
    book = Book(MemoryFiles())
    assert book.state == State()
    assert not book.store.exists(LEDGER)


def test_the_state_is_restored_from_the_commands() -> None:
    files = MemoryFiles()
    book = Book(files)
    book.store.create(OUT)
    book.start()
    for number in range(5):
        book.epoch(number)
    commit(book.store)
    journal_of(book.store).close()
    again = Book(files)
    assert again.state == book.state
    assert again.store.read(OUT, 0, 100) == b"0;1;2;3;4;"


SCHEMAS = {"out": (("shop", "string"), ("orders", "bigint"))}


def test_schemas_are_restored_from_commands_and_snapshots_and_survive_a_reset() -> None:
    files = MemoryFiles()
    book = Book(files)
    book.start()
    book.do(Describe("p", book.state.pipelines["p"].generation, SCHEMAS))
    commit(book.store)
    journal_of(book.store).close()
    book = Book(files)
    assert book.state.pipelines["p"].schemas == SCHEMAS
    book.do(Reset("p"))
    book.ledger.compact(book.state)
    commit(book.store)
    journal_of(book.store).close()
    again = Book(files)
    assert again.state == book.state
    assert again.state.pipelines["p"].schemas == SCHEMAS


def test_schemas_from_an_older_generation_are_refused() -> None:
    book = Book(MemoryFiles())
    book.start()
    old = book.state.pipelines["p"].generation
    book.start("again")
    with pytest.raises(Fenced):
        book.do(Describe("p", old, SCHEMAS))


def test_the_ledger_is_compacted_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "COMPACT_BYTES", 500)
    files = MemoryFiles()
    book = Book(files)
    book.store.create(OUT)
    book.start()
    sizes = []
    for number in range(200):
        book.epoch(number)
        commit(book.store)
        info = book.store.info(LEDGER)
        sizes.append(info.length - info.start)
    assert max(sizes[100:]) < 5 * max(sizes[:100])
    journal_of(book.store).close()
    assert Book(files).state == book.state


def test_an_unfinished_snapshot_is_ignored() -> None:
    files = MemoryFiles()
    book = Book(files)
    book.store.create(OUT)
    book.start()
    book.epoch(0)
    entries = [*encode_state(book.state)]
    for entry in entries[:-1]:
        book.ledger._append(framed(entry))
    book.epoch(1)
    for entry in entries[:-1]:
        book.ledger._append(framed(entry))
    book.ledger.compact(book.state)
    book.epoch(2)
    commit(book.store)
    journal_of(book.store).close()
    assert Book(files).state == book.state


@pytest.mark.parametrize("seed", range(25))
def test_after_a_crash_an_epoch_is_in_the_ledger_and_in_the_output_or_in_neither(seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles(random)
    written: list[Any] = []
    for life in range(4):
        files.crash_at(files.operations + random.randint(20, 120))
        with contextlib.suppress(SimulatedCrash, StoreFailed):
            run(files, life, written)
        files = files.crash() if random.random() < 0.7 else files.restart()
    book = Book(files)
    pipeline = book.state.pipelines.get("p")
    merged = [*pipeline.epochs] if pipeline else []
    assert merged == [*range(len(merged))]
    assert len(merged) >= len(written), "what was acknowledged is there"
    output = book.store.read(OUT, 0, 1 << 20) if book.store.exists(OUT) else b""
    assert output == b"".join(b"%d;" % number for number in merged), "each once, and in order"


def run(files: FaultyFiles, life: int, written: list[Any]) -> None:
    """One run of a worker and its driver, which continues with the epoch after the last merged one."""
    book = Book(files)
    if not book.store.exists(OUT):
        book.store.create(OUT)
    book.start(f"life {life}")
    pipeline = book.state.pipelines["p"]
    for number in range(len(pipeline.epochs), 1000):
        book.epoch(number)
        commit(book.store)
        written[:] = range(number + 1)


def test_an_unreadable_ledger_is_an_error() -> None:
    for wrong in (b"\0\0", b"\0\0\0\1\xc1", framed([99, "x"]), framed([8])):
        files = MemoryFiles()
        store = open_store(files)
        store.create(LEDGER)
        store.append(LEDGER, [framed([ledgers.VERSION, ledgers.FORMAT]), wrong])
        commit(store)
        with pytest.raises(Damaged, match="ledger"):
            Ledger(store).recover()


@pytest.mark.parametrize(
    ("first", "formats"),
    [
        ([7, "p"], r"development version before 0\.1 \(no format version; this version reads format 5\)"),
        ([100, 0, 0, 0, 0, "complete", 0], r"development version before 0\.1 \(no format version;"),
        ([0, 6], r"a newer version of Penstock \(format 6; this version reads format 5\)"),
    ],
)
def test_a_ledger_of_another_format_is_refused_whatever_it_contains(first: list[Any], formats: str) -> None:
    store = open_store(MemoryFiles())
    store.create(LEDGER)
    store.append(LEDGER, [framed(first), framed([7, "p"])])
    commit(store)
    with pytest.raises(UnreadableFormat, match=formats) as refused:
        Ledger(store).recover()
    assert "coordinator/ledger" in str(refused.value)
    assert refused.value.hint


def test_a_moved_or_adopted_sink_survives_a_snapshot_and_other_sinks_keep_the_old_format() -> None:
    files = MemoryFiles()
    book = Book(files)
    book.start()
    book.do(Bind("p", {name: ("out", f"file:{name}", True, 0) for name in "xyz"}))
    book.do(Bind("p", {"y": ("out", "file:elsewhere", True, 0)}))
    book.do(Adopt("p", "z", (0, ""), 0, 5, "p:4:5", 5, "gap", "ada", 7))
    (entry,) = [entry for entry in encode_state(book.state) if entry[0] == ledgers.PIPELINE]
    sinks = next(value for value in entry if isinstance(value, dict) and "x" in value)
    assert {name: len(values) for name, values in sinks.items()} == {"x": 8, "y": 10, "z": 10}
    book.ledger.compact(book.state)
    commit(book.store)
    book.store.journal.close()
    again = Book(files)
    assert again.state == book.state
    found = again.state.pipelines["p"].sinks
    assert (found["y"].moved, found["z"].accepted) == (True, (Accepted("gap", "ada", 7, 0),))
    assert again.state.attempts == 5
