"""Sinks of a pipeline, as pure functions of its state: which of them lacks which epoch, and what a decision changes.

Sinks that vote advance together, by rounds of two-phase commit; the others follow them, each on its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from penstock.coordinator.machine.commands import Adopt, Bind, Decide, Effect, Follow, Merges, Park, Unbind
from penstock.coordinator.machine.state import Accepted, MergedEpoch, Pipeline, Sink
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.core.types import NO_EPOCH

ACCEPTED_MAX = 10
"""Acceptances of a sink that the ledger retains: they are for people to read."""

SINKS_MAX = 100
"""Per pipeline: each has a connection, and all of them are examined whenever one advances."""


def transaction_id(name: str, epoch: int, attempt: int) -> str:
    return f"{name}:{epoch}:{attempt}"


def bound_after(name: str, attempts: int) -> str:
    """In place of a transaction, for a sink for which nothing is decided yet: what the sink has from attempts up to
    this one is from before it was bound.
    """
    return transaction_id(name, NO_EPOCH, attempts) if attempts else ""


def undelivered(pipeline: Pipeline) -> list[tuple[int, MergedEpoch]]:
    """The epochs that some sink lacks, oldest first."""
    found: list[tuple[int, MergedEpoch]] = []
    for number, epoch in reversed(pipeline.epochs.items()):
        if not any(sink.lacks(epoch) for sink in pipeline.sinks.values()):
            break
        found.append((number, epoch))
    return found[::-1]


def voters(pipeline: Pipeline, epoch: MergedEpoch) -> dict[str, Sink]:
    """The voting sinks that lack the epoch: all of them must agree on it."""
    return {name: sink for name, sink in pipeline.sinks.items() if sink.votes and sink.lacks(epoch)}


def next_round(pipeline: Pipeline) -> int | None:
    """The first epoch that a voting sink lacks."""
    return next((number for number, epoch in undelivered(pipeline) if voters(pipeline, epoch)), None)


def next_to_follow(pipeline: Pipeline, name: str) -> int | None:
    """The first epoch that a non-voting sink lacks, if no voting sink lacks it."""
    sink = pipeline.sinks[name]
    for number, epoch in undelivered(pipeline):
        if voters(pipeline, epoch):
            return None
        if sink.lacks(epoch):
            return number
    return None


def bind(pipeline: Pipeline, command: Bind, attempts: int) -> Pipeline:
    """`attempts`: the last attempt of any pipeline."""
    sinks = dict(pipeline.sinks)
    # A pipeline without epochs has delivered nothing: what a sink has of it is from before the worker's data was lost,
    # whatever number other pipelines have reached.
    decided = bound_after(command.pipeline, attempts) if pipeline.epochs else ""
    retained_for_sinks = ports_for_sinks(pipeline) | {*command.emptied}
    for name, (port, url, votes, at) in command.sinks.items():
        old = sinks.get(name)
        if old is not None and old.port != port:
            raise PipelineError(
                f"sink {name!r} is already bound to port {old.port!r}",
                f"Choose another name, or remove the old one: penstock sink remove {command.pipeline} {name}",
            )
        sinks[name] = (
            Sink(port=port, url=url, votes=votes, begun=0 if port in retained_for_sinks else at, at=at, decided=decided)
            if old is None
            else replace(old, url=url, votes=votes, moved=old.moved or (votes and url != old.url))
        )
    if len(sinks) > SINKS_MAX:
        raise LimitExceeded(f"pipeline {command.pipeline!r} would have more than {SINKS_MAX} sinks")
    check_sinks(pipeline.outputs, sinks)
    return pipeline if sinks == pipeline.sinks else replace(pipeline, sinks=sinks, attempt=0)


def check_sinks(outputs: tuple[str, ...] | None, sinks: Mapping[str, Sink]) -> None:
    """Raises PipelineError for a sink on a port that is not declared: it would wait forever."""
    for name, sink in sinks.items():
        if outputs is not None and sink.port not in outputs:
            raise PipelineError(
                f"sink {name!r}: the pipeline has no output port {sink.port!r}",
                f"It declares: {', '.join(outputs) or 'none, because it writes to a sink of Spark'}.",
            )


def unbind(pipeline: Pipeline, command: Unbind) -> Pipeline:
    sink_of(pipeline, command.pipeline, command.sink)
    sinks = {name: sink for name, sink in pipeline.sinks.items() if name != command.sink}
    return _moved(pipeline, sinks)


def decide(pipeline: Pipeline, command: Decide) -> Pipeline:
    """Raises PipelineError if anything about the round has changed since its start: then it is aborted and repeated."""
    if not command.attempt or command.attempt != pipeline.attempt:
        raise PipelineError(f"round {command.attempt} of pipeline {command.pipeline!r} is no longer open")
    if command.epoch != next_round(pipeline):
        raise PipelineError(f"epoch {command.epoch} is not the next one for the sinks of {command.pipeline!r}")
    epoch = pipeline.epochs[command.epoch]
    asked = voters(pipeline, epoch)
    if command.sent.keys() != asked.keys():
        raise PipelineError(f"{sorted(command.sent)} have voted, but {sorted(asked)} must")
    txn = transaction_id(command.pipeline, command.epoch, command.attempt)
    sinks = dict(pipeline.sinks)
    for name, sink in asked.items():
        _check_sent(sink, command.sent[name])
        sinks[name] = replace(sink, at=epoch.ends[sink.port], sent=command.sent[name], decided=txn, moved=False)
    return _moved(pipeline, sinks)


def adopt(pipeline: Pipeline, command: Adopt) -> Pipeline:
    """Raises PipelineError if the sink has advanced since it was compared, or would skip output."""
    sink = sink_of(pipeline, command.pipeline, command.sink)
    if not sink.votes or command.before != (sink.sent, sink.decided):
        raise PipelineError(f"sink {command.sink!r} has changed in the meantime", "See: penstock sink list")
    if command.at > sink.at:
        raise PipelineError(f"sink {command.sink!r} is at {sink.at}, and cannot continue at {command.at}")
    new = Accepted(command.accepted, command.by, command.time_us, sink.sent)
    accepted = (*sink.accepted, new)[-ACCEPTED_MAX:] if command.accepted else sink.accepted
    adopted = replace(sink, at=command.at, sent=command.sent, decided=command.decided, moved=False, accepted=accepted)
    return _moved(pipeline, {**pipeline.sinks, command.sink: adopted})


def follow(pipeline: Pipeline, command: Follow) -> Pipeline:
    sink = sink_of(pipeline, command.pipeline, command.sink)
    if sink.votes or command.epoch != next_to_follow(pipeline, command.sink):
        raise PipelineError(f"epoch {command.epoch} is not the next one for sink {command.sink!r}")
    _check_sent(sink, command.sent)
    at = pipeline.epochs[command.epoch].ends[sink.port]
    followed = replace(sink, at=at, sent=command.sent)
    return replace(pipeline, sinks={**pipeline.sinks, command.sink: followed}).proven(pipeline.proved)


def park(pipeline: Pipeline, command: Park) -> tuple[Pipeline, tuple[Effect, ...]]:
    """Final: the sink continues with the next epoch, and its message ids have no gap."""
    check_park(pipeline, command)
    sink = pipeline.sinks[command.sink]
    at = pipeline.epochs[command.epoch].ends[sink.port]
    parked = replace(sink, at=at, parked=sink.parked + 1)
    moved = _moved(pipeline, {**pipeline.sinks, command.sink: parked})
    return moved, (Merges(command.staged),) if command.staged else ()


def check_park(pipeline: Pipeline, command: Park) -> None:
    """Raises PipelineError unless it is the next epoch for that sink."""
    sink = sink_of(pipeline, command.pipeline, command.sink)
    first = next((number for number, epoch in undelivered(pipeline) if sink.lacks(epoch)), None)
    if first is None:
        raise PipelineError(f"no epoch waits for sink {command.sink!r}")
    if command.epoch != first:
        raise PipelineError(
            f"the next epoch for sink {command.sink!r} is {first}, not {command.epoch}",
            "Epochs are delivered and parked in order.",
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
        raise PipelineError(f"the sink has {sink.sent} bytes, so it cannot have {sent} after another epoch")


def _moved(pipeline: Pipeline, sinks: dict[str, Sink]) -> Pipeline:
    """The open round, if any, is over, and what every sink has now is complete."""
    return replace(pipeline, sinks=sinks, attempt=0).proven(pipeline.proved)


def delivered_output(pipeline: Pipeline) -> dict[str, int]:
    """Port → how far all of its sinks are in the output segment."""
    found: dict[str, int] = {}
    for sink in pipeline.sinks.values():
        found[sink.port] = min(found.get(sink.port, sink.at), sink.at)
    return found


def ports_for_sinks(pipeline: Pipeline) -> set[str]:
    """Ports whose output is retained only for their sinks. If every sink of a port was bound when there was output
    already, that output was meant to stay. A sink that replaces another one retains what that one did.
    """
    return {sink.port for sink in pipeline.sinks.values() if not sink.begun}
