"""A snapshot that is encoded incrementally has the same bytes as one that is encoded at once."""

from contextlib import suppress
from random import Random

import msgpack
import pytest

from penstock.core.errors import DiskFull
from penstock.core.sizes import MIB
from penstock.store.store import SegmentStore
from penstock.store.table import EncodedRows, _to_row
from penstock.testing.faulty_files import FaultyFiles
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, open_store


def at_once(store: SegmentStore) -> bytes:
    packed: bytes = msgpack.packb({"next": store.table.next_id(), "segments": [_to_row(s) for s in store.table]})
    return packed


def change(store: SegmentStore, random: Random) -> None:
    names = sorted(store.table.names())
    name = random.choice(names) if names else ""
    match random.randrange(8) if len(names) > 8 else 0:
        case 0 | 1:
            store.create(f"s{store.table.next_id()}", {b"k" * 16: random.randrange(9)} if random.random() < 0.5 else {})
        case 2 | 3:
            if not store.info(name).sealed:
                store.append(name, [random.randbytes(20)], writer=b"w" * 16, number=store.table.next_id())
        case 4:
            store.truncate(name, random.randint(0, store.length(name)))
        case 5:
            store.seal(name)
        case 6:
            store.delete(name)
        case 7:
            whole = [one for one in names if one != name and not store.info(one).start]
            if whole and not store.info(name).sealed:
                store.merge([(name, random.choice(whole))])


@pytest.mark.parametrize("seed", range(30))
def test_an_incremental_snapshot_equals_a_full_one_after_any_changes(seed: int) -> None:
    random = Random(seed)
    store = open_store(MemoryFiles(), chapter_bytes=1 * MIB)
    for _ in range(random.randrange(60)):
        change(store, random)
    filled = 0.4
    for _ in range(random.randrange(100)):
        filled = min(1.0, filled + random.random() / 30)
        store.table.encode_ahead(filled, random.randrange(5))
        change(store, random)
    assert store.table._ahead is not None or filled < 0.6
    assert store.table.encode() == at_once(store)
    assert store.table.encode() == at_once(store)  # again, after a turn without room


def test_a_new_chapter_has_little_of_the_snapshot_left_to_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    finish = EncodedRows.finish

    def counted(self: EncodedRows) -> list[bytes]:
        rows.append(len(self._to_do) + len(self._changed))
        return finish(self)

    monkeypatch.setattr(EncodedRows, "finish", counted)
    store = open_store(MemoryFiles(), chapter_bytes=64 * 1024, snapshot_rows_max=20)
    for number in range(1000):
        store.create(f"s{number}")
        commit(store)
    rows.clear()
    while len(rows) < 3:
        for number in range(0, 1000, 7):
            store.append(f"s{number}", [bytes(100)])
        commit(store)
    assert max(rows) <= 21


def test_a_large_write_encodes_a_limited_number_of_rows_and_the_rest_are_encoded_between_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.store.table.WRITE_ROWS_MAX", 50)
    monkeypatch.setattr("penstock.store.table.STEP_ROWS", 30)
    store = open_store(MemoryFiles(), chapter_bytes=1 * MIB, snapshot_rows_max=20)
    for number in range(1000):
        store.create(f"s{number}")
    assert not store.encode_ahead(), "the chapter is nearly empty"
    store.append("s0", [bytes(800 * 1024)])
    store.append("s1", [bytes(150 * 1024)])
    assert store.table._ahead is not None
    left = [len(store.table._ahead._to_do)]
    assert left[0] == 950
    while store.encode_ahead():
        left.append(len(store.table._ahead._to_do))
        assert left[-2] - left[-1] <= 30
    assert left[-1] == 0
    assert store.table.encode() == at_once(store)


def test_a_new_chapter_without_room_loses_nothing() -> None:
    files = FaultyFiles(space=200 * 1024)
    store = open_store(files, reserve_bytes=0)
    for number in range(20):
        store.create(f"s{number}")
    with suppress(DiskFull):
        while True:
            store.append("s1", [bytes(1000)])
            commit(store)
    files.set_space(None)
    length = store.length("s1")
    for _ in range(20):
        store.append("s1", [bytes(1000)])
        commit(store)
    again = open_store(files.crash())
    assert again.info("s1").length == length + 20_000
    assert at_once(again) == at_once(store)
