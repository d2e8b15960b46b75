"""Clock marks: a source whose watermark follows the worker's clock records it in the journal, if a pipeline waits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from penstock.coordinator.open_windows import NO_DEMAND, Demand
from penstock.ingest.batch import Batch, Values, stored_batch
from penstock.ingest.event_times import ArrivalClock
from penstock.ingest.known_streams import active_again, ended, started
from penstock.ingest.settings import SourceSettings, WhenAllIdle
from penstock.ingest.source_log import SourceLog
from penstock.ingest.time_marks import MARK_US_MAX, MARK_US_MIN, SECOND_US, ClockMarks
from penstock.protocol.connector import Message
from penstock.protocol.stored.head import Mark, MarkKind
from penstock.store.file_journal import FileJournal
from penstock.store.store import SegmentStore
from penstock.testing.memory_files import MemoryFiles
from tests.coordinator.scene import STORE
from tests.ingest.completion_scene import until_stored
from tests.ingest.conftest import Connect, Serve
from tests.ingest.out_ports.scene import full_disk
from tests.support.heads import decode_head

ARRIVAL = SourceSettings(segments=2, arrival_time=True)
IDLE_CLOCK = SourceSettings(
    segments=2, idle_timeout_seconds=10.0, when_all_idle=WhenAllIdle.CLOCK, max_disorder_us=3 * SECOND_US
)
INGEST = SourceSettings(segments=1, event_time_ingest=True)
UNDECLARED = SourceSettings(segments=1, arrival_time=None)
START = 1_000 * SECOND_US
TICK_US = 200_000


def due(*times: int) -> Demand:
    return Demand(frozenset(times))


@dataclass
class ClockScene:
    """A connector on a journal in memory, whose clock is advanced by the test."""

    settings: SourceSettings = ARRIVAL
    now: int = START
    demand: Demand = NO_DEMAND

    def __post_init__(self) -> None:
        self._files = MemoryFiles()
        self.open()

    def open(self) -> None:
        self.journal = FileJournal(self._files, STORE)
        self.store = SegmentStore(self.journal, STORE)
        self.clock = ArrivalClock(lambda: self.now)
        self.log = SourceLog("s", self.store, self.settings, 1 << 20, self.clock)
        self.marks = ClockMarks(self.clock)
        self.marks.demand = lambda: {"s": self.demand, "t": Demand(is_unknown=True)}

    def reopen(self) -> None:
        self.journal.commit()
        self.journal.close()
        self.open()

    def begin(self, stream_id: int) -> None:
        known = self.log.find(stream_id, f"stream {stream_id}")
        self.log.append([Batch(known.route, [started(stream_id, known)])])

    def event(self, stream_id: int, number: int = 1, time_us: int | None = None) -> None:
        at = self.clock.now() if time_us is None else time_us
        batch = stored_batch(self.log.streams[stream_id].route, stream_id, Values([b"v"], [number], at))
        waking = [active_again(stream_id)] if stream_id in self.log.streams.idle else []
        self.log.append([batch._replace(marks=waking)])

    def pass_time(self, seconds: float, step: float = 0.2) -> None:
        for _ in range(round(seconds / step)):
            self.now += round(step * SECOND_US)
            self.marks.tick([self.log])

    def marked(self, route: int = 0, kind: MarkKind = MarkKind.CLOCK) -> list[int]:
        """The times of the marks in a segment, in order."""
        return [mark.value or 0 for mark in self._all(route) if mark.kind is kind]

    def _all(self, route: int) -> Iterator[Mark]:
        self.journal.commit()
        info = self.store.info(f"connector/s/{route}")
        for _, data in self.store.heads(info.name, info.start, info.length):
            head = decode_head(data)
            yield from head.marks if head is not None else ()


def test_no_clock_mark_is_written_without_demand() -> None:
    scene = ClockScene()
    scene.begin(1)
    scene.event(1)
    scene.pass_time(120)
    scene.demand = due(scene.now + 60 * SECOND_US)
    scene.pass_time(59)
    assert scene.marked() == []


def test_a_window_end_that_the_clock_has_passed_is_marked_once_in_each_segment() -> None:
    scene = ClockScene(demand=due(START + 5 * SECOND_US))
    scene.begin(1)
    scene.event(1)
    scene.pass_time(60)
    (time,) = scene.marked(0)
    assert START + 5 * SECOND_US <= time <= START + 5.2 * SECOND_US
    assert scene.marked(1) == [time]
    assert scene.log.clock_us == time


def test_a_lagging_pipeline_does_not_prevent_marks_for_another() -> None:
    lagging, next_one = START + 5 * SECOND_US, START + 100 * SECOND_US
    scene = ClockScene(demand=due(lagging, next_one))
    scene.begin(1)
    scene.event(1)
    scene.pass_time(200)
    assert [time // SECOND_US for time in scene.marked()] == [lagging // SECOND_US, next_one // SECOND_US]


def test_clock_marks_are_rate_limited_however_many_windows_end() -> None:
    scene = ClockScene()
    scene.begin(1)
    for _ in range(100):
        scene.demand = due(scene.now + 1)
        scene.pass_time(0.2)
    marked = scene.marked()
    assert 15 <= len(marked) <= 21
    assert min(after - before for before, after in pairwise(marked)) >= MARK_US_MIN


def test_with_unknown_demand_clock_marks_become_rarer_while_the_source_is_silent() -> None:
    scene = ClockScene(demand=Demand(is_unknown=True))
    scene.begin(1)
    scene.event(1)
    scene.pass_time(3600)
    marked = scene.marked()
    pauses = [after - before for before, after in pairwise(marked)]
    assert MARK_US_MIN <= pauses[0] < 2 * MARK_US_MIN
    assert pauses[-1] <= MARK_US_MAX + SECOND_US
    assert all(later >= earlier - TICK_US for earlier, later in pairwise(pauses)), "they grow, but for a tick"
    assert len(marked) < 90, "about one a minute in the end"
    scene.event(1, 2)
    scene.pass_time(10)
    assert len(scene.marked()) >= len(marked) + 4, "something came"


def test_a_source_that_has_ended_or_sends_event_times_gets_no_clock_marks() -> None:
    for has_ended in (True, False):
        scene = ClockScene(demand=Demand(is_unknown=True))
        if has_ended:
            scene.log.finish()
        else:
            scene.log.times.record(own_times=True)
        scene.pass_time(10)
        assert scene.marked() == []
    scene.reopen()
    assert scene.log.times.has_own_times, "the worker remembers it"
    plain = ClockScene(replace(ARRIVAL, arrival_time=False), demand=Demand(is_unknown=True))
    plain.pass_time(10)
    assert plain.marked() == []


@pytest.mark.parametrize("settings", [INGEST, UNDECLARED], ids=["ingest", "undeclared"])
def test_where_event_times_are_optional_clock_marks_start_after_the_first_event_without_one(
    settings: SourceSettings,
) -> None:
    scene = ClockScene(settings, demand=Demand(is_unknown=True))
    scene.begin(1)
    scene.pass_time(10)
    scene.event(1, 1)  # as stored by a version that did not record whose time it has
    scene.reopen()
    scene.pass_time(10)
    assert scene.marked() == [], "what the program sends next may be older"
    scene.log.times.record(own_times=False)
    scene.event(1, 2)
    scene.pass_time(10)
    marked = len(scene.marked())
    assert marked > 1
    scene.reopen()
    scene.pass_time(10)
    assert len(scene.marked()) > marked, "the worker remembers it"
    scene.log.times.record(own_times=True)
    marked = len(scene.marked())
    scene.pass_time(10)
    scene.log.times.record(own_times=False)
    scene.pass_time(10)
    assert len(scene.marked()) == marked, "one is enough"


def test_no_event_is_below_a_clock_mark_after_the_clock_is_set_back_and_the_worker_restarts() -> None:
    scene = ClockScene(demand=Demand(is_unknown=True))
    scene.begin(1)
    scene.pass_time(10)
    marked = scene.marked()[-1]
    scene.now -= 3600 * SECOND_US
    assert scene.clock.now() >= marked
    for write_table_down in (False, True):
        if write_table_down:
            scene.log.snapshot()
        scene.reopen()
        assert scene.log.clock_us == marked
        assert scene.clock.now() == marked, "it stands still until the wall clock has caught up"
    count = len(scene.marked())
    scene.pass_time(60)
    assert len(scene.marked()) == count
    scene.now = marked + 10 * SECOND_US
    scene.pass_time(2)
    assert scene.marked()[-1] > marked


def test_a_full_disk_only_delays_the_clock_mark() -> None:
    scene = ClockScene(demand=due(START))
    with full_disk(scene.journal):
        scene.pass_time(5)
    assert scene.marked() == []
    scene.pass_time(1)
    assert len(scene.marked()) == 1


def test_a_source_with_event_times_gets_clock_marks_while_all_its_streams_are_idle() -> None:
    scene = ClockScene(IDLE_CLOCK, demand=due(START))

    def marked() -> list[int]:
        return scene.marked(kind=MarkKind.IDLE_CLOCK)

    scene.begin(1)
    scene.begin(2)
    scene.event(1, time_us=5)
    scene.pass_time(30)
    scene.log.mark_idle([1])
    scene.pass_time(30)
    assert marked() == [], "one of them may still send"
    scene.log.mark_idle([2])
    scene.pass_time(1)
    assert marked() == [scene.clock.now() - 800_000 - IDLE_CLOCK.max_disorder_us]
    assert scene.marked(1, MarkKind.IDLE_CLOCK) == marked()
    scene.demand = Demand(is_unknown=True)
    scene.event(1, 2, time_us=7)
    scene.pass_time(30)
    assert len(marked()) == 1, "it is active again"
    scene.reopen()
    scene.log.mark_idle([1])
    scene.pass_time(9)
    assert len(marked()) == 1, "the worker has just started: how long they were silent nobody knows"
    scene.pass_time(3)
    assert len(marked()) > 1


def test_after_all_streams_have_ended_clock_marks_start_only_after_the_timeout() -> None:
    scene = ClockScene(IDLE_CLOCK, demand=due(START))
    scene.begin(1)
    scene.pass_time(60)
    scene.event(1, time_us=5)
    scene.log.append([Batch(scene.log.streams[1].route, [ended(1)])])
    scene.pass_time(9)
    assert scene.marked(kind=MarkKind.IDLE_CLOCK) == [], "the next file may be about to be opened"
    scene.pass_time(2)
    assert len(scene.marked(kind=MarkKind.IDLE_CLOCK)) == 1


def test_a_source_set_to_wait_when_all_streams_are_idle_gets_no_clock_mark() -> None:
    scene = ClockScene(replace(IDLE_CLOCK, when_all_idle=WhenAllIdle.WAIT), demand=Demand(is_unknown=True))
    scene.begin(1)
    scene.log.mark_idle([1])
    scene.pass_time(120)
    assert scene.marked(kind=MarkKind.IDLE_CLOCK) == scene.marked() == []


@pytest.mark.parametrize("times", [(0, 0), (0, 1_700_000_000_000)], ids=["arrival times", "event times"])
async def test_events_of_a_program_get_their_arrival_time_until_one_has_an_event_time(
    serve: Serve, connect: Connect, times: tuple[int, ...]
) -> None:
    running = await serve(source=INGEST)
    running.sources.clock.promised(10**18)
    peer = await connect(running)
    await peer.open(1)
    assert not running.sources.log("source").times.are_arrival_times, "nobody knows what it will send"
    for number, time in enumerate(times, 1):
        peer.send(Message(1, number, time, b"", b"payload"))
    await until_stored(running, len(times))
    stored = [event.event_time for event in running.events()]
    assert stored == [10**18 if time == 0 else time * 1000 for time in times], "nothing is below what was promised"
    assert running.sources.log("source").times.are_arrival_times is not any(times)


async def test_event_times_sent_while_arrival_times_were_off_are_remembered(serve: Serve, connect: Connect) -> None:
    running = await serve(source=INGEST)
    peer = await connect(running)
    await peer.open(1)
    for number, (settings, time) in enumerate([(INGEST, 0), (replace(INGEST, event_time_ingest=False), 5)], 1):
        running.sources.configure("source", settings)
        peer.send(Message(1, number, time, b"", b"payload"))
        await until_stored(running, number)
    running.sources.configure("source", INGEST)
    assert not running.sources.log("source").times.are_arrival_times
