"""How long a journal takes to open, by its size: start-up reads only the last chapter.

    python -m tests.store.start_up --gigabytes 1 10 [--directory DIR]

Each journal is written, opened with a cold cache where the machine allows it, and deleted again.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.core.sizes import MIB
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import File, Files, RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

SEGMENTS = 100
APPEND_BYTES = 64 * 1024
_QUEUE_BYTES_MAX = 64 * MIB


def write_journal(files: Files, settings: StoreSettings, size: int, append_bytes: int = APPEND_BYTES) -> None:
    """Appends to some segments in turn, until the journal has this size."""
    journal = FileJournal(files, settings)
    store = SegmentStore(journal, settings)
    committer = Committer(journal, settings.idle_proof_seconds)
    committer.start()
    for number in range(SEGMENTS):
        store.create(f"segment-{number}")
    data = os.urandom(append_bytes)
    for number in track(range(size // append_bytes), description=f"writing {size / 1e9:g} GB", transient=True):
        store.append(f"segment-{number % SEGMENTS}", [data])
        if journal.end - journal.durable > _QUEUE_BYTES_MAX:
            journal.wait(journal.end)
    committer.stop()
    journal.close()


class CountingFiles:
    """Files that count the bytes that are read from them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.bytes_read = 0

    def open(self, name: str) -> File:
        return _CountingFile(self._files.open(name), self)  # type: ignore[return-value]

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)


class _CountingFile:
    def __init__(self, file: File, counter: CountingFiles) -> None:
        self._file = file
        self._counter = counter

    def read(self, offset: int, length: int) -> bytes:
        data = self._file.read(offset, length)
        self._counter.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def open_counting(files: Files, settings: StoreSettings) -> tuple[SegmentStore, int]:
    """The store, and how many bytes were read to open it."""
    counting = CountingFiles(files)
    store = SegmentStore(FileJournal(counting, settings), settings)  # type: ignore[arg-type]
    return store, counting.bytes_read


def forget_cached_pages(directory: Path) -> bool:
    """Drop the page cache of the files. Returns whether that was possible."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
        finally:
            os.close(fd)
    return True


def measure(directory: Path, gigabytes: float) -> tuple[int, int, float]:
    """The number of files, the bytes read at start-up, and the seconds it took."""
    settings = StoreSettings()
    try:
        write_journal(RealFiles(directory), settings, int(gigabytes * 1e9))
        forget_cached_pages(directory)
        began = time.perf_counter()
        store, read = open_counting(RealFiles(directory), settings)
        seconds = time.perf_counter() - began
        chapters = len(store.journal.chapters)
        store.journal.close()
        return chapters, read, seconds
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up time by the size of the journal")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    arguments = parser.parse_args()
    table = Table("journal", "files", "read at start-up", "time", title="start-up, cold cache")
    for gigabytes in arguments.gigabytes:
        directory = Path(tempfile.mkdtemp(prefix="penstock-start-up-", dir=arguments.directory))
        chapters, read, seconds = measure(directory / "journal", gigabytes)
        directory.rmdir()
        table.add_row(f"{gigabytes:g} GB", str(chapters), f"{read / MIB:.1f} MiB", f"{seconds:.3f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
