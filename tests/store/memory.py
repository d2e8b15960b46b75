"""The memory cost of segments: when they are created, and after a restart.

python -m tests.store.memory [--segments 100000]
"""

import argparse
import gc
import tempfile
import tracemalloc
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

_COMMIT_EVERY = 10_000


def open_store(directory: Path) -> SegmentStore:
    settings = StoreSettings(reserve_bytes=0)
    return SegmentStore(FileJournal(RealFiles(directory), settings), settings)


def fill(store: SegmentStore, segments: int, used: bool) -> None:
    """Segments with names of a typical length. `used` ones have one append, each by its own writer."""
    for number in range(segments):
        name = f"scope/stream-{number:06d}/0"
        store.create(name)
        if used:
            store.append(name, [b"event"], writer=number.to_bytes(16, "big"), number=1)
        if number % _COMMIT_EVERY == 0:
            store.journal.commit()  # type: ignore[attr-defined]
    store.journal.commit()  # type: ignore[attr-defined]
    store.grown()


def measure(directory: Path, segments: int, used: bool) -> tuple[float, float]:
    """Bytes per segment, while the store is filled and after it was reopened."""
    tracemalloc.start()
    store = open_store(directory)
    fill(store, segments, used)
    created = traced()
    store.journal.close()
    del store
    gc.collect()
    tracemalloc.reset_peak()
    before = traced()
    store = open_store(directory)
    opened = traced() - before
    assert len(store.table) == segments
    store.journal.close()
    tracemalloc.stop()
    return created / segments, opened / segments


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory per segment")
    parser.add_argument("--segments", type=int, default=100_000)
    segments: int = parser.parse_args().segments
    table = Table("segments", "bytes each, created", "bytes each, after a restart", title=f"{segments:,} segments")
    for used in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            created, opened = measure(Path(directory), segments, used)
        table.add_row("one append, one writer" if used else "empty", f"{created:.0f}", f"{opened:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
