"""Start-up time does not grow with the data, and a segment costs little memory."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from penstock.core.sizes import KIB
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, open_store
from tests.store.start_up import open_counting, write_journal


def test_start_up_reads_no_more_of_a_ten_times_larger_journal() -> None:
    settings = StoreSettings(chapter_bytes=256 * KIB, reserve_bytes=256 * KIB)
    read = []
    for chapters in (4, 40):
        files = MemoryFiles()
        write_journal(files, settings, chapters * settings.chapter_bytes, append_bytes=4 * KIB)
        store, count = open_counting(files, settings)
        assert len(store.journal.chapters) > chapters
        assert store.info("segment-1").length > 0
        read.append(count)
    assert max(read) < 3 * settings.chapter_bytes
    assert read[1] < 2 * read[0] + settings.chapter_bytes


SEGMENTS = 5_000


@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True])
def test_a_segment_costs_at_most_about_a_kibibyte_also_after_a_restart(used: bool, tmp_path: Path) -> None:
    store = open_store(RealFiles(tmp_path), chapter_bytes=4096 * KIB, reserve_bytes=0)
    fill(store, used)
    commit(store)
    store.journal.close()
    del store
    gc.collect()
    tracemalloc.start()
    store = open_store(RealFiles(tmp_path), chapter_bytes=4096 * KIB, reserve_bytes=0)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store.table) == SEGMENTS
    assert size / SEGMENTS < KIB


def fill(store: SegmentStore, used: bool) -> None:
    for number in range(SEGMENTS):
        store.create(f"scope/stream-{number:06d}/0")
        if used:
            writer = number.to_bytes(16, "big")
            store.append(f"scope/stream-{number:06d}/0", [b"event"], writer=writer, number=1)
