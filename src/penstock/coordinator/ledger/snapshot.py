"""The whole state as entries of the ledger: a head that says how many follow, then pipelines, releases and marks."""

from collections.abc import Iterator
from dataclasses import astuple, fields
from typing import Any

from penstock.coordinator.machine.retention import Retention
from penstock.coordinator.machine.state import Batch, Cut, Input, Mark, Pipeline, Sink, State
from penstock.coordinator.messages import Limits

HEAD, PIPELINE, RELEASED, MARK = 100, 101, 102, 103
_ABSENT = -1
_SINK_FIELDS = [field.name for field in fields(Sink)]


def encode_state(state: State) -> Iterator[list[Any]]:
    rest = len(state.pipelines) + len(state.released) + len(state.marks)
    yield [HEAD, rest, state.generations, state.incarnations, state.attempts, *astuple(state.retention)]
    for name, pipeline in state.pipelines.items():
        yield [PIPELINE, name, *_pipeline(pipeline)]
    for source, segments in state.released.items():
        yield [RELEASED, source, segments]
    for mark in state.marks:
        yield [MARK, *mark]


def _pipeline(p: Pipeline) -> Iterator[Any]:
    yield from (p.incarnation, p.generation, p.request, p.outputs, astuple(p.limits))
    yield from (p.proved, p.complete, p.leader, p.running, p.attempt)
    yield {name: astuple(sink) for name, sink in p.sinks.items()}
    yield {name: (spec.sources, spec.starting, spec.resolved) for name, spec in p.inputs.items()}
    names = [*dict.fromkeys(name for cut in p.cuts.values() for name in cut.segments)]
    yield names
    yield [(epoch, c.watermark, [c.segments.get(name, _ABSENT) for name in names]) for epoch, c in p.cuts.items()]
    yield [(number, *batch) for number, batch in p.batches.items()]
    yield p.replayed
    yield p.schemas


class SnapshotReader:
    """Puts a state together from the entries behind a head. `state` is there when the last one has been added."""

    def __init__(self, head: tuple[Any, ...]) -> None:
        _, self._rest, self._generations, self._incarnations, self._attempts, mode, amount = head
        self._retention = Retention(mode, amount)
        self._pipelines: dict[str, Pipeline] = {}
        self._released: dict[str, dict[str, int]] = {}
        self._marks: list[Mark] = []

    def add(self, entry: tuple[Any, ...]) -> bool:
        """False if the entry is no part of a snapshot: this one was never finished."""
        match entry:
            case (101, name, *fields):
                self._pipelines[name] = _decode_pipeline(*fields)
            case (102, source, segments):
                self._released[source] = segments
            case (103, time_us, segments):
                self._marks.append(Mark(time_us, segments))
            case _:
                return False
        self._rest -= 1
        return True

    @property
    def state(self) -> State | None:
        if self._rest:
            return None
        return State(
            pipelines=self._pipelines,
            released={**self._released},
            retention=self._retention,
            marks=tuple(self._marks),
            generations=self._generations,
            incarnations=self._incarnations,
            attempts=self._attempts,
        )


def _decode_pipeline(*values: Any) -> Pipeline:
    incarnation, generation, request, outputs, limits, proved, complete, leader, running, attempt, *rest = values
    sinks, inputs, names, cuts, batches, *later = rest  # older ones end here, or have `replayed` alone
    return Pipeline(
        incarnation=incarnation,
        generation=generation,
        request=request,
        inputs={name: Input(*spec) for name, spec in inputs.items()},
        outputs=outputs,
        limits=Limits(*limits),
        cuts={epoch: Cut(_segments(names, offsets), watermark) for epoch, watermark, offsets in cuts},
        batches={number: Batch(*batch) for number, *batch in batches},
        proved=proved,
        complete=complete,
        leader=leader,
        running=running,
        sinks={name: Sink(**dict(zip(_SINK_FIELDS, values, strict=True))) for name, values in sinks.items()},
        attempt=attempt,
        replayed=later[0] if later else {},
        schemas=later[1] if len(later) > 1 else {},
    )


def _segments(names: tuple[str, ...], offsets: tuple[int, ...]) -> dict[str, int]:
    return {name: offset for name, offset in zip(names, offsets, strict=True) if offset != _ABSENT}
