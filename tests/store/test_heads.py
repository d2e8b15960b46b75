"""The heads of appends: read without the data, each checked by its own checksum."""

from collections.abc import Callable

import pytest

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.chapters import chapter_name
from penstock.store.record import HEAD_CHECKSUM_BYTES
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import commit, flip, heads, next_chapter, open_store

KIB = 1024


def store_with_heads(files: FaultyFiles, sizes: list[int]) -> SegmentStore:
    """Appends of these sizes to `a`, each with a head that contains its number; every third one has none."""
    store = open_store(files, chapter_bytes=256 * KIB)
    store.create("a")
    for number, size in enumerate(sizes):
        store.append("a", [bytes(size)], head=b"" if number % 3 == 2 else b"head %d" % number)
    commit(store)
    return store


def expected(sizes: list[int]) -> list[tuple[int, bytes]]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [(end, b"" if number % 3 == 2 else b"head %d" % number) for number, end in enumerate(ends)]


@pytest.mark.parametrize("size", [1, 100, 8 * KIB, 20 * KIB])
def test_heads_are_read_unchanged_however_far_apart_they_are(size: int) -> None:
    sizes = [size] * 10
    assert heads(store_with_heads(FaultyFiles(), sizes), "a") == expected(sizes)


def test_heads_of_several_chapters_come_in_order() -> None:
    store = open_store(FaultyFiles())
    store.create("a")
    for number in range(6):
        store.append("a", [b"x" * 10], head=b"%d" % number)
        next_chapter(store)
    assert heads(store, "a") == [(10 * (number + 1), b"%d" % number) for number in range(6)]
    assert heads(store, "a", 15, 35) == [(20, b"1"), (30, b"2"), (40, b"3")]


def test_large_data_is_not_read_for_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with_heads(FaultyFiles(), [20 * KIB] * 9)
    read = 0
    original: Callable[..., bytes] = store.journal.read

    def counting(chapter: Position, position: Position, length: int) -> bytes:
        nonlocal read
        read += length
        return original(chapter, position, length)

    monkeypatch.setattr(store.journal, "read", counting)
    found = heads(store, "a")
    assert read == sum(len(head) + HEAD_CHECKSUM_BYTES for _, head in found if head)


@pytest.mark.parametrize("place", range(len(b"head 4") + HEAD_CHECKSUM_BYTES))
def test_a_head_that_is_damaged_is_an_error_that_names_the_file(place: int) -> None:
    files = FaultyFiles()
    store = store_with_heads(files, [100] * 6)
    (piece,) = store.locate_heads("a", 400, 401)
    flip(files, piece.chapter, piece.row.position + place)
    with pytest.raises(Damaged, match=f"head at {chapter_name(piece.chapter)} at offset"):
        store.heads("a", 0, 600)
    assert heads(store, "a", 0, 400) == expected([100] * 6)[:4]


def test_damaged_data_does_not_hide_the_heads() -> None:
    files = FaultyFiles()
    store = store_with_heads(files, [100] * 6)
    (piece,) = store.locate_heads("a", 400, 401)
    flip(files, piece.chapter, piece.row.position + piece.row.head_length + 5)
    with pytest.raises(Damaged):
        store.read("a", 400, 1)
    assert heads(store, "a") == expected([100] * 6)


@pytest.mark.parametrize(("rows_max", "bytes_max", "count"), [(3, None, 3), (None, 25, 3), (None, 1, 1), (2, 1000, 2)])
def test_heads_can_be_located_in_small_steps(rows_max: int | None, bytes_max: int | None, count: int) -> None:
    store = store_with_heads(FaultyFiles(), [100] * 6)
    located = store.locate_heads("a", 0, 600, rows_max=rows_max, bytes_max=bytes_max)
    assert [(int(end), bytes(head)) for end, head in store.fetch_heads(located)] == expected([100] * 6)[:count]
