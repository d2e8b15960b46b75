"""Runs against a dict of bytes, and the writers of a segment."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.sizes import MIB
from penstock.core.types import Offset, Position, SegmentId
from penstock.store.segment import Run, Runs, Segment
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import next_chapter, open_store


def place(runs: Runs, length: int, start: int = 0) -> list[tuple[int, int, int]]:
    """Chapter, key and offset within that key, for every byte."""
    found = []
    for offset in range(start, length):
        run = runs[runs.find(Offset(offset))]
        found.append((int(run.chapter), int(run.key), run.key_start + offset - run.start))
    return found


PIECE = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 2))


@given(pieces=st.lists(PIECE, min_size=1, max_size=8), data=st.data())
def test_runs_locate_every_byte_after_any_moves_and_drops(
    pieces: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    runs, wanted = Runs(), list[tuple[int, int, int]]()
    for count, chapter, key in pieces:
        start = len(wanted)
        runs.add(Run(Offset(start), Position(chapter), SegmentId(key), Offset(start)))
        wanted += [(chapter, key, start + n) for n in range(count)]
    length, first = len(wanted), 0
    for chapter in range(4, 4 + data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(first, length - 1))
        end = data.draw(st.integers(start + 1, length))
        run = Run(Offset(start), Position(chapter), SegmentId(9), Offset(start))
        runs.replace(Offset(start), Offset(end), run, Offset(length))
        wanted[start:end] = [(chapter, 9, n) for n in range(start, end)]
        first = data.draw(st.integers(first, length - 1))
        runs.drop_before(Offset(first))
        assert runs[0].start <= first
        assert place(runs, length, first) == wanted[first:]
    assert [run.start for run in runs] == sorted({run.start for run in runs})


def test_a_run_that_continues_the_last_one_extends_it() -> None:
    runs = Runs()
    runs.add(Run(Offset(0), Position(5), SegmentId(1), Offset(0)))
    runs.add(Run(Offset(10), Position(5), SegmentId(1), Offset(10)))
    assert len(runs) == 1
    runs.add(Run(Offset(20), Position(5), SegmentId(1), Offset(30)))
    assert len(runs) == 2


def test_an_offset_before_the_first_run_is_in_no_run() -> None:
    assert Runs.of((10, 0, 1, 10)).find(Offset(9)) == -1


def test_the_writer_that_has_been_silent_longest_makes_room_for_a_new_one() -> None:
    segment = Segment(SegmentId(1), "a")
    for writer, number in [(b"a", 1), (b"b", 2), (b"a", 3), (b"c", 4)]:
        segment.remember(writer, number, limit=2)
    assert segment.writers == {b"a": 3, b"c": 4}
    assert segment.last_number(b"b") is None


def test_segments_have_no_objects_that_the_garbage_collector_tracks() -> None:
    """A full collection stops all threads: for half a second, with three tracked objects each of 300,000 segments."""
    store = open_store(MemoryFiles(), chapter_bytes=MIB, segments_max=5000)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2000):
        store.create(f"s{number}", {b"k" * 16: number})
        store.append(f"s{number}", [b"data"], writer=b"w" * 16, number=1)
    next_chapter(store)
    store.info("s0")
    gc.collect()
    assert len(store.table) == 2000
    assert len(gc.get_objects()) - before < 1000
