"""Live bytes, measures, and the snapshot."""

import random
from dataclasses import dataclass

from penstock.store.plan import AttributeUpdate
from penstock.store.store import SegmentStore
from penstock.store.table import SegmentTable
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, next_chapter, open_store


def test_a_snapshot_restores_everything() -> None:
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


@dataclass(frozen=True)
class StartsWith:
    prefix: str

    def __call__(self, name: str) -> bool:
        return name.startswith(self.prefix)


def change(store: SegmentStore, rng: random.Random) -> None:
    names = [one.name for one in store.table]
    match rng.choice(("create", "append", "append", "append", "truncate", "merge", "delete")):
        case "create":
            store.create(f"{rng.choice('ab')}/{rng.randrange(10**9)}")
        case "append" if names:
            store.append(rng.choice(names), [b"x" * rng.randrange(1, 50)])
        case "truncate" if names:
            name = rng.choice(names)
            store.truncate(name, rng.randint(store.info(name).start, store.length(name)))
        case "merge" if len(names) > 5:
            target, source = rng.sample(names, 2)
            if store.info(source).start == 0:
                store.seal(source)
                store.merge([(target, source)])
        case "delete" if len(names) > 5:
            store.delete(rng.choice(names))


def test_a_measure_always_equals_a_full_scan() -> None:
    rng, store = random.Random(14), open_store(MemoryFiles())

    def scanned() -> list[tuple[int, int]]:
        sizes = [[one.length - one.start for one in store.table if one.name.startswith(prefix)] for prefix in prefixes]
        return [(len(found), sum(found)) for found in sizes]

    for _ in range(100):
        change(store, rng)
    prefixes = ("a", "a/1", "", "none")
    measures = [store.table.measure(StartsWith(prefix)) for prefix in prefixes]
    for _ in range(400):
        change(store, rng)
        assert [(one.count, one.size) for one in measures] == scanned()
    assert measures[0].size > 0
    assert store.table.measure(StartsWith("a")) is measures[0]
    store.table.restore(store.table.encode())
    assert [(one.count, one.size) for one in measures] == scanned()
