"""Reads what the pipeline has put out, and works out whether it is right."""

import json
from contextlib import suppress
from dataclasses import dataclass, field

from demo.events import PROGRAMS, STREAMS, Cell, Total, expected
from penstock.client.segments import SegmentClient
from penstock.core.errors import NoSuchSegment, Unavailable
from penstock.protocol.stored import parse_event

OUTPUT = "pipeline/traffic/out"


@dataclass
class Results:
    """The last total of each cell; every epoch puts out all of them anew."""

    address: str
    totals: dict[Cell, Total] = field(default_factory=dict)
    rows: int = 0
    _offset: int = 0

    def read_on(self) -> None:
        """Take in what is new. A worker that is away is asked again the next time."""
        with suppress(NoSuchSegment, Unavailable), SegmentClient(self.address, retry_seconds=0) as client:
            for event in client.events(OUTPUT, self._offset):
                self._take(event.data)
                self._offset = event.end

    def _take(self, data: bytes) -> None:
        event = parse_event(data)
        assert event is not None
        row = json.loads(event.payload)
        self.totals[Cell(row["window_ms"], row["key"])] = Total(row["count"], row["amount"])
        self.rows += 1


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
