"""A worker's life on a disk that fails once: it starts, accepts events, runs epochs, delivers, removes and restarts."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from penstock.core.errors import Damaged, NoRoom, PenstockError, StoreFailed
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.driver import Checkpoint
from tests.delivery.places import FilePlace
from tests.operate.driver import CopyDriver
from tests.operate.site import OFTEN, STORE, Sender, Site, running_site
from tests.support.waiting import SECONDS_MAX

PADDING = 2000
EVENTS = 30
"""Of each round: with their copies they fill a chapter of the journal."""

STEPS = {"new": 1, "running": 3, "restarted": 4}
"""Each is a process, and serves until so many rounds are complete. From the second on the journal turns its chapters,
and retention and compaction remove what is complete.
"""

FAULT_SECONDS = 0.3
"""How long a fault lasts: some retries of whatever waits."""

RETRY_SECONDS = 0.5
"""How long clients look for a worker that has stopped."""

LIVES_MAX = 3
"""Of one step: a fault ends the worker once at most, and the next one finds a disk without faults."""

UNCACHED = replace(STORE, index_cache_bytes=1)
"""Indexes of closed chapters are read whenever they are needed."""


class Fault(ABC):
    """The operation with this number fails, counted in one step and among those that `concerns` selects."""

    def __init__(self, step: str, number: int) -> None:
        self.files = FaultyFiles()
        self.now = ""
        """The step that runs."""
        self.failed = ""
        """The operation that has failed."""
        self.step = step
        self._number = number
        self._count = 0
        self.files.before_each = self._before

    def _before(self, operation: str) -> None:
        self.fail_on(operation)
        if self.now != self.step or self.failed or not self.concerns(operation):
            return
        self._count += 1
        if self._count == self._number:
            self.failed = operation
            self.begin()
            threading.Timer(FAULT_SECONDS, self.end).start()
            self.fail_first()

    def next_process(self) -> None:
        self.files = self.files.restart()
        self.files.before_each = self._before
        self.now = ""
        if self.failed:
            self.end()

    @abstractmethod
    def concerns(self, operation: str) -> bool: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    @abstractmethod
    def fail_first(self) -> None: ...

    @abstractmethod
    def fail_on(self, operation: str) -> None:
        """Raises OSError for an operation that fails, too."""


@dataclass(slots=True)
class Life:
    """A worker, a program, a pipeline and a file sink, over as many processes as it takes."""

    folder: Path
    fault: Fault
    stops: list[str] = field(default_factory=list)
    """Why the worker has stopped, or has not started."""
    answers: list[str] = field(default_factory=list)
    """What clients got that asked for what could not be read."""
    health: list[str] = field(default_factory=list)
    """What /health showed then, and at the end of the step."""
    _checkpoint: Checkpoint = field(default_factory=Checkpoint)
    _acknowledged: int = 0

    def run(self) -> None:
        """Raises AssertionError unless each event has its effect once."""
        place = FilePlace(self.folder)
        (self.folder / "data").mkdir()
        for step, rounds in STEPS.items():
            self._live(step, place, rounds * EVENTS)
        rows = [*map(int, place.rows())]
        assert rows == [*range(1, max(STEPS.values()) * EVENTS + 1)], rows

    def _live(self, step: str, place: FilePlace, upto: int) -> None:
        sinks, checkpoints = {"p": place.url}, {"p": self._checkpoint}
        for _ in range(LIVES_MAX):
            self.fault.now = step
            try:
                with running_site(
                    self.folder / "data",
                    sinks,
                    checkpoints,
                    OFTEN,
                    self.fault.files,
                    UNCACHED,
                    RETRY_SECONDS,
                ) as site:
                    self._serve(site, upto)
            except (StoreFailed, NoRoom, Damaged) as error:
                self.stops.append(_text(error))
            else:
                return
            finally:
                self.fault.next_process()
        raise AssertionError(f"the worker does not run: {self.stops}")

    def _serve(self, site: Site, upto: int) -> None:
        with site.sending(self._acknowledged, PADDING) as sender:
            for driver in site.drivers.values():
                self._until_done(site, driver.start)
            while self._acknowledged < upto:
                sender.upto = min(upto, sender.upto + EVENTS)
                self._complete(site, sender)
                self._acknowledged = sender.upto
        if self.fault.now == self.fault.step:
            self.health.append(site.health()[1])
        self.fault.now = ""

    def _complete(self, site: Site, sender: Sender) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not (sender.is_done and site.is_delivered()):
            assert time.monotonic() < deadline, site.describe()
            for driver in site.drivers.values():
                self._until_done(site, partial(_catch_up, driver))

    def _until_done(self, site: Site, act: Callable[[], None]) -> None:
        """Again while the disk fails. Raises AssertionError if it never works."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            assert time.monotonic() < deadline, site.describe()
            try:
                return act()
            except NoRoom:
                time.sleep(RETRY_SECONDS / 10)
            except Damaged as error:
                self.health.append(site.health()[1])
                if "pipelines are refused" in str(error):  # until an operator restarts the worker
                    raise
                self.answers.append(_text(error))


def _catch_up(driver: CopyDriver) -> None:
    while driver.epoch():
        pass


def _text(error: PenstockError) -> str:
    return f"{error}. {error.hint}"
