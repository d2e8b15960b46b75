"""How many windows a pipeline has open, and, in one sentence, what they wait for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.coordinator.cuts import Queries
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.settings import Connectors, SourceTimes
from penstock.coordinator.shared import Shared
from penstock.coordinator.watermark.source_table import Blocker
from penstock.core.errors import LimitExceeded
from penstock.core.sizes import show_size
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import BucketNumbers, PipelineStatus
from penstock.protocol.api.shards import ClockWanted
from penstock.protocol.api.status import OperatorStatus
from penstock.protocol.stored.names import Form, Source

# What the tasks of window operators report: the size of each bucket's state, and how many events were late.

OPERATORS_MAX = 100
"""Window operators of one pipeline: each is a stateful operator with a shuffle of its own."""

BUCKETS_MAX = 10_000
"""Buckets of one operator: each is visited in every epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatus:
    """The last report about a bucket, with the epoch and the generation it is from."""

    pipeline: str
    operator: str
    epoch: int
    numbers: BucketNumbers
    generation: int = 0


class Summary(NamedTuple):
    """Totals over all window operators of a pipeline."""

    epoch: int = NO_EPOCH
    """The last epoch that all of them have reported; -1: none."""
    waiting: int = 0
    first_end: int | None = None
    next_time: int | None = None
    buffered: int = 0


class WindowReports:
    """In memory only: after a restart of the worker, the next epoch reports everything again. Reports of a pipeline
    that was dropped or reset since are discarded.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reports: dict[tuple[str, int], dict[str, dict[int, BucketStatus]]] = {}
        self._summaries: dict[tuple[str, int], Summary] = {}
        """A cache: summaries are requested several times a second."""

    def report(
        self, name: str, generation: int | None, operator: str, epoch: int, buckets: Sequence[BucketNumbers]
    ) -> None:
        """Store the report about these buckets. Raises Fenced for an older generation; ignores an older epoch."""
        shared = self._shared
        pipeline = known(shared.state, name) if generation is None else shared.living(name, generation)
        self._forget()
        operators = self._reports.setdefault((name, pipeline.incarnation), {})
        self._summaries.pop((name, pipeline.incarnation), None)
        if operator not in operators and len(operators) >= OPERATORS_MAX:
            raise LimitExceeded(f"pipeline {name!r} has more than {OPERATORS_MAX} window operators")
        statuses = operators.setdefault(operator, {})
        for one in buckets:
            if one.bucket in statuses and statuses[one.bucket].epoch > epoch:
                continue
            if one.bucket not in statuses and len(statuses) >= BUCKETS_MAX:
                raise LimitExceeded(f"operator {operator!r} has more than {BUCKETS_MAX} buckets", "Use fewer.")
            statuses[one.bucket] = BucketStatus(
                pipeline=name, operator=operator, epoch=epoch, numbers=one, generation=pipeline.generation
            )
        self._forget_gone(operators, pipeline.generation)

    def operators(self) -> list[OperatorStatus]:
        self._forget()
        return [
            _together(name, operator, [*statuses.values()])
            for (name, _), operators in self._reports.items()
            for operator, statuses in operators.items()
            if statuses
        ]

    def summary(self, name: str) -> Summary:
        """Summarises what a pipeline has reported since the worker started."""
        pipeline = self._shared.state.pipelines.get(name)
        key = name, 0 if pipeline is None else pipeline.incarnation
        if key not in self._reports:
            return Summary()
        if key not in self._summaries:
            self._summaries[key] = _summary(
                [one for statuses in self._reports[key].values() for one in statuses.values()]
            )
        return self._summaries[key]

    def _forget_gone(self, operators: dict[str, dict[int, BucketStatus]], generation: int) -> None:
        """Forget operators that only an older generation has reported: the pipeline's function may no longer have
        them. If it does have one, that operator's own report of the same epoch adds it again.
        """
        epochs = [
            one.epoch for statuses in operators.values() for one in statuses.values() if one.generation == generation
        ]
        first = min(epochs, default=0)  # none: it repeats epochs that an older generation has reported
        for operator, statuses in [*operators.items()]:
            if all(one.generation < generation and one.epoch < first for one in statuses.values()):
                del operators[operator]

    def _forget(self) -> None:
        there = {(name, pipeline.incarnation) for name, pipeline in self._shared.state.pipelines.items()}
        for key in self._reports.keys() - there:
            del self._reports[key]
            self._summaries.pop(key, None)


def _together(name: str, operator: str, statuses: Sequence[BucketStatus]) -> OperatorStatus:
    numbers = [one.numbers for one in statuses]
    return OperatorStatus(
        pipeline=name,
        operator=operator,
        epoch=max(one.epoch for one in statuses),
        buckets=len(statuses),
        open_windows=sum(one.open_windows for one in numbers),
        keys=sum(one.keys for one in numbers),
        state_bytes=sum(one.state_bytes for one in numbers),
        bucket_bytes=max(one.state_bytes for one in numbers),
        late_kept=sum(one.late_kept for one in numbers),
        late_dropped=sum(one.late_dropped for one in numbers),
        waiting=sum(one.waiting for one in numbers),
        first_end=_least(one.first_end for one in numbers),
        buffered=sum(one.buffered for one in numbers),
    )


def _summary(statuses: Sequence[BucketStatus]) -> Summary:
    return Summary(
        min((one.epoch for one in statuses), default=NO_EPOCH),
        sum(one.numbers.waiting for one in statuses),
        _least(one.numbers.first_end for one in statuses),
        _least(one.numbers.next_time for one in statuses),
        sum(one.numbers.buffered for one in statuses),
    )


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


# Clock demand: which times the windows of pipelines wait for, by the source whose clock must reach them.
#
# A window waits until its pipeline's watermark reaches its end. Where the watermark of a source follows the worker's
# clock, that takes a mark in the journal, and an epoch of every pipeline that reads the source. So a mark is written
# only if a window waits for it, and only when the clock has reached the time that the window waits for.


class Demand(NamedTuple):
    """What the windows of all pipelines that read a source wait for."""

    next_times: frozenset[int] = frozenset()
    """For each pipeline with windows, the first time, in microseconds, at which one of them fires or is removed. All
    of these times count: a pipeline that lags reports an old time long after the mark that it needs was written."""
    is_unknown: bool = False
    """Whether there may be unreported state: in Spark's own operators, or in windows after a restart of the worker."""

    def __or__(self, other: "Demand") -> "Demand":
        return Demand(self.next_times | other.next_times, self.is_unknown or other.is_unknown)


NO_DEMAND = Demand()


class ClockDemand:
    """Computed on request, from the reports of running pipelines."""

    def __init__(self, shared: Shared, queries: Queries, windows: WindowReports) -> None:
        self._shared = shared
        self._queries = queries
        self._windows = windows
        self.others: Callable[[], Mapping[str, Demand]] = dict
        """What the windows of other shards wait for, by source of this one."""

    def wanted(self, source: str) -> ClockWanted:
        """What the windows of this shard, and those that follow them in others, wait for in a source."""
        pipelines, found = self._shared.state.pipelines, NO_DEMAND
        for name in pipelines:
            demand = self._of(name)
            if demand != NO_DEMAND and source in map(str, upstream_sources(pipelines, name)):
                found |= demand
        for output, demand in self.others().items():
            if source in map(str, upstream_sources(pipelines, Source.parse(output).name.partition("/")[0])):
                found |= demand
        return ClockWanted(sorted(found.next_times), found.is_unknown)

    def by_source(self) -> dict[str, Demand]:
        """The demand by connector, including the demand of pipelines that read it through other pipelines' outputs."""
        found: dict[str, Demand] = {}
        pipelines = self._shared.state.pipelines
        for name in pipelines:
            demand = self._of(name)
            if demand != NO_DEMAND:
                for source in upstream_connectors(pipelines, name):
                    found[source] = found.get(source, NO_DEMAND) | demand
        for text, demand in self.others().items():
            parsed = Source.parse(text)
            is_connector = parsed.form is Form.CONNECTOR
            for source in [text] if is_connector else upstream_connectors(pipelines, parsed.name.partition("/")[0]):
                found[source] = found.get(source, NO_DEMAND) | demand
        return found

    def _of(self, name: str) -> Demand:
        if self._shared.heartbeats.state(name) != "RUNNING":
            return NO_DEMAND
        time = self._windows.summary(name).next_time
        return Demand(frozenset() if time is None else frozenset({time}), self.is_unknown(name))

    def is_unknown(self, name: str) -> bool:
        """Whether a pipeline may have state that it has not reported."""
        pipeline = self._shared.state.pipelines[name]
        state, done = self._queries.state(name, pipeline.generation), max(pipeline.merged, pipeline.complete)
        is_behind = "reported" in state and self._windows.summary(name).epoch < done
        return is_behind or ("unreported" in state and done > NO_EPOCH)


def upstream_connectors(pipelines: Mapping[str, Pipeline], name: str) -> Iterator[str]:
    """The connectors that a pipeline reads, directly or through the outputs of other pipelines."""
    return (source.name for source in upstream_sources(pipelines, name) if source.form is Form.CONNECTOR)


def upstream_sources(pipelines: Mapping[str, Pipeline], name: str) -> Iterator[Source]:
    """The sources that a pipeline reads, directly or through the outputs of other pipelines of this shard."""
    waiting, seen = [name], {name}
    while waiting:
        pipeline = pipelines.get(waiting.pop())
        for source in map(Source.parse, sorted(pipeline.sources) if pipeline is not None else ()):
            producer = source.name.partition("/")[0]
            yield source
            if source.form is Form.OUTPUT and producer not in seen:
                seen.add(producer)
                waiting.append(producer)


class OpenWindows:
    """The open windows that pipelines have reported since the worker started."""

    def __init__(
        self,
        shared: Shared,
        windows: WindowReports,
        demand: ClockDemand,
        connectors: Connectors,
        now_us: Callable[[], int],
    ) -> None:
        self._shared = shared
        self._demand = demand
        self._windows = windows
        self._connectors = connectors
        self._now_us = now_us

    def shown(self, status: PipelineStatus) -> PipelineStatus:
        """The status, extended by what is known about the pipeline's windows."""
        summary = self._windows.summary(status.name)
        windows, events = (None, None) if summary.epoch < 0 else (summary.waiting, summary.buffered)
        found = replace(status, open_windows=windows, open_windows_end=summary.first_end, buffered_events=events)
        if not summary.waiting and not summary.buffered and not self._demand.is_unknown(status.name):
            return found
        upstream = upstream_connectors(self._shared.state.pipelines, status.name)
        unfinished = {one: self._connectors.times(one) for one in upstream if not self._connectors.has_finished(one)}
        to_end = [source for source, times in unfinished.items() if not _closes_by_clock(times)]
        return replace(
            found,
            open_windows_wait=why_open(self._watermarked(status.name), summary.first_end, self._now_us()),
            open_windows_sources=to_end,
            open_windows_by_clock=bool(unfinished) and not to_end,
        )

    def _watermarked(self, name: str, *seen: str) -> "Watermarked":
        """The pipeline whose own sources block the watermark: this one, or one upstream of it."""
        shared = self._shared
        pipeline, standing = shared.state.pipelines[name], shared.watermarks.standing(shared.state, name)
        blocker = None if standing is None else standing.blocker
        if blocker is not None and (source := Source.parse(blocker.source)).form is Form.OUTPUT:
            producer = source.name.partition("/")[0]
            if producer in shared.state.pipelines and producer not in seen:
                return self._watermarked(producer, name, *seen)
        sources = [str(one) for one in map(Source.parse, sorted(pipeline.sources)) if one.form is Form.CONNECTOR]
        return Watermarked(
            name=name,
            state=shared.heartbeats.state(name),
            lag_bytes=shared.reports.lag_bytes(shared.state, name),
            blocker=blocker,
            stream=self._stream_name(blocker),
            is_upstream=bool(seen),
            sources={source: self._connectors.times(source) for source in sources},
        )

    def _stream_name(self, blocker: Blocker | None) -> str:
        if blocker is None or blocker.stream_id is None:
            return ""
        return self._connectors.stream_name(blocker.source, blocker.stream_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarked:
    """A pipeline whose watermark closes windows: its own, or those of a pipeline that reads its output."""

    name: str
    state: str
    lag_bytes: int
    blocker: Blocker | None
    """What blocks its watermark; None: no stream is active."""
    stream: str
    """The name of the stream that blocks it, if a stream does."""
    sources: Mapping[str, SourceTimes]
    """The connectors that it reads."""
    is_upstream: bool = False
    """The windows are not its own, but those of a pipeline that reads its output."""


def why_open(pipeline: Watermarked, first_end: int | None, now_us: int) -> str:
    """What must happen before the first of the windows closes; the text follows "2 windows open, "."""
    if pipeline.state != "RUNNING":
        return f"waiting for pipeline {pipeline.name}, which is {pipeline.state}"
    times = pipeline.sources.get(_source_waited_for(pipeline), SourceTimes())
    follows_clock = _follows_clock(times, pipeline.blocker)
    if follows_clock and first_end is None:
        return "waiting for the worker's clock"
    due_us = (first_end or 0) + (0 if times.has_arrival_times else times.disorder_us)
    if follows_clock and now_us < due_us:
        return f"waiting for the worker's clock to reach {_moment(due_us, now_us)}"
    if pipeline.lag_bytes:
        progress = f"catching up ({show_size(pipeline.lag_bytes)})"
        return f"waiting for pipeline {pipeline.name}, which is {progress}" if pipeline.is_upstream else progress
    if follows_clock:
        return "waiting for the next epoch: the worker's clock has passed the first of them"
    return f"waiting for {_event_awaited(pipeline, times, now_us)}"


def _event_awaited(pipeline: Watermarked, times: SourceTimes, now_us: int) -> str:
    """The event that windows wait for when everything has been read and no clock advances the watermark."""
    blocker, source = pipeline.blocker, _source_waited_for(pipeline)
    if blocker is not None and blocker.source not in pipeline.sources:
        return f"the watermark of {blocker.source}, which is {_moment(blocker.time, now_us)}"
    is_only = blocker is not None and blocker.time is not None and times.active_streams == 1
    if blocker is None or blocker.stream_id is None or is_only:
        return f"the next event of {source}: {_silence(times, now_us)}; {_setting(times, blocker)}"
    stream = f"stream {pipeline.stream or blocker.stream_id} of {source}"
    if blocker.time is None:
        return f"{stream}: it is open, and no event of it has been read yet; {_setting(times, blocker)}"
    return f"{stream}, which is at {_moment(blocker.time, now_us)}; {_setting(times, blocker)}"


def _source_waited_for(pipeline: Watermarked) -> str:
    """The source that blocks the watermark; if none does, preferably one whose watermark follows a clock."""
    if pipeline.blocker is not None:
        return pipeline.blocker.source
    following = [name for name, times in pipeline.sources.items() if _follows_clock(times, None)]
    return next(iter([*following, *pipeline.sources]), "its sources")


def _follows_clock(times: SourceTimes, blocker: Blocker | None) -> bool:
    """Whether the watermark of the source moves without events."""
    return times.has_arrival_times or (blocker is None and times.follows_clock_when_idle)


def _closes_by_clock(times: SourceTimes) -> bool:
    """Whether windows over it close even if no more events arrive."""
    return times.has_arrival_times or times.follows_clock_when_idle


def _silence(times: SourceTimes, now_us: int) -> str:
    if times.last_event_us is None:
        return "nothing since the worker started"
    return f"nothing since {_moment(times.last_event_us, now_us)}"


def _setting(times: SourceTimes, blocker: Blocker | None) -> str:
    """The setting that makes the windows wait."""
    if times.idle_timeout_seconds is None:
        return "idle_timeout is off"
    return "when_all_idle is wait" if blocker is None else f"idle_timeout is {times.idle_timeout_seconds:g} s"


def _moment(us: int | None, now_us: int) -> str:
    """The time in UTC, with the date unless it is today."""
    if us is None:
        return "not known yet"
    try:
        time, now = (datetime.fromtimestamp(each / 1e6, UTC) for each in (us, now_us))
    except (OverflowError, ValueError, OSError):
        return f"{us} µs"
    return time.strftime("%H:%M:%S" if time.date() == now.date() else "%Y-%m-%d %H:%M:%S")
