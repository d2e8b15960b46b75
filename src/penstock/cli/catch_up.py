"""How long a pipeline needs to read what waits for it, at the rates of now. Pure."""

from penstock.cli.texts import show_seconds
from penstock.core.sizes import show_size
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import PipelineRates, RatesStatus

_LEAST_SECONDS = 2.0
"""What is read sooner than this is no backlog."""

_LEAST_BYTES = 64 << 10
"""Nor is so little: it is read in one epoch."""

_EPOCHS = 2.0
"""Nor what fewer epochs than this read: while one runs, the next one gathers."""

_GAIN_MIN = 0.02
"""Of what is read, the part by which the lag shrinks. With less, it is noise."""


def lag_text(one: PipelineStatus, rates: RatesStatus) -> str:
    """`3.2 GiB, 40 s at this rate`; only the size for a pipeline that keeps up, or that reads nothing now."""
    rest = catch_up_text(one, rates)
    return f"{show_size(one.lag_bytes)}, {rest}" if rest else show_size(one.lag_bytes)


def catch_up_text(one: PipelineStatus, rates: RatesStatus) -> str:
    """Empty for a pipeline that keeps up, that reads nothing now, or that has completed no epoch yet."""
    reading = rates.pipelines.get(one.name, PipelineRates())
    if one.lag_bytes < _LEAST_BYTES or not reading.bytes_in_per_second or reading.epoch_seconds is None:
        return ""
    seconds = one.lag_bytes / reading.bytes_in_per_second
    if seconds < max(_LEAST_SECONDS, _EPOCHS * reading.epoch_seconds):
        return ""
    gain = 1.0 - arriving(one, rates) / reading.rows_in_per_second if reading.rows_in_per_second else 1.0
    return f"{show_seconds(seconds / gain)} at this rate" if gain >= _GAIN_MIN else "as much arrives as is read"


def arriving(one: PipelineStatus, rates: RatesStatus) -> float:
    """Events per second that its inputs get now; of segments that others write it is not known."""
    total = 0.0
    for name in dict.fromkeys(source for sources in one.inputs.values() for source in sources):
        if name.startswith("pipeline:"):
            other = rates.pipelines.get(name.removeprefix("pipeline:").partition("/")[0])
            total += 0.0 if other is None else other.rows_out_per_second
        elif name in rates.sources:
            total += rates.sources[name].events_per_second
    return total
