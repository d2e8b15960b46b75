"""Whether what pipelines have made of a source's events has also passed through the pipelines behind them.

source ──▶ first ──▶ second ──▶ sink          `first` is done with a stream's end before `second` has seen it
"""

from collections.abc import Iterable

from penstock.coordinator.deliveries import Deliveries
from penstock.protocol.stored.names import Form, Source

LOOK_SECONDS = 60.0
"""For nothing but news does it wait; this is only so that a mistake here would not be for ever."""


class Passing:
    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def passed(self, source: str) -> None:
        """Return when all pipelines behind those that read the source have completed what these had put out when they
        were done with it. Where no pipeline reads another one's output: at once.
        """
        sources, seen = {source}, set[str]()
        while sources:
            readers = self._readers(sources) - seen
            seen |= readers
            sources = self._outputs(readers)
            await self._completed(sources)

    def _readers(self, sources: Iterable[str]) -> set[str]:
        read = frozenset(sources)
        return {name for name, pipeline in self._deliveries.state.pipelines.items() if pipeline.sources & read}

    def _outputs(self, pipelines: Iterable[str]) -> set[str]:
        """Those that somebody reads."""
        made = frozenset(pipelines)
        return {source for source in self._deliveries.state.released if _pipeline_of(source) in made}

    async def _completed(self, sources: Iterable[str]) -> None:
        ends = {source: self._deliveries.records.end(_segment(source)) for source in sources}
        while True:
            seen = self._deliveries.news.count
            if all(self._is_completed(source, end) for source, end in ends.items()):
                return
            if self._deliveries.news.is_over:
                return
            await self._deliveries.news.wait(seen, LOOK_SECONDS)

    def _is_completed(self, source: str, end: int) -> bool:
        """Also when nobody reads it any more."""
        released = self._deliveries.state.released.get(source)
        return released is None or released.get(_segment(source), 0) >= end


def _pipeline_of(source: str) -> str | None:
    parsed = Source.parse(source)
    return parsed.name.partition("/")[0] if parsed.form is Form.OUTPUT else None


def _segment(source: str) -> str:
    segment = Source.parse(source).segment
    assert segment is not None, "outputs have one"
    return segment
