"""`penstock run app.yaml --store …` on one machine after the other: everything that the run has started is killed under
load, and it is run again in another, empty directory. Only the bucket, and what the application itself reads and writes
outside, stay.
"""

import json
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from random import Random

from penstock.connectors.file import read_committed_parts
from penstock.core.errors import RequestError
from tests.spark.test_run_command import Run

ROOMS = ("attic", "cellar", "hall")
START = 1_700_000_040
"""The full minute in which the readings start, one each second."""
READINGS_A_MINUTE = MINUTE = 60
CELSIUS_MAX = 41
MINUTES_A_KILL = 15
ROWS_PER_EPOCH = 120
SECONDS_MAX = 400.0
"""For Spark to start, or to run all epochs: a busy machine may need ten times the usual."""

APPLICATION = """
connector:
  - id: readings
    type: file
    config: {{mode: read, path: {outside}/readings.jsonl, chunk: 4096}}
    codec: json
    schema: room STRING, time LONG, celsius INT
    event_time: {{field: time, format: s}}
    interceptors: {{in: [{{type: split}}]}}
  - id: results
    type: file
    config: {{mode: write, path: {outside}/results}}
    codec: json
pipeline:
  - id: per-minute
    spark: per_minute.py:per_minute
    max_rows_per_epoch: {rows_per_epoch}
binding:
  id: house
  links:
    connector/readings/out: pipeline/per-minute/in
    pipeline/per-minute/out: connector/results/in
"""

PIPELINE = """
from penstock import windows

def per_minute(readings):
    return windows.aggregate(
        readings, windows.tumbling("1 minute"), keys=["room"], readings=windows.count(), celsius=windows.sum("celsius")
    )
"""


class MovedRun:
    """Each start is in a new directory, which has the files of the application and nothing else."""

    def __init__(self, folder: Path, url: str, minutes: int) -> None:
        self._folder = folder
        self._url = url
        self._minutes = minutes
        self._starts = 0
        self.outside = folder / "outside"
        self.outside.mkdir()
        lines = [json.dumps(self._reading(number)) for number in range(minutes * READINGS_A_MINUTE)]
        (self.outside / "readings.jsonl").write_text("".join(f"{line}\n" for line in lines))

    @staticmethod
    def _reading(number: int) -> dict[str, object]:
        return {"room": ROOMS[number % len(ROOMS)], "time": START + number, "celsius": number % CELSIUS_MAX}

    def start(self) -> Run:
        self._starts += 1
        machine = self._folder / f"machine-{self._starts}"
        machine.mkdir()
        values = {"outside": self.outside, "rows_per_epoch": ROWS_PER_EPOCH}
        (machine / "app.yaml").write_text(APPLICATION.format(**values))
        (machine / "per_minute.py").write_text(PIPELINE)
        return Run(machine, "app.yaml", "--store", self._url)

    def lose_machine(self) -> None:
        shutil.rmtree(self._folder / f"machine-{self._starts}", ignore_errors=True)

    def committed(self) -> list[bytes]:
        """Lines with their ends. The order within an epoch is not defined."""
        try:
            parts = read_committed_parts(self.outside / "results")
        except (RequestError, FileNotFoundError):  # nobody has written there yet
            return []
        return b"".join(part.path.read_bytes()[: part.size] for part in parts).splitlines(keepends=True)

    def expected(self) -> list[bytes]:
        """Calculated without Penstock and Spark, byte for byte; sorted, as the order depends on the epochs."""
        counts: Counter[tuple[str, int]] = Counter()
        sums: Counter[tuple[str, int]] = Counter()
        for number in range(self._minutes * READINGS_A_MINUTE):
            window = ROOMS[number % len(ROOMS)], (START + number) // MINUTE * MINUTE
            counts[window] += 1
            sums[window] += number % CELSIUS_MAX
        return sorted(_pane(room, start, counts[room, start], sums[room, start]) for room, start in counts)


def _pane(room: str, start: int, readings: int, celsius: int) -> bytes:
    end = start + MINUTE
    row = {"room": room, "window_start": _time(start), "window_end": _time(end), "pane": "on_time", "revision": 0}
    row |= {"readings": readings, "celsius": celsius}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def kill_and_move(folder: Path, url: str, kills: int, random: Random) -> None:
    """Each kill meets a run that has committed something, and is about to commit more."""
    moved = MovedRun(folder, url, minutes=MINUTES_A_KILL * (kills + 1))
    for _ in range(kills):
        before = len(moved.committed())
        with moved.start() as run:
            run.until(lambda before=before: len(moved.committed()) > before, SECONDS_MAX)  # type: ignore[misc]
            time.sleep(random.uniform(0, 1))
            run.kill()
        moved.lose_machine()
    assert len(moved.committed()) < len(moved.expected()), "the kills came too late"
    with moved.start() as run:
        run.until(lambda: len(moved.committed()) >= len(moved.expected()), SECONDS_MAX)
        run.process.terminate()
        assert run.ended() == 0, run.said
    found, expected = sorted(moved.committed()), moved.expected()
    assert found == expected, [pair for pair in zip_longest(found, expected) if pair[0] != pair[1]][:3]
