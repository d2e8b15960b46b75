"""The summary at the end of `penstock run`: what each pipeline has read and written, and what is not delivered."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.cli.texts import printable
from penstock.client.coordinator import CoordinatorClient, SinkStatus
from penstock.core.counts import show_count
from penstock.core.durations import show_seconds
from penstock.core.errors import PenstockError
from penstock.core.sizes import show_size
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import PipelineRates, WorkerStatus
from penstock.spark import codecs

_ANSWER_SECONDS_MAX = 2.0
"""How long a command that is about to end waits for the worker's answer."""

_DEAD_LETTERS, _LATE = "err", "late"


@dataclass(frozen=True, slots=True)
class Counts:
    """What one pipeline has read and written."""

    events_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    late: int = 0

    def since(self, before: "Counts") -> "Counts":
        """What was added since `before`. A restarted worker counts from 0, so then everything was."""
        if self.events_in < before.events_in:
            return self
        return Counts(
            self.events_in - before.events_in,
            max(0, self.rows_out - before.rows_out),
            max(0, self.dead_letters - before.dead_letters),
            max(0, self.late - before.late),
        )


def counts_of(status: WorkerStatus) -> dict[str, Counts]:
    """The counts of each pipeline since the worker started."""
    return {name: _counts(rates) for name, rates in status.rates.pipelines.items()}


def _counts(rates: PipelineRates) -> Counts:
    out = sum(rows for port, rows in rates.rows_out.items() if port not in (_DEAD_LETTERS, _LATE) and is_own_port(port))
    return Counts(rates.rows_in, out, rates.rows_out.get(_DEAD_LETTERS, 0), rates.rows_out.get(_LATE, 0))


def is_own_port(port: str) -> bool:
    """False for a port that repeats the rows of another port in a different codec."""
    return "." not in port or port.rpartition(".")[2] not in codecs.names()


def summary(names: Collection[str], before: Mapping[str, Counts], status: WorkerStatus, seconds: float) -> list[str]:
    """A line for each pipeline that was run, or has done something; then the time, and what is not delivered."""
    after = counts_of(status)
    done = {name: counts.since(before.get(name, Counts())) for name, counts in after.items()}
    ran = [one for one in status.pipelines if one.name in names or done.get(one.name, Counts()) != Counts()]
    lines = [_line(one, done.get(one.name, Counts())) for one in ran]
    left = [text for one in ran for text in _left(one, status.sinks)]
    unknown = sorted({*names} - {one.name for one in status.pipelines})  # their shards have ended, or do not answer
    ends = [f"not delivered: {'; '.join(left)}"] if left else []
    ends += [f"not known to be delivered: {', '.join(unknown)}, which the worker does not report"] if unknown else []
    end = "; ".join(ends) or "everything is delivered"
    return [printable(line) for line in [*lines, f"ran for {show_seconds(seconds)}; {end}"]]


def _line(one: PipelineStatus, counts: Counts) -> str:
    parts = [show_count(counts.events_in, "event in", "events in")]
    if one.outputs != []:  # Spark's own sinks do not say how much they write
        parts.append(show_count(counts.rows_out, "row out", "rows out"))
    parts.append(show_count(counts.dead_letters, "dead letter"))
    return f"{one.name}: {', '.join(parts)}, {counts.late:,} late"


def _left(one: PipelineStatus, sinks: Sequence[SinkStatus]) -> Iterator[str]:
    """What the pipeline has not read, and what its sinks have not received."""
    if one.lag_bytes:
        yield f"{show_size(one.lag_bytes)} that {one.name} has not read"
    for sink in sinks:
        if sink.pipeline == one.name and sink.lacking:
            why = f" ({sink.reason})" if sink.reason else ""
            yield f"{show_count(sink.lacking, 'epoch')} of {one.name} to {sink.sink}{why}"


@contextmanager
def summarized(worker: str, names: Collection[str], report: Callable[[str], None]) -> Iterator[None]:
    """Report the summary when the body ends without an error; nothing if the worker does not answer."""
    began, first = time.monotonic(), _status(worker)
    before = {} if first is None else counts_of(first)
    yield
    if (last := _status(worker)) is not None:
        for line in summary(names, before, last, time.monotonic() - began):
            report(line)


def _status(worker: str) -> WorkerStatus | None:
    with suppress(PenstockError), CoordinatorClient(worker, 0, timeout_seconds=_ANSWER_SECONDS_MAX) as client:
        return client.status()
    return None
