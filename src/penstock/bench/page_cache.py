"""The same memory for every contender.

A virtual machine gives memory that it does not use back to its host. A program that writes a file
into fresh memory then waits for the host page by page, which here takes longer than the disk does,
and the one that runs after it inherits what it has warmed up: measured, whoever came second was
twice as fast. On a machine that has run for a while the page cache is full, and pages are used
again as soon as they are clean. That state is made here, for all alike: while a contender is
under load, the clean pages of its files are dropped again and again. It loses nothing by that;
nobody reads during the load.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DROP_SECONDS = 0.05
"""Some ten MB at the speed of the disk: little memory, used over and over. Costs 7 % of one core."""


@contextmanager
def recycled(directory: Path) -> Iterator[None]:
    """Keep what is written below `directory` from filling fresh memory."""
    done = threading.Event()
    thread = threading.Thread(target=_drop_until, args=(directory, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _drop_until(directory: Path, done: threading.Event) -> None:
    while not done.wait(DROP_SECONDS):
        drop_clean_pages(directory)


def drop_clean_pages(directory: Path) -> None:
    """Dirty ones stay. Files may come and go meanwhile."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                _drop(os.path.join(parent, name))  # noqa: PTH118 (no objects per file and turn)


def _drop(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
