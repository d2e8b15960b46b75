"""How long a pipeline that is behind needs to catch up at its current rates. Pure."""

from collections.abc import Iterator

from penstock.core.durations import show_seconds
from penstock.core.sizes import show_size
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import PipelineRates, RatesStatus, WorkerStatus

_LEAST_SECONDS = 2.0
"""A lag that is read in less time does not count as a backlog."""

_LEAST_BYTES = 64 << 10
"""Nor does a lag of fewer bytes: one epoch reads it."""

_EPOCHS = 2.0
"""Nor does a lag that takes fewer epochs: while one epoch runs, the events of the next one always gather."""

_GAIN_MIN = 0.02
"""The part of the reading rate that must go into reducing the lag. An estimate from less would be noise."""


def lag_text(one: PipelineStatus, rates: RatesStatus) -> str:
    """`3.2 GiB, 40 s at this rate`; only the size if the pipeline keeps up, or reads nothing now."""
    rest = catch_up_text(one, rates)
    return f"{show_size(one.lag_bytes)}, {rest}" if rest else show_size(one.lag_bytes)


def backlogs(status: WorkerStatus, named: int | None) -> Iterator[str]:
    """A sentence for each pipeline that is behind, for at most so many; None: for all."""
    texts = {one.name: catch_up_text(one, status.rates) for one in status.pipelines}
    behind = [one for one in status.pipelines if texts.get(one.name)]
    for one in behind[:named]:
        yield f"pipeline {one.name}: lag {show_size(one.lag_bytes)}, {texts[one.name]}"
    if more := len(behind[len(behind) if named is None else named :]):
        yield f"{more} more {'pipelines are' if more > 1 else 'pipeline is'} behind"


def catch_up_text(one: PipelineStatus, rates: RatesStatus) -> str:
    """Empty if the pipeline keeps up, does not run, reads nothing now, or has not completed an epoch yet."""
    reading = rates.pipelines.get(one.name, PipelineRates())
    if (
        one.state != "RUNNING"
        or one.lag_bytes < _LEAST_BYTES
        or not reading.bytes_in_per_second
        or reading.epoch_seconds is None
    ):
        return ""
    seconds = one.lag_bytes / reading.bytes_in_per_second
    if seconds < max(_LEAST_SECONDS, _EPOCHS * reading.epoch_seconds):
        return ""
    gain = 1.0 - arriving(one, rates) / reading.rows_in_per_second if reading.rows_in_per_second else 1.0
    return (
        f"{show_seconds(seconds / gain)} at this rate" if gain >= _GAIN_MIN else "input arrives as fast as it is read"
    )


def arriving(one: PipelineStatus, rates: RatesStatus) -> float:
    """Events per second that arrive in its inputs now, without segments that other programs write: no rate is known."""
    total = 0.0
    for name in dict.fromkeys(source for sources in one.inputs.values() for source in sources):
        if name.startswith("pipeline:"):
            other = rates.pipelines.get(name.removeprefix("pipeline:").partition("/")[0])
            total += 0.0 if other is None else other.rows_out_per_second
        elif name in rates.sources:
            total += rates.sources[name].events_per_second
    return total
