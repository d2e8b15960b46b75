"""Appends to several segments in one record: all or none."""

import pytest

from penstock.core.errors import ConditionFailed, Damaged, LimitExceeded, NoSuchSegment, QuotaReached, SegmentSealed
from penstock.store.plan import Addition
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import commit, entries, flip, heads, open_store

BOTH = [Addition("a", [b"one", b"two"], b"head of a"), Addition("b", [b"three"], b"head of b")]


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def store(files: FaultyFiles) -> SegmentStore:
    store = open_store(files)
    for name in ("a", "b"):
        store.create(name)
        store.append(name, [b"before"])
    commit(store)
    return store


def contents(store: SegmentStore) -> tuple[bytes, bytes]:
    return store.read("a", 0, 99), store.read("b", 0, 99)


def test_additions_are_one_record_and_become_durable_together(store: SegmentStore) -> None:
    records = len(entries(store))
    first, second = store.append_all(BOTH)
    assert (first.end, second.end) == (12, 11)
    assert first.position == second.position == store.journal.end
    assert contents(store) == (b"before", b"before")
    commit(store)
    assert contents(store) == (b"beforeonetwo", b"beforethree")
    assert len(entries(store)) == records + 1
    assert store.grown() >= {"a", "b"}


def test_each_addition_has_its_own_head_and_both_survive_a_restart(files: FaultyFiles, store: SegmentStore) -> None:
    store.append_all(BOTH)
    store.append_all([Addition("b", [b"four"])])
    commit(store)
    again = open_store(files.crash())
    assert contents(again) == (b"beforeonetwo", b"beforethreefour")
    assert heads(again, "a") == [(6, b""), (12, b"head of a")]
    assert heads(again, "b") == [(6, b""), (11, b"head of b"), (15, b"")]


def test_damage_in_one_addition_does_not_hide_the_other(files: FaultyFiles, store: SegmentStore) -> None:
    store.append_all(BOTH)
    commit(store)
    (piece,) = store.locate_heads("b", 6, 11)
    flip(files, piece.chapter, piece.row.position + piece.row.head_length)
    assert store.read("a", 6, 99) == b"onetwo"
    with pytest.raises(Damaged):
        store.read("b", 6, 99)


def test_if_one_addition_is_refused_none_is_stored(store: SegmentStore) -> None:
    store.create("sealed")
    store.seal("sealed")
    refused = [
        (NoSuchSegment, Addition("none", [b"x"])),
        (SegmentSealed, Addition("sealed", [b"x"])),
        (LimitExceeded, Addition("b", [bytes(store.settings.append_bytes_max + 1)])),
        (ConditionFailed, Addition("a", [b"again"])),
    ]
    for error, addition in refused:
        with pytest.raises(error):
            store.append_all([BOTH[0], addition])
    commit(store)
    assert contents(store) == (b"before", b"before")


def test_if_one_addition_exceeds_a_quota_none_is_stored() -> None:
    store = open_store(FaultyFiles(), segment_quota_bytes=8)
    store.create("a")
    store.create("b")
    store.append("b", [b"123456"])
    with pytest.raises(QuotaReached):
        store.append_all([Addition("a", [b"x"]), Addition("b", [b"xyz"])])
    assert (store.length("a"), store.length("b")) == (0, 6)
