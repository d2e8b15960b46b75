"""Live bytes, and the snapshot."""

from penstock.store.plan import AttributeUpdate
from penstock.store.table import SegmentTable
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, next_chapter, open_store


def test_a_snapshot_brings_everything_back() -> None:
    store = open_store(MemoryFiles())
    store.create("a", {b"k" * 16: -5})
    store.create("b")
    store.append("a", [b"0123456789"], writer=b"w" * 16, number=7)
    first = next_chapter(store)
    store.append("b", [b"abc"])
    store.merge([("a", "b")], [AttributeUpdate("a", b"l" * 16, 2**63 - 1)])
    store.truncate("a", 4)
    store.seal("a")
    commit(store)
    table = SegmentTable(10)
    table.restore(store.table.encode())
    assert table.encode() == store.table.encode()
    assert dict(table.live) == {first: 6, store.journal.chapter: 3}
    assert table.next_id() == store.table.next_id()


def test_live_bytes_are_those_that_can_be_read() -> None:
    store = open_store(MemoryFiles())
    store.create("a")
    store.append("a", [b"0123456789"])
    store.append("a", [b"0123456789"])
    store.truncate("a", 15)
    assert dict(store.table.live) == {0: 5}
    store.truncate("a", 20)
    assert not store.table.live
    store.append("a", [b"01"])
    store.delete("a")
    assert not store.table.live


def test_a_merge_moves_no_live_bytes() -> None:
    store = open_store(MemoryFiles())
    for name in ("target", "one", "two"):
        store.create(name)
    store.append("one", [b"111"])
    first = next_chapter(store)
    store.append("two", [b"22"])
    store.merge([("target", "two"), ("target", "one")])
    commit(store)
    assert store.read("target", 0, 2) + store.read("target", 2, 9) == b"22111"
    assert dict(store.table.live) == {first: 3, store.journal.chapter: 2}
