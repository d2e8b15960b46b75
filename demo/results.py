"""Reads what the sink has committed, and works out whether it is right."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from demo.events import PROGRAMS, STREAMS, Cell, Total, expected, line
from penstock.client.segments import SegmentClient
from penstock.client.sink import read_committed
from penstock.core.errors import NoSuchSegment


@dataclass
class Results:
    """The total of each cell, as the sink has committed it: each window is emitted once."""

    file: Path
    totals: dict[Cell, Total] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    repeated: int = 0
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
                for each in file.read(end - self._offset).splitlines(keepends=True):
                    self._take(each)
            self._offset = end

    def _take(self, line: bytes) -> None:
        row = json.loads(line)
        start = datetime.fromisoformat(row["window_start"])
        cell = Cell(round(start.timestamp() * 1000), row["vehicle"])
        self.repeated += cell in self.totals
        self.totals[cell] = Total(row["count"], row["amount"])
        self.lines.append(line)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Computed from the data alone."""

    sent: int
    stored: int
    processed: int
    late: int
    repeated: int
    wrong_cells: int
    has_right_bytes: bool
    """All that was committed. The order of lines depends on where epochs end."""

    @property
    def is_good(self) -> bool:
        is_right = self.has_right_bytes and not (self.late or self.repeated or self.wrong_cells)
        return is_right and self.sent == self.stored == self.processed


def judge(address: str, results: Results, per_stream: int) -> Verdict:
    right, totals = expected(per_stream), results.totals
    cells = right.keys() | totals.keys()
    return Verdict(
        sent=len(PROGRAMS) * len(STREAMS) * per_stream,
        stored=_events(address, [f"connector/{program}/{route}" for program in PROGRAMS for route in range(2)]),
        processed=sum(total.count for total in totals.values()),
        late=_events(address, ["pipeline/traffic/late", "pipeline/traffic/err"]),
        repeated=results.repeated,
        wrong_cells=sum(right.get(cell) != totals.get(cell) for cell in cells),
        has_right_bytes=sorted(results.lines) == sorted(line(cell, total) for cell, total in right.items()),
    )


def _events(address: str, segments: Sequence[str]) -> int:
    """Those without data only mark a stream's start or end. A port that nothing left through has no segment."""
    count = 0
    with SegmentClient(address) as client:
        for name in segments:
            with suppress(NoSuchSegment):
                count += sum(bool(event.data) for event in client.events(name))
    return count
