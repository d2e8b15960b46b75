"""A full disk at each step of a worker's life: every operation of the journal that needs room fails, one at a time."""

import errno
from pathlib import Path

from tests.operate.life import Fault, Life

NEEDS_ROOM = ("create", "allocate", "write", "rename", "sync .")


class FullDisk(Fault):
    """One operation finds the disk full, and then the disk has no room for a while."""

    def concerns(self, operation: str) -> bool:
        return operation.startswith(NEEDS_ROOM)

    def begin(self) -> None:
        self.files.set_space(0)

    def end(self) -> None:
        self.files.set_space(None)

    def fail_first(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail_on(self, operation: str) -> None:
        """What takes room fails by itself."""


def run_cell(folder: Path, step: str, number: int) -> tuple[str, str] | None:
    """The operation that has failed, and what followed; None if the step has fewer operations. Raises AssertionError
    if anything is lost or doubled, or if the worker stops without a reason.
    """
    fault = FullDisk(step, number)
    life = Life(folder, fault)
    life.run()
    if not fault.failed:
        return None
    assert all("No space left on device" in one or "has no room" in one for one in life.stops), life.stops
    return fault.failed, "stopped, and continued when it was restarted: " + life.stops[0] if life.stops else "went on"
