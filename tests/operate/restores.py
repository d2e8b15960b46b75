"""Worker, sinks and checkpoints are restored from copies of different times: all combinations, and what must follow."""

import copy
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.coordinator.machine.state import RERUN_EPOCHS
from penstock.core.errors import PenstockError, PipelineError
from tests.coordinator.driver import Checkpoint
from tests.delivery.places import FilePlace, Place, PostgresPlace, ProgramPlace, SqlitePlace
from tests.operate.driver import SINK, CopyDriver
from tests.operate.site import OFTEN, RETAINS, Site, running_site
from tests.support.postgres_server import PostgresServer, is_installed
from tests.support.waiting import until

KINDS = ("file", "sqlite", "postgres", "program")
"""Of sinks. Each has a pipeline of the same name."""

TIMES = 3
"""Copies were taken at times 1 to 3. At time 0 there was nothing yet: that is a part that was lost."""

EVENTS_A_TIME = 5
"""Each in an epoch of its own. More than Spark may run again after a crash: retention can remove the input of epochs
that an older checkpoint would read.
"""

LAST = (TIMES + 1) * EVENTS_A_TIME
"""After a restore the program sends up to this number."""


class Cell(NamedTuple):
    """From which time each part is restored."""

    worker: int
    sink: int
    checkpoint: int
    removed: bool
    """Whether retention has removed what every sink had, or everything is still stored."""

    def __str__(self) -> str:
        return f"{self.worker}{self.sink}{self.checkpoint}{'r' if self.removed else 's'}"

    @classmethod
    def parse(cls, text: str) -> "Cell":
        found = re.fullmatch(r"([0-3])([0-3])([0-3])([sr])", text)
        if found is None:
            raise ValueError(f"{text!r} is not a cell: three times from 0 to {TIMES}, and s or r")
        worker, sink, checkpoint = (int(found[number]) for number in (1, 2, 3))
        return cls(worker, sink, checkpoint, found[4] == "r")


def cells() -> list[Cell]:
    """Each order of the three parts once: 121 is the same situation as 232, and as 131."""
    times = range(TIMES + 1)
    orders = [one for one in product(times, times, times) if {*one} - {0} == {*range(1, len({*one} - {0}) + 1)}]
    return [Cell(*order, removed) for removed in (False, True) for order in orders]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was refused, with the command that has mended it, and the rows that each sink has afterwards."""

    refusals: tuple[str, ...]
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return "\n".join(self.refusals) or "continues"


def summary(outcome: Outcome) -> str:
    """How the rows differ from each event once."""
    counts = Counter(outcome.rows)
    missing = [number for number in range(1, LAST + 1) if number not in counts]
    twice = [number for number, count in counts.items() if count > 1]
    texts = [f"{what} {_range(found)}" for what, found in (("without", missing), ("twice:", twice)) if found]
    return ", ".join(texts) or "each event once"


def _range(found: list[int]) -> str:
    return f"{min(found)}-{max(found)}" if len(found) > 1 else str(found[0])


# What must happen.


def numbers(after: int, upto: int) -> list[int]:
    """Of the events between two times."""
    return [*range(after * EVENTS_A_TIME + 1, upto * EVENTS_A_TIME + 1)]


def expected(cell: Cell, first_stored: int) -> Outcome:
    """`first_stored`: the first event that the restored worker has."""
    sink_refusal, again = _expected_of_sink(cell)
    checkpoint_refusal = _expected_of_checkpoint(cell, first_stored)
    first = first_stored if checkpoint_refusal else cell.worker * EVENTS_A_TIME + 1
    rows = [*numbers(0, cell.sink), *again, *range(first, LAST + 1)]
    return Outcome(tuple(one for one in (sink_refusal, checkpoint_refusal) if one), tuple(rows))


def _expected_of_sink(cell: Cell) -> tuple[str, list[int]]:
    """The refusal, and what the sink gets of the epochs that were decided."""
    if cell.sink > cell.worker:
        return "sink newer: sink rewind --accept-duplicates", []
    if cell.sink == cell.worker:
        return "", []
    if cell.removed:
        return "sink older: sink rewind --accept-gap", []
    return "sink older: sink rewind", numbers(cell.sink, cell.worker)


def _expected_of_checkpoint(cell: Cell, first_stored: int) -> str:
    partial = " --accept-partial" if first_stored > 1 else ""
    if cell.checkpoint > cell.worker:
        return f"checkpoint newer: pipeline reset{partial}"
    if not cell.checkpoint and cell.worker:
        return f"checkpoint missing: pipeline reset{partial}"
    if cell.checkpoint < cell.worker and cell.removed:
        return f"checkpoint older: pipeline reset{partial}"
    return ""


# The copies.


class History:
    """Data of a worker, of sinks and of checkpoints, with copies of each from all times."""

    def __init__(self, folder: Path, places: Mapping[str, Place], *, removed: bool) -> None:
        self.places = places
        self._data = folder / "worker"
        self._settings = OFTEN if removed else RETAINS
        self._checkpoints: dict[int, dict[str, Checkpoint]] = {0: {name: Checkpoint() for name in places}}
        self._removed = removed
        self.first_stored = {0: 1}
        """By time: the first event that the worker's copy has."""

    def make(self) -> None:
        for place in self.places.values():
            place.copy("t0")
        for time in range(1, TIMES + 1):
            checkpoints = copy.deepcopy(self._checkpoints[time - 1])
            self._run(time, checkpoints)
            self._checkpoints[time] = checkpoints
            shutil.copytree(self._data, self._copied(time))
            for place in self.places.values():
                place.copy(f"t{time}")

    def _run(self, time: int, checkpoints: dict[str, Checkpoint]) -> None:
        with self.running(checkpoints) as site, site.sending((time - 1) * EVENTS_A_TIME) as sender:
            for driver in site.drivers.values():
                driver.start()
            for _ in range(EVENTS_A_TIME):
                sender.upto += 1
                site.run_until_complete(sender)
            if self._removed:
                until(lambda: all(map(_is_removed, site.drivers.values())))
            self.first_stored[time] = _first_stored(site)

    @contextmanager
    def running(self, checkpoints: dict[str, Checkpoint]) -> Iterator[Site]:
        sinks = {name: place.url for name, place in self.places.items()}
        with running_site(self._data, sinks, checkpoints, self._settings) as site:
            yield site

    def restore(self, cell: Cell) -> dict[str, Checkpoint]:
        """The checkpoints; the other parts are in their places."""
        shutil.rmtree(self._data)
        if cell.worker:
            shutil.copytree(self._copied(cell.worker), self._data)
        for place in self.places.values():
            place.restore(f"t{cell.sink}")
        return copy.deepcopy(self._checkpoints[cell.checkpoint])

    def _copied(self, time: int) -> Path:
        return self._data.with_name(f"worker.t{time}")


def _is_removed(driver: CopyDriver) -> bool:
    """Retention has removed the output, and the input except for what Spark may read again."""
    output = driver.segments.info(f"pipeline/{driver.name}/out")
    floor = driver.checkpoint.offsets[driver.checkpoint.committed - RERUN_EPOCHS - 1][1]
    inputs = {name: driver.segments.info(name).start for name in floor.segments}
    return output.start == output.length and inputs == floor.segments


def _first_stored(site: Site) -> int:
    driver = next(iter(site.drivers.values()))
    assert driver.checkpoint.end is not None
    starts = {name: driver.segments.info(name).start for name in driver.checkpoint.end.segments}
    first = next(driver.values(starts, driver.checkpoint.end.segments))
    return int(json.loads(first)["value"])


@contextmanager
def made_history(folder: Path, *, removed: bool, kinds: tuple[str, ...] = KINDS) -> Iterator[History]:
    """With all copies made. Without PostgreSQL where there is no server."""
    folder /= "removed" if removed else "stored"
    with ExitStack() as stack:
        if "postgres" in kinds and is_installed():
            server = PostgresServer()
            stack.callback(server.stop)
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("PGHOST", server.socket_folder)
        else:
            kinds = tuple(kind for kind in kinds if kind != "postgres")
        history = History(folder, made_places(stack, folder, kinds), removed=removed)
        history.make()
        yield history


def made_places(stack: ExitStack, folder: Path, kinds: tuple[str, ...]) -> dict[str, Place]:
    return {kind: _place(stack, kind, folder / kind) for kind in kinds}


def _place(stack: ExitStack, kind: str, folder: Path) -> Place:
    folder.mkdir(parents=True)
    if kind == "file":
        return FilePlace(folder)
    if kind == "sqlite":
        return SqlitePlace(folder)
    if kind == "program":
        program = ProgramPlace(folder)
        stack.enter_context(program.process)
        return program
    return PostgresPlace(os.environ["PGHOST"], "operate")


# What happens.


@dataclass(slots=True)
class Operator:
    """Starts everything after a restore, and runs the commands that refusals name."""

    site: Site
    refusals: dict[str, list[str]] = field(default_factory=dict)

    def start(self) -> None:
        for driver in self.site.drivers.values():
            self.refusals[driver.name] = []
            refused = self._refusal(driver, start=True)
            self._mend_sink(driver)
            refused = refused or self._refusal(driver)
            if refused is not None:
                self._reset(driver, refused)

    def _refusal(self, driver: CopyDriver, *, start: bool = False) -> PipelineError | None:
        try:
            driver.start() if start else driver.epoch()
        except PipelineError as refused:
            return refused
        return None

    def _mend_sink(self, driver: CopyDriver) -> None:
        until(lambda: self.site.sink(driver.name).state in ("READY", "DIVERGED"), self.site.describe)
        sink = self.site.sink(driver.name)
        if sink.state == "READY":
            return
        found = re.match(
            rf"sink {SINK} of pipeline {driver.name} is (older|newer) than the worker's data: ", sink.reason
        )
        assert found is not None, sink.reason
        command, refused = self._run(_commands(sink.reason)[0])
        if refused is not None:
            command, refused = self._run(_commands(refused.hint)[0])
        assert refused is None, refused
        self._note(driver, f"sink {found[1]}", command)

    def _reset(self, driver: CopyDriver, refusal: PipelineError) -> None:
        what = next((one for one, pattern in _CHECKPOINT.items() if re.search(pattern, str(refusal))), None)
        assert what is not None, f"{refusal}. {refusal.hint}"
        assert driver.name in str(refusal), refusal
        (wanted,) = _commands(refusal.hint)
        command, refused = self._run(wanted)
        if refused is not None:
            assert "--accept-partial" in refused.hint, refused
            command, refused = self._run(f"{wanted} --accept-partial")
        assert refused is None, refused
        self._note(driver, f"checkpoint {what}", command)
        driver.checkpoint = Checkpoint()
        driver.start()

    def _run(self, command: str) -> tuple[str, PenstockError | None]:
        address = f"127.0.0.1:{self.site.worker.ports['http']}"
        done = CliRunner().invoke(app, [*command.split()[1:], "--yes", "--worker", address])
        if done.exception is not None and not isinstance(done.exception, PenstockError):
            raise AssertionError(f"{command}: {done.output}") from done.exception
        return command, done.exception

    def _note(self, driver: CopyDriver, what: str, command: str) -> None:
        short = command.removeprefix("penstock ").replace(f" --pipeline {driver.name}", "")
        short = re.sub(rf" ({SINK}|{driver.name})\b", "", short, count=1)
        self.refusals[driver.name].append(f"{what}: {short}")


_CHECKPOINT = {
    "newer": "the checkpoint of pipeline .* (is newer than the ledger|belongs to other data)",
    "older": "the checkpoint of pipeline .* is older than the ledger",
    "missing": "has no checkpoint, but has committed epoch",
}


def _commands(text: str) -> list[str]:
    return [one.strip() for one in re.findall(r"penstock (?:sink rewind|pipeline reset)[^;.]*", text)]


def run_cell(history: History, cell: Cell) -> dict[str, Outcome]:
    """By the kind of sink."""
    checkpoints = history.restore(cell)
    with history.running(checkpoints) as site, site.sending(LAST) as sender:
        operator = Operator(site)
        operator.start()
        site.run_until_complete(sender)
    rows = {name: tuple(map(int, place.rows())) for name, place in history.places.items()}
    return {name: Outcome(tuple(operator.refusals[name]), rows[name]) for name in history.places}
