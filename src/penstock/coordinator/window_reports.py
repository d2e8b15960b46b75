"""What the tasks of window operators report: how much state each bucket holds, and how many events came too late."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.coordinator.machine.apply import known
from penstock.coordinator.shared import Shared
from penstock.core.errors import LimitExceeded
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import BucketNumbers

OPERATORS_MAX = 100
"""Window operators of one pipeline: each is a stateful operator with a shuffle of its own."""

BUCKETS_MAX = 10_000
"""Of one operator: each is visited in every epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatus:
    """As the worker shows it, with the epoch that was reported last, and the generation that has."""

    pipeline: str
    operator: str
    epoch: int
    numbers: BucketNumbers
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatus:
    """All buckets of an operator together; `bucket_bytes` is the largest one's state, which the limit is for."""

    pipeline: str
    operator: str
    epoch: int
    buckets: int
    open_windows: int
    keys: int
    state_bytes: int
    bucket_bytes: int
    late_kept: int
    late_dropped: int
    waiting: int
    first_end: int | None


class Summary(NamedTuple):
    """Of all window operators of a pipeline."""

    epoch: int = NO_EPOCH
    """The last one that all of them have reported; -1: none."""
    waiting: int = 0
    first_end: int | None = None
    next_time: int | None = None


class WindowReports:
    """Kept in memory: after a restart of the worker the next epoch tells everything again. What belongs to a pipeline
    that was dropped or reset since is no longer shown.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reports: dict[tuple[str, int], dict[str, dict[int, BucketStatus]]] = {}
        self._summaries: dict[tuple[str, int], Summary] = {}
        """Of what is asked for several times a second."""

    def report(
        self, name: str, generation: int | None, operator: str, epoch: int, buckets: Sequence[BucketNumbers]
    ) -> None:
        """The newest word of these buckets. Raises Fenced for an older generation; an older epoch changes nothing."""
        shared = self._shared
        pipeline = known(shared.state, name) if generation is None else shared.living(name, generation)
        self._forget()
        operators = self._reports.setdefault((name, pipeline.incarnation), {})
        self._summaries.pop((name, pipeline.incarnation), None)
        if operator not in operators and len(operators) >= OPERATORS_MAX:
            raise LimitExceeded(f"pipeline {name!r} has more than {OPERATORS_MAX} window operators")
        told = operators.setdefault(operator, {})
        for one in buckets:
            if one.bucket in told and told[one.bucket].epoch > epoch:
                continue
            if one.bucket not in told and len(told) >= BUCKETS_MAX:
                raise LimitExceeded(f"operator {operator!r} has more than {BUCKETS_MAX} buckets", "Use fewer.")
            told[one.bucket] = BucketStatus(
                pipeline=name, operator=operator, epoch=epoch, numbers=one, generation=pipeline.generation
            )
        self._forget_gone(operators, pipeline.generation)

    def buckets(self) -> list[BucketStatus]:
        self._forget()
        return [one for operators in self._reports.values() for told in operators.values() for one in told.values()]

    def operators(self) -> list[OperatorStatus]:
        self._forget()
        return [
            _together(name, operator, [*told.values()])
            for (name, _), operators in self._reports.items()
            for operator, told in operators.items()
            if told
        ]

    def summary(self, name: str) -> Summary:
        """Of what a pipeline has reported since the worker started."""
        pipeline = self._shared.state.pipelines.get(name)
        key = name, 0 if pipeline is None else pipeline.incarnation
        if key not in self._reports:
            return Summary()
        if key not in self._summaries:
            self._summaries[key] = _summary([one for told in self._reports[key].values() for one in told.values()])
        return self._summaries[key]

    def _forget_gone(self, operators: dict[str, dict[int, BucketStatus]], generation: int) -> None:
        """Operators that only an older generation has reported: the pipeline's function may no longer have them. One
        that it has comes back with its own report of the same epoch.
        """
        epochs = [one.epoch for told in operators.values() for one in told.values() if one.generation == generation]
        first = min(epochs, default=0)  # none: it runs epochs again that an older generation has reported
        for operator, told in [*operators.items()]:
            if all(one.generation < generation and one.epoch < first for one in told.values()):
                del operators[operator]

    def _forget(self) -> None:
        there = {(name, pipeline.incarnation) for name, pipeline in self._shared.state.pipelines.items()}
        for key in self._reports.keys() - there:
            del self._reports[key]
            self._summaries.pop(key, None)


def _together(name: str, operator: str, told: Sequence[BucketStatus]) -> OperatorStatus:
    numbers = [one.numbers for one in told]
    return OperatorStatus(
        pipeline=name,
        operator=operator,
        epoch=max(one.epoch for one in told),
        buckets=len(told),
        open_windows=sum(one.open_windows for one in numbers),
        keys=sum(one.keys for one in numbers),
        state_bytes=sum(one.state_bytes for one in numbers),
        bucket_bytes=max(one.state_bytes for one in numbers),
        late_kept=sum(one.late_kept for one in numbers),
        late_dropped=sum(one.late_dropped for one in numbers),
        waiting=sum(one.waiting for one in numbers),
        first_end=_least(one.first_end for one in numbers),
    )


def _summary(told: Sequence[BucketStatus]) -> Summary:
    return Summary(
        min((one.epoch for one in told), default=NO_EPOCH),
        sum(one.numbers.waiting for one in told),
        _least(one.numbers.first_end for one in told),
        _least(one.numbers.next_time for one in told),
    )


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
