"""Sinks: which of them lacks which batch, and what becomes of a round. Voting sinks move together, each batch once."""

from collections.abc import Mapping
from dataclasses import replace

from penstock.coordinator.machine.commands import Bind, Decide, Effect, Follow, Merges, Park, Unbind
from penstock.coordinator.machine.state import Batch, Pipeline, Sink
from penstock.core.errors import LimitExceeded, PipelineError

SINKS_MAX = 100
"""Of one pipeline: each has a connection, and all are looked at whenever one has got something."""


def transaction_id(name: str, batch: int, attempt: int) -> str:
    """`pipeline:epoch:attempt`."""
    return f"{name}:{batch}:{attempt}"


def undelivered(pipeline: Pipeline) -> list[tuple[int, Batch]]:
    """The batches that some sink lacks, oldest first."""
    found: list[tuple[int, Batch]] = []
    for number, batch in reversed(pipeline.batches.items()):
        if not any(sink.lacks(batch) for sink in pipeline.sinks.values()):
            break
        found.append((number, batch))
    return found[::-1]


def voters(pipeline: Pipeline, batch: Batch) -> dict[str, Sink]:
    """The voting sinks that lack the batch: all of them have to agree on it."""
    return {name: sink for name, sink in pipeline.sinks.items() if sink.votes and sink.lacks(batch)}


def next_round(pipeline: Pipeline) -> int | None:
    """The first batch that voting sinks lack."""
    return next((number for number, batch in undelivered(pipeline) if voters(pipeline, batch)), None)


def next_to_follow(pipeline: Pipeline, name: str) -> int | None:
    """The first batch that a sink lacks which does not vote, if all that vote have got it."""
    sink = pipeline.sinks[name]
    for number, batch in undelivered(pipeline):
        if voters(pipeline, batch):
            return None
        if sink.lacks(batch):
            return number
    return None


def bind(pipeline: Pipeline, command: Bind) -> Pipeline:
    sinks = dict(pipeline.sinks)
    kept_for_sinks = ports_for_sinks(pipeline) | {*command.emptied}
    for name, (port, url, votes, at) in command.sinks.items():
        old = sinks.get(name)
        if old is not None and old.port != port:
            raise PipelineError(
                f"sink {name!r} is bound to port {old.port!r} already",
                f"Give the new one another name, or remove it: penstock sink remove {command.pipeline} {name}",
            )
        sinks[name] = (
            Sink(port=port, url=url, votes=votes, begun=0 if port in kept_for_sinks else at, at=at)
            if old is None
            else replace(old, url=url, votes=votes)
        )
    if len(sinks) > SINKS_MAX:
        raise LimitExceeded(f"pipeline {command.pipeline!r} would have more than {SINKS_MAX} sinks")
    check_sinks(pipeline.outputs, sinks)
    return pipeline if sinks == pipeline.sinks else replace(pipeline, sinks=sinks, attempt=0)


def check_sinks(outputs: tuple[str, ...] | None, sinks: Mapping[str, Sink]) -> None:
    """Raises PipelineError for a sink of a port that is not declared: it would wait for ever."""
    for name, sink in sinks.items():
        if outputs is not None and sink.port not in outputs:
            raise PipelineError(
                f"sink {name!r}: the pipeline has no output port {sink.port!r}",
                f"It declares: {', '.join(outputs) or 'none, for it uses a sink of Spark'}.",
            )


def unbind(pipeline: Pipeline, command: Unbind) -> Pipeline:
    sink_of(pipeline, command.pipeline, command.sink)
    sinks = {name: sink for name, sink in pipeline.sinks.items() if name != command.sink}
    return _moved(pipeline, sinks)


def decide(pipeline: Pipeline, command: Decide) -> Pipeline:
    """Refused when anything about the round has changed since it began: then it is aborted, and another one begins."""
    if not command.attempt or command.attempt != pipeline.attempt:
        raise PipelineError(f"round {command.attempt} of pipeline {command.pipeline!r} is no longer open")
    if command.batch != next_round(pipeline):
        raise PipelineError(f"batch {command.batch} is not the next one for the sinks of {command.pipeline!r}")
    batch = pipeline.batches[command.batch]
    asked = voters(pipeline, batch)
    if command.sent.keys() != asked.keys():
        raise PipelineError(f"{sorted(command.sent)} have voted, asked were {sorted(asked)}")
    txn = transaction_id(command.pipeline, command.batch, command.attempt)
    sinks = dict(pipeline.sinks)
    for name, sink in asked.items():
        _check_sent(sink, command.sent[name])
        sinks[name] = replace(sink, at=batch.ends[sink.port], sent=command.sent[name], decided=txn)
    return _moved(pipeline, sinks)


def follow(pipeline: Pipeline, command: Follow) -> Pipeline:
    sink = sink_of(pipeline, command.pipeline, command.sink)
    if sink.votes or command.batch != next_to_follow(pipeline, command.sink):
        raise PipelineError(f"batch {command.batch} is not the next one for sink {command.sink!r}")
    _check_sent(sink, command.sent)
    at = pipeline.batches[command.batch].ends[sink.port]
    followed = replace(sink, at=at, sent=command.sent)
    return replace(pipeline, sinks={**pipeline.sinks, command.sink: followed}).proven(pipeline.proved)


def park(pipeline: Pipeline, command: Park) -> tuple[Pipeline, tuple[Effect, ...]]:
    """Final: the sink goes on behind it, its messages' ids without a gap."""
    check_park(pipeline, command)
    sink = pipeline.sinks[command.sink]
    at = pipeline.batches[command.batch].ends[sink.port]
    parked = replace(sink, at=at, parked=sink.parked + 1)
    moved = _moved(pipeline, {**pipeline.sinks, command.sink: parked})
    return moved, (Merges(command.staged),) if command.staged else ()


def check_park(pipeline: Pipeline, command: Park) -> None:
    """Raises PipelineError unless it is the next batch for that sink."""
    sink = sink_of(pipeline, command.pipeline, command.sink)
    first = next((number for number, batch in undelivered(pipeline) if sink.lacks(batch)), None)
    if first is None:
        raise PipelineError(f"sink {command.sink!r} waits for nothing")
    if command.batch != first:
        raise PipelineError(
            f"the next epoch for sink {command.sink!r} is {first}, not {command.batch}",
            "Epochs are delivered, and parked, in their order.",
        )


def sink_of(pipeline: Pipeline, name: str, sink: str) -> Sink:
    found = pipeline.sinks.get(sink)
    if found is None:
        raise PipelineError(
            f"pipeline {name!r} has no sink {sink!r}", f"It has: {', '.join(sorted(pipeline.sinks)) or 'none'}."
        )
    return found


def _check_sent(sink: Sink, sent: int) -> None:
    if sent < sink.sent:
        raise PipelineError(f"a sink that has {sink.sent} bytes cannot have {sent}")


def _moved(pipeline: Pipeline, sinks: dict[str, Sink]) -> Pipeline:
    """The round that was open, if any, is over; what every sink has now is complete."""
    return replace(pipeline, sinks=sinks, attempt=0).proven(pipeline.proved)


def delivered_output(pipeline: Pipeline) -> dict[str, int]:
    """Of ports with sinks: how far all of them are in the output segment."""
    found: dict[str, int] = {}
    for sink in pipeline.sinks.values():
        found[sink.port] = min(found.get(sink.port, sink.at), sink.at)
    return found


def ports_for_sinks(pipeline: Pipeline) -> set[str]:
    """Ports whose output is kept for their sinks alone. Where all came when there was something already, that was meant
    to stay; one that takes the place of another keeps what that one had.
    """
    return {sink.port for sink in pipeline.sinks.values() if not sink.begun}
