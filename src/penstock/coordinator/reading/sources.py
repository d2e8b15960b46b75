"""From sources to their segments, and from a place to start at to offsets in them."""

from collections.abc import Iterable, Sequence

from penstock.coordinator.messages import AtSegments, AtTime, Segments, Starting
from penstock.coordinator.reading.records import Records
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import Source, connector_segment
from penstock.store.store import SegmentStore


class Sources:
    def __init__(self, store: SegmentStore, records: Records) -> None:
        self._store = store
        self._records = records

    def segments(self, source: str) -> list[str]:
        """Those that are there: a source that does not exist yet is simply empty."""
        parsed = Source.parse(source)
        if parsed.segment is not None:
            return [parsed.segment] if self._store.exists(parsed.segment) else []
        names: list[str] = []
        while self._store.exists(name := connector_segment(parsed.name, len(names))):
            names.append(name)
        return names

    def all_segments(self, sources: Iterable[str]) -> list[str]:
        return [*dict.fromkeys(name for source in sources for name in self.segments(source))]

    async def resolve(self, sources: Sequence[str], starting: Starting) -> dict[str, int]:
        """Where `starting` is in each of the sources' segments. "latest": where the durable bytes end."""
        names = self.all_segments(sources)
        match starting:
            case "earliest":
                return {name: self._records.begin(name) for name in names}
            case "latest":
                return {name: self._records.end(name) for name in names}
            case AtTime(timestamp_us):
                return {name: await self._at_time(name, timestamp_us) for name in names}
            case AtSegments(segments):
                return self._at_segments(sources, names, segments)
            case _:
                raise RequestError(f"{starting!r} is no place to start at")

    def _at_segments(self, sources: Sequence[str], names: list[str], given: Segments) -> dict[str, int]:
        parsed = [Source.parse(source) for source in sources]
        for name, offset in given.items():
            if not any(source.owns(name) for source in parsed):
                raise RequestError(f"segment {name!r} belongs to none of the sources {', '.join(sources)}")
            if offset > self._records.end(name):
                raise RequestError(f"segment {name!r} ends at {self._records.end(name)}, before {offset}")
            if not self._records.begins_an_event(name, offset):
                raise RequestError(
                    f"no event begins at offset {offset} of segment {name!r}",
                    "Take it from the offset column of a row, or from a cut.",
                )
        return {name: self._records.begin(name) for name in names} | dict(given)

    async def _at_time(self, name: str, timestamp_us: int) -> int:
        """Where the first record begins that has an event of this time, or a later one; or the end."""
        at, end = self._records.begin(name), self._records.end(name)
        async for records in self._records.walk(name, at, end):
            for record in records:
                if record.highest >= timestamp_us:
                    return at
                at = record.end
        return at


def normalised(sources: Iterable[str]) -> tuple[str, ...]:
    """Each once, written as `Source` does. Raises RequestError for what is no source."""
    return tuple(dict.fromkeys(str(Source.parse(source)) for source in sources))
