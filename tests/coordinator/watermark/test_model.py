"""For any records, any cuts and any crashes of the worker, the watermark is what its definition says."""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator.settings import Connectors
from penstock.coordinator.watermark.source_table import StreamTable, Terms, advanced
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import OF_SEGMENTS, Mark, MarkKind
from tests.coordinator.scene import SETTINGS, Scene
from tests.coordinator.watermark import reference as reference
from tests.coordinator.watermark.test_source_table import head

SOURCES = ("s", "t")
DISORDER = {"s": 5, "t": 0}
SEGMENTS = ("connector/s/0", "connector/s/1", "connector/t/0")


class Record(NamedTuple):
    """One append of a connector: events by stream, None for one without a time, and marks."""

    segment: int
    events: dict[int, int | None]
    marks: list[Mark]

    @property
    def source(self) -> str:
        return "t" if self.segment == 2 else "s"


def _streams(segment: int) -> st.SearchStrategy[int]:
    """A stream is always in the same segment."""
    return st.sampled_from([10 * segment + 1, 10 * segment + 2, 10 * segment + 3])


@st.composite
def _records(draw: st.DrawFn) -> Record:
    segment = draw(st.integers(0, 2))
    times = st.integers(-20, 60) | st.none()
    events = draw(st.dictionaries(_streams(segment), times, max_size=3))
    kinds = [kind for kind in MarkKind if kind not in OF_SEGMENTS]
    mark = st.builds(Mark, _streams(segment), st.sampled_from(kinds), st.just(""), st.integers(-20, 80), st.none())
    marks = draw(st.lists(mark, max_size=2, unique_by=lambda mark: mark.stream_id))
    if draw(st.integers(0, 9)) == 0:
        marks.append(Mark(segment, MarkKind.FINISHED, "", 1 if segment == 2 else 2))
    if draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from([MarkKind.CLOCK, MarkKind.IDLE_CLOCK]))
        marks.append(Mark(segment, kind, "", draw(st.integers(-20, 80)), 1 if segment == 2 else 2))
    return Record(segment, events, marks)


records = st.lists(_records(), max_size=20)


def _times(record: Record) -> dict[int, int]:
    return {stream_id: NO_TIME if time is None else time for stream_id, time in record.events.items()}


@pytest.mark.slow
@settings(max_examples=400)
@given(records)
def test_the_watermark_of_a_table_matches_its_definition(came: list[Record]) -> None:
    table, sources = StreamTable(), {name: reference.Source() for name in SOURCES}
    terms = Terms(frozenset(SOURCES), DISORDER.__getitem__)
    for record in came:
        table.fold(record.source, [head(_times(record), *record.marks)])
        sources[record.source].record(record.events, record.marks)
        assert table.watermark(terms) == reference.watermark(sources, DISORDER)
        blocker = table.blocker(terms)
        if blocker is not None:
            assert blocker.time == table.watermark(terms), "what is named is what blocks it"


class Step(NamedTuple):
    """Some records, then a cut; the worker may crash before or after it."""

    came: list[Record]
    reopens: bool
    written: bool


steps = st.lists(
    st.builds(Step, st.lists(_records(), min_size=1, max_size=4), st.booleans(), st.booleans()), min_size=1, max_size=5
)


@settings(max_examples=40)
@given(steps)
def test_cuts_have_the_watermark_of_their_position_across_restarts_and_after_truncation(
    given_steps: list[Step],
) -> None:
    asyncio.run(_run(given_steps))


async def _run(given_steps: list[Step]) -> None:
    scene = Scene(settings=SETTINGS, connectors=Connectors(DISORDER.__getitem__))
    await scene.open()
    try:
        scene.create(*SEGMENTS)
        await scene.start(source=SOURCES, outputs=())
        at, expected = await scene.initial(), None
        sources = {name: reference.Source() for name in SOURCES}
        for step in given_steps:
            for record in step.came:
                await scene.ingest(SEGMENTS[record.segment], _times(record), record.marks)
                sources[record.source].record(record.events, record.marks)
            at = (await scene.cut(at)).offset
            now = reference.watermark(sources, DISORDER)
            expected = now if expected is None else max(expected, expected if now is None else now)
            assert at.watermark == expected
            if step.written:  # as a truncation does
                scene.coordinator._shared.watermarks._before_truncate(SEGMENTS[0])
            if step.reopens:
                await scene.reopen()
                table = scene.coordinator._shared.watermarks._current["p"].table
                terms = Terms(frozenset(SOURCES), DISORDER.__getitem__)
                assert advanced(None, table, terms) == now
    finally:
        await scene.close()
