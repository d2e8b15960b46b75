"""What flowed through the worker in the last hour: samples in memory, for people who look at charts."""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from math import nan

from penstock.coordinator.flow import Flow, PastEpoch
from penstock.protocol.api.history import EpochTimes, WorkerHistory

SAMPLE_SECONDS = 5.0
SAMPLES_MAX = 720
"""An hour."""
SERIES_MAX = 1000
"""8 bytes for each sample of each: 6 MB. Of a worker with more sources and pipelines, the first ones are kept."""
_SLACK = 60
"""Samples beyond the hour before they are removed: together, because each removal moves all the others."""


class History:
    """`clock` is that of the wall; samples are taken at whole multiples of SAMPLE_SECONDS, so that those of several
    shards fall together.
    """

    def __init__(self, measure: Callable[[], Mapping[str, float]], clock: Callable[[], float]) -> None:
        self._measure = measure
        self._clock = clock
        self._times = array("d")
        self._series: dict[str, array[float]] = {}
        """A value for each time; NaN where there was none."""
        self._not_kept: frozenset[str] = frozenset()
        """Names in the last sample that have no series."""

    def sample(self) -> None:
        """Every SAMPLE_SECONDS."""
        values = self._measure()
        for name in values:
            if name not in self._series and len(self._series) < SERIES_MAX:
                self._series[name] = array("d", [nan]) * len(self._times)
        self._not_kept = frozenset(values.keys() - self._series.keys())
        self._times.append(self._clock() // SAMPLE_SECONDS * SAMPLE_SECONDS)
        for name, known in self._series.items():
            known.append(round(values.get(name, nan), 3))
        if len(self._times) >= SAMPLES_MAX + _SLACK:
            self._forget()

    def _forget(self) -> None:
        del self._times[:-SAMPLES_MAX]
        for known in self._series.values():
            del known[:-SAMPLES_MAX]
        self._series = {name: known for name, known in self._series.items() if any(value == value for value in known)}

    def reply(self, flow: Flow | None, wanted: Collection[str] = ()) -> WorkerHistory:
        """`wanted`: these series, and the epochs of their pipelines; none: all of them."""
        return WorkerHistory(
            seconds=SAMPLE_SECONDS,
            times=self._times[-SAMPLES_MAX:].tolist(),
            series={
                name: [None if value != value else value for value in known[-SAMPLES_MAX:]]
                for name, known in self._series.items()
                if not wanted or name in wanted
            },
            epochs={} if flow is None else self._epochs(flow, {_pipeline_of(name) for name in wanted}),
            not_kept=sorted(self._not_kept.intersection(wanted)),
        )

    def _epochs(self, flow: Flow, wanted: Collection[str]) -> dict[str, list[EpochTimes]]:
        """From the flow's clock, which does not know the date, to the wall's."""
        shift = self._clock() - flow.clock()
        found = {name: one for name, one in flow.pipelines.items() if not wanted or name in wanted}
        return {name: [_times(one, shift) for one in pipeline.past] for name, pipeline in found.items()}


def _pipeline_of(series: str) -> str:
    """Empty for a series of something else."""
    kind, _, rest = series.partition("/")
    return rest.rpartition("/")[0] if kind == "pipeline" else ""


def _times(epoch: PastEpoch, shift: float) -> EpochTimes:
    arrived, merged = (None if one is None else round(one + shift, 3) for one in (epoch.arrived, epoch.merged_at))
    cut, complete = (round(one + shift, 3) for one in (epoch.cut_at, epoch.complete_at))
    return EpochTimes(epoch.number, arrived, cut, merged, complete)


def joined(histories: Sequence[WorkerHistory]) -> WorkerHistory:
    """Of several shards, each of which has sources and pipelines of its own; of a source in several, the sum."""
    times = sorted({time for one in histories for time in one.times})[-SAMPLES_MAX:]
    series: dict[str, dict[float, float]] = {}
    for one in histories:
        for name, values in one.series.items():
            known = series.setdefault(name, {})
            for time, value in zip(one.times, values, strict=True):
                if value is not None:
                    known[time] = known.get(time, 0.0) + value
    return WorkerHistory(
        seconds=SAMPLE_SECONDS,
        times=times,
        series={name: [known.get(time) for time in times] for name, known in series.items()},
        epochs={name: found for one in histories for name, found in one.epochs.items()},
        not_kept=sorted({name for one in histories for name in one.not_kept} - series.keys()),
    )
