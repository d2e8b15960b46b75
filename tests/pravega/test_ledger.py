"""What the controller keeps, and what a crash leaves of it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock.coordinator.ledger import framed, stored_entries
from penstock.core.errors import Damaged, DiskFull, UnreadableFormat
from penstock.core.types import Position
from penstock.pravega import ledger
from penstock.pravega.ledger import Keeper
from penstock.pravega.machine import (
    Abort,
    Begin,
    Commit,
    CreateScope,
    CreateStream,
    DeleteStream,
    NoteTime,
    Refusal,
    Scale,
    SealStream,
    TruncateStream,
    UpdateStream,
)
from penstock.pravega.state import Config
from penstock.protocol.stored.names import PRAVEGA_LEDGER
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

SMALL = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)
FIRST = "sc/st/0.#epoch.0"


class Opened:
    """A store, and the controller's ledger in it."""

    def __init__(self, store: SegmentStore, durability: Durability) -> None:
        self.store = store
        self.changed: list[str] = []
        self.keeper = Keeper(store, durability, self._note)

    def _note(self, names: Iterable[str], _: Position) -> None:
        self.changed += names

    def create(self, segments: int = 1) -> None:
        self.keeper.commit(CreateScope("sc"))
        self.keeper.commit(CreateStream("sc", "st", Config(segments_min=segments)))

    def names(self) -> list[str]:
        return [info.name for info in self.store.segments("sc/")]


@contextmanager
def opened(folder: Path) -> Iterator[Opened]:
    journal = FileJournal(RealFiles(folder), SMALL)
    committer = Committer(journal, SMALL.idle_proof_seconds)
    committer.start()
    loop = asyncio.new_event_loop()
    try:
        yield Opened(SegmentStore(journal, SMALL), Durability(journal, loop, lambda: None))
        journal.wait(journal.end)
    finally:
        loop.close()
        committer.stop()
        journal.close()


def test_the_state_is_there_again_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.create(2)
        first.keeper.commit(Scale("sc", "st", (0,), ((0, 0.25), (0.25, 0.5))))
        first.keeper.commit(Begin("sc", "st", "ab", 1000))
        first.keeper.commit(NoteTime("sc", "st", "w", 5, {1: 2}))
        state = first.keeper.state
        assert FIRST in first.changed
    with opened(tmp_path) as second:
        assert second.keeper.state == state
        names = second.names()
        second.keeper.repair()
        assert second.names() == names


def test_a_snapshot_stands_for_everything_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "COMPACT_BYTES", 200)
    with opened(tmp_path) as first:
        first.create()
        for number in range(50):
            first.keeper.commit(UpdateStream("sc", "st", Config(tags=(f"tag {number}",))))
        info = first.store.info(PRAVEGA_LEDGER)
        assert first.store.length(PRAVEGA_LEDGER) - info.start < 1000
        state = first.keeper.state
    with opened(tmp_path) as second:
        assert second.keeper.state == state


def test_a_snapshot_of_any_size_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "COMPACT_BYTES", 2000)
    monkeypatch.setattr(ledger, "PART_BYTES", 100)
    with opened(tmp_path) as first:
        first.create(50)
        for number in range(50):
            first.keeper.commit(UpdateStream("sc", "st", Config(tags=("t" * 100, str(number)))))
        first.store.journal.wait(first.store.journal.end)
        entries = [*stored_entries(first.store, PRAVEGA_LEDGER)]
        assert sum(b"part" in entry[:10] for entry in entries) > 10
        state = first.keeper.state
    with opened(tmp_path) as second:
        assert second.keeper.state == state


def test_a_snapshot_that_was_not_finished_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "COMPACT_BYTES", 1000)
    monkeypatch.setattr(ledger, "PART_BYTES", 100)
    with opened(tmp_path) as first:
        first.create(50)
        appends = 0
        append = first.store.append

        def full(name: str, data: list[bytes], *, draining: bool) -> object:
            nonlocal appends
            appends += b"part" in data[0][:14]
            if appends == 3:
                appends += 1
                raise DiskFull("the disk is full")
            return append(name, data, draining=draining)

        monkeypatch.setattr(first.store, "append", full)
        for number in range(40):
            first.keeper.commit(UpdateStream("sc", "st", Config(tags=("t" * 100, str(number)))))
        assert appends > 4, "after a while, another one was written"
        state = first.keeper.state
    with opened(tmp_path) as second:
        assert second.keeper.state == state


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.store.create(PRAVEGA_LEDGER)
        run.store.append(PRAVEGA_LEDGER, [framed(msgspec.msgpack.encode(["version", ledger.FORMAT + 1]))])
    with pytest.raises(UnreadableFormat, match="newer version"), opened(tmp_path):
        pass


STORED = Path(__file__).parents[1] / "fixtures" / "pravega"


def test_a_ledger_that_an_earlier_version_has_written_is_read(tmp_path: Path) -> None:
    """Never change these files so that the test passes: see the README beside them."""
    with opened(tmp_path) as run:
        run.store.create(PRAVEGA_LEDGER)
        run.store.append(PRAVEGA_LEDGER, [(STORED / "ledger-1.bin").read_bytes()])
    with opened(tmp_path) as again:
        found = msgspec.json.decode(msgspec.json.encode(again.keeper.state))
        assert found == msgspec.json.decode((STORED / "ledger-1.json").read_bytes())


def test_a_commit_and_its_merges_are_one_record(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create()
        run.keeper.commit(Begin("sc", "st", "ab", 1000))
        run.store.append(f"{FIRST}#transaction.ab", [b"data"])
        end = run.store.journal.end
        run.keeper.commit(Commit("sc", "st", "ab"))
        run.store.journal.wait(run.store.journal.end)
        assert run.store.read(FIRST, 0, 10) == b"data"
        assert run.names() == [FIRST]
        assert run.store.journal.end - end < 300
    with opened(tmp_path) as again:
        assert again.keeper.state.scopes["sc"]["st"].ended == {"ab": True}


def test_a_commit_after_a_scaling_leaves_the_ranges_of_the_scaling(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create()
        run.keeper.commit(Begin("sc", "st", "ab", 1000))
        run.store.append(f"{FIRST}#transaction.ab", [b"data"])
        run.keeper.commit(Scale("sc", "st", (0,), ((0, 0.5), (0.5, 1))))
        run.keeper.commit(Commit("sc", "st", "ab"))
        run.store.journal.wait(run.store.journal.end)
        assert run.store.read("sc/st/3.#epoch.2", 0, 10) == b"data"
        is_sealed = {info.name: info.sealed for info in run.store.segments("sc/")}
        assert [name for name, sealed in is_sealed.items() if not sealed] == ["sc/st/4.#epoch.3", "sc/st/5.#epoch.3"]
        state = run.keeper.state
    with opened(tmp_path) as again:
        assert again.keeper.state == state


def test_segments_follow_their_streams(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create()
        run.keeper.commit(Begin("sc", "st", "ab", 1000))
        run.keeper.commit(Abort("sc", "st", "ab"))
        assert run.names() == [FIRST]
        run.store.append(FIRST, [b"0123456789"])
        run.keeper.commit(TruncateStream("sc", "st", {0: 4}))
        assert run.store.info(FIRST).start == 4
        run.keeper.commit(SealStream("sc", "st"))
        assert run.store.info(FIRST).sealed
        run.keeper.commit(DeleteStream("sc", "st"))
        assert run.names() == []


def test_a_start_ends_what_a_crash_has_left(tmp_path: Path) -> None:
    """The command was in the ledger, and its segments were not sealed or deleted yet."""
    with opened(tmp_path) as run:
        run.create()
        run.keeper.commit(Scale("sc", "st", (0,), ((0, 1),)))
        new = "sc/st/1.#epoch.1"
        for name in (f"{FIRST}#transaction.ab", f"{new}#transient.cd", "sc/st/7.#epoch.3", "sc/other/0.#epoch.0"):
            run.store.create(name)
        run.store.delete(FIRST)
        run.store.create(FIRST)
        run.keeper.repair()
        assert run.store.info(FIRST).sealed
        assert run.names() == ["sc/other/0.#epoch.0", FIRST, new]


def test_a_start_truncates_to_the_cut_that_is_in_the_ledger(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create()
        run.store.append(FIRST, [b"0123456789"])
        run.keeper.commit(TruncateStream("sc", "st", {0: 4}))
        run.store.delete(FIRST)
        run.store.create(FIRST)
        run.store.append(FIRST, [b"0123456789"])
        run.keeper.repair()
        assert run.store.info(FIRST).start == 4


def test_a_cut_beyond_the_end_of_a_segment_is_refused_and_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create(2)
        run.store.append(FIRST, [b"0123456789"])
        with pytest.raises(Refusal, match="ends at 0, before 1"):
            run.keeper.commit(TruncateStream("sc", "st", {0: 10, 1: 1}))
        assert run.keeper.state.scopes["sc"]["st"].cut is None
        run.keeper.commit(TruncateStream("sc", "st", {0: 10, 1: 0}))
        assert run.store.info(FIRST).start == 10


def test_a_stream_never_gets_segments_that_have_data_already(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.keeper.commit(CreateScope("sc"))
        run.store.create(FIRST)
        run.keeper.commit(CreateStream("sc", "st", Config()))
        run.store.create("sc/more/0.#epoch.0")
        run.store.append("sc/more/0.#epoch.0", [b"somebody's"])
        with pytest.raises(Refusal, match="not empty"):
            run.keeper.commit(CreateStream("sc", "more", Config()))
        assert [*run.keeper.state.scopes["sc"]] == ["st"]


@pytest.mark.parametrize("failing", ["sc/st/2.#epoch.0", PRAVEGA_LEDGER])
def test_a_command_that_fails_leaves_no_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    with opened(tmp_path) as run:
        run.keeper.commit(CreateScope("sc"))

        def full(call: Callable[..., object], name: str, *rest: object, **more: object) -> object:
            if name == failing:
                raise DiskFull("the disk is full")
            return call(name, *rest, **more)

        monkeypatch.setattr(run.store, "create", partial(full, run.store.create))
        monkeypatch.setattr(run.store, "append", partial(full, run.store.append))
        with pytest.raises(DiskFull):
            run.keeper.commit(CreateStream("sc", "st", Config(segments_min=3)))
        assert run.names() == []
        assert run.keeper.state.scopes == {"sc": {}}


def test_a_ledger_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.create()
        run.store.append(PRAVEGA_LEDGER, [b"\0\0\0\1x"])
    with pytest.raises(Damaged, match="coordinator/pravega"), opened(tmp_path):
        pass
