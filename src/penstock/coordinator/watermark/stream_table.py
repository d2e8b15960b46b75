"""What a pipeline's watermark is made of: of every active stream the highest event time, at the pipeline's own place.

A stream's watermark is its highest event time less its connector's disorder, or what was declared for it if that is
higher. The pipeline's is the least of them, and of the outputs that it reads.

- A stream that has begun and said nothing yet holds it back, for nobody knows where it begins; one whose events have no
  times does not. Streams that have ended or are idle hold nothing back.
- Where the worker's clock gives events their times, its marks say how far that has come: nobody waits for a stream
  then.
- Where no stream is active, it is the highest that any has had, or what the clock's marks say.
- A source that has ended for good holds nothing back. When all that is read has ended, it is END_OF_TIME.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.coordinator.watermark.source_table import SILENT, SourceTable, Times
from penstock.core.types import Buffer
from penstock.protocol.stored.layout import END_OF_TIME, NO_TIME

__all__ = ["SILENT", "Held", "SourceTable", "StreamTable", "Terms", "Times", "advanced"]


class Terms(NamedTuple):
    """What the heads do not say: which connectors are read (None: those that were seen), and their disorder in µs."""

    connectors: frozenset[str] | None = None
    disorder: Callable[[str], int] = lambda _: 0


NO_DISORDER = Terms()


class Held(NamedTuple):
    """What holds a watermark back: a stream of a connector, the clock by which a connector's events get their times, or
    an output. These two have no stream.
    """

    source: str
    stream_id: int | None
    time: int | None
    """Its own watermark; None: it has none yet."""


class StreamTable:
    """Of each connector its streams. `outputs` has the watermarks of pipelines whose outputs are read, by source."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceTable] = {}
        self.outputs: dict[str, int | None] = {}

    def copy(self) -> "StreamTable":
        new = StreamTable()
        new.sources = {name: source.copy() for name, source in self.sources.items()}
        new.outputs = dict(self.outputs)
        return new

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def of(self, source: str) -> SourceTable:
        """The connector's part of the table, made if it is new."""
        return self.sources.setdefault(source, SourceTable())

    def forget(self, sources: Iterable[str]) -> None:
        """Those that the pipeline reads no more."""
        for source in [*sources]:
            self.sources.pop(source, None)

    def fold(self, source: str, heads: Iterable[Buffer]) -> int:
        """Take in records of one segment of the connector, in order; returns the number of events. Raises Damaged."""
        return self.of(source).fold(heads)

    def watermark(self, terms: Terms = NO_DISORDER) -> int | None:
        """None while it is not known, or held back by a stream that is silent, or an output that has none."""
        says = self._says(terms)
        holding = [time for time in says.values() if time < END_OF_TIME]
        if holding:
            found = min(holding)
        elif says and not self._speechless(terms, says):
            found = END_OF_TIME
        else:
            seen = [name for name in self._speechless(terms, says) if name in self.sources]
            found = max((self.sources[name].left(terms.disorder(name)) for name in seen), default=NO_TIME)
        return None if found == NO_TIME else found

    def held(self, terms: Terms = NO_DISORDER) -> Held | None:
        """What the watermark is held back by; None if nothing is active, or all has ended."""
        says = self._says(terms)
        source = min(says, key=lambda name: says[name], default=None)
        if source is None or says[source] >= END_OF_TIME:
            return None
        if source in self.outputs:
            return Held(source, None, self.outputs[source])
        slowest = self.sources[source].slowest(terms.disorder(source))
        assert slowest is not None
        return Held(source, slowest.stream_id, None if slowest.time == SILENT else slowest.time)

    def _says(self, terms: Terms) -> dict[str, int]:
        """The watermark of each source that has a say in it; NO_TIME if it is not known."""
        says = {name: NO_TIME if time is None else min(time, END_OF_TIME) for name, time in self.outputs.items()}
        for name, source in self.sources.items():
            found = END_OF_TIME if source.has_finished else source.watermark(terms.disorder(name))
            if found is not None:
                says[name] = found
        return says

    def _speechless(self, terms: Terms, says: Mapping[str, int]) -> list[str]:
        """The connectors without an active stream, that have not ended for good either."""
        connectors = self.sources.keys() if terms.connectors is None else terms.connectors
        return [name for name in connectors if name not in says]


def advanced(before: int | None, table: StreamTable, terms: Terms = NO_DISORDER) -> int | None:
    """The watermark of the next cut: it never goes back."""
    now = table.watermark(terms)
    return before if now is None else now if before is None else max(before, now)
