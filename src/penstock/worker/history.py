"""What flowed through the worker in the last hour: a ring of samples in memory, for people who look at charts."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.coordinator.flow import Flow, PastEpoch
from penstock.protocol.api.history import EpochTimes, WorkerHistory

SAMPLE_SECONDS = 5.0
SAMPLES_MAX = 720
"""An hour."""
SERIES_MAX = 1000
"""Values in a sample, about 16 MB in an hour. Of a worker with more sources and pipelines, the first ones are kept."""


class _Sample(NamedTuple):
    time: float
    values: Mapping[str, float]


class History:
    """`clock` is that of the wall; samples are taken at whole multiples of SAMPLE_SECONDS, so that those of several
    shards fall together.
    """

    def __init__(self, measure: Callable[[], Mapping[str, float]], clock: Callable[[], float]) -> None:
        self._measure = measure
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)

    def sample(self) -> None:
        """Every SAMPLE_SECONDS."""
        values = dict([*self._measure().items()][:SERIES_MAX])
        self._samples.append(_Sample(self._clock() // SAMPLE_SECONDS * SAMPLE_SECONDS, values))

    def reply(self, flow: Flow | None) -> WorkerHistory:
        names = dict.fromkeys(name for sample in self._samples for name in sample.values)
        return WorkerHistory(
            seconds=SAMPLE_SECONDS,
            times=[sample.time for sample in self._samples],
            series={name: [_rounded(sample.values.get(name)) for sample in self._samples] for name in names},
            epochs={} if flow is None else self._epochs(flow),
        )

    def _epochs(self, flow: Flow) -> dict[str, list[EpochTimes]]:
        """From the flow's clock, which does not know the date, to the wall's."""
        shift = self._clock() - flow.clock()
        return {name: [_times(one, shift) for one in found.past] for name, found in flow.pipelines.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _times(epoch: PastEpoch, shift: float) -> EpochTimes:
    arrived, merged = (_rounded(None if one is None else one + shift) for one in (epoch.arrived, epoch.merged_at))
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
    )
