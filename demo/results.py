"""Reads what the sink has committed, and works out whether it is right."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from demo.events import PROGRAMS, STREAMS, Cell, Total, expected
from penstock.client.segments import SegmentClient
from penstock.client.sink import read_committed


@dataclass
class Results:
    """The last total of each cell, as the sink has committed it; every epoch puts out all of them anew."""

    file: Path
    totals: dict[Cell, Total] = field(default_factory=dict)
    _offset: int = 0

    def read_on(self) -> None:
        """Take in what is new. What lies behind the committed size does not count."""
        try:
            end = read_committed(f"{self.file}.state").size
        except FileNotFoundError:  # nothing has ever been delivered
            return
        if end > self._offset:
            with self.file.open("rb") as file:
                file.seek(self._offset)
                for line in file.read(end - self._offset).splitlines():
                    self._take(line)
            self._offset = end

    def _take(self, line: bytes) -> None:
        row = json.loads(line)
        self.totals[Cell(row["window_ms"], row["key"])] = Total(row["count"], row["amount"])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Computed from the data alone."""

    sent: int
    stored: int
    processed: int
    wrong_cells: int

    @property
    def is_good(self) -> bool:
        return self.sent == self.stored == self.processed and not self.wrong_cells


def judge(address: str, totals: dict[Cell, Total], per_stream: int) -> Verdict:
    right = expected(per_stream)
    cells = right.keys() | totals.keys()
    return Verdict(
        sent=len(PROGRAMS) * len(STREAMS) * per_stream,
        stored=_stored(address),
        processed=sum(total.count for total in totals.values()),
        wrong_cells=sum(right.get(cell) != totals.get(cell) for cell in cells),
    )


def _stored(address: str) -> int:
    """Events in the sources' segments; those without data only mark a stream's start or end."""
    with SegmentClient(address) as client:
        names = [f"connector/{program}/{route}" for program in PROGRAMS for route in range(2)]
        return sum(bool(event.data) for name in names for event in client.events(name))
