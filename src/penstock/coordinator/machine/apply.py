"""The coordinator's state machine: `apply` is the only place where one state becomes another. No I/O, no clock.

An illegal command raises and leaves the state as it was; a command that changes nothing returns the same state.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from penstock.coordinator.machine.burials import bury, in_effect
from penstock.coordinator.machine.commands import (
    Adopt,
    Advance,
    Ask,
    Attach,
    Attempt,
    Bind,
    Bury,
    Command,
    Complete,
    Decide,
    Describe,
    Drop,
    Effect,
    Expire,
    Follow,
    Fork,
    MarkTime,
    Merge,
    Mirror,
    Park,
    Place,
    Plan,
    Read,
    Replay,
    ReplayChosen,
    Reset,
    Retain,
    Serve,
    Start,
    Subscribe,
    Sweep,
    Truncate,
    Unbind,
    Unsubscribe,
)
from penstock.coordinator.machine.delivery import adopt, bind, check_sinks, decide, follow, park, unbind
from penstock.coordinator.machine.epochs import (
    ask,
    attach,
    merge,
    mirror,
    plan,
    read,
    settled,
    truncatable,
)
from penstock.coordinator.machine.replays import done_replays, own_sources, replay, replay_chosen, with_replays
from penstock.coordinator.machine.state import Cut, Input, Mark, Pipeline, Retention, State, source_of
from penstock.coordinator.machine.subscriptions import advance, place, serve, subscribe, unsubscribe
from penstock.core.errors import Fenced, LimitExceeded, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Limits, Segments
from penstock.protocol.stored.names import epoch_prefix, output_segment, staging_prefix

# A pipeline may stop reading a source and read it again later. Its position there stays in `Input.starting`.


def unlinked(old: Pipeline, inputs: dict[str, Input]) -> dict[str, Input]:
    """The inputs, with the positions in sources that none of them reads any more: later cuts do not name these. An
    input that reads one again continues there.
    """
    sources = {source for spec in inputs.values() for source in spec.sources}
    last = old.cuts[old.planned]
    gone = {name: at for name, at in last.segments.items() if source_of(name) not in sources}
    if not gone:
        return inputs
    return {key: replace(spec, starting={**spec.starting, **gone}) for key, spec in inputs.items()}


def left(pipeline: Pipeline) -> dict[str, int]:
    """The positions in sources that none of its inputs reads any more; none after a reset."""
    sources, found = pipeline.sources, dict[str, int]()
    for spec in pipeline.inputs.values():
        gone = {name: at for name, at in spec.starting.items() if spec.resolved and source_of(name) not in sources}
        found |= {name: max(at, found.get(name, 0)) for name, at in gone.items()}
    return found


def relinked(old: Pipeline, key: str, starting: Segments) -> dict[str, int]:
    """Where an input starts in sources that it did not read until now. If any input has read one before: where it was,
    or at the first event that is still stored, because nothing was retained for it meanwhile.
    """
    before, known = left(old), old.inputs.get(key)
    positions = (
        {} if known is None else {name: at for name, at in known.starting.items() if source_of(name) in known.sources}
    )
    return {name: positions.get(name, max(at, before.get(name, 0))) for name, at in starting.items()}


PIPELINES_MAX = 1000
"""Each has a thousand cuts in memory, and all pipelines are examined whenever one completes an epoch."""

Applied = tuple[State, tuple[Effect, ...]]


def apply(state: State, command: Command) -> Applied:  # noqa: C901  a table of commands
    match command:
        case Start():
            return _start(state, command)
        case Plan():
            pipeline = current(state, command.pipeline, command.generation)
            return _changed(state, command.pipeline, plan(pipeline, command))
        case Ask():
            pipeline = current(state, command.pipeline, command.generation)
            return _changed(state, command.pipeline, ask(pipeline, command))
        case Attach():
            pipeline = current(state, command.pipeline, command.generation)
            return _changed(state, command.pipeline, attach(pipeline))
        case Read():
            pipeline = current(state, command.pipeline, command.generation)
            return _changed(state, command.pipeline, read(pipeline, command))
        case Merge():
            return _merge(state, command)
        case Complete():
            return _complete(state, command)
        case Reset():
            return _reset(state, command)
        case Drop():
            return _drop(state, command)
        case Retain():
            return _retain(state, command)
        case MarkTime():
            return _mark(state, command)
        case Expire():
            return _expire(state, command)
        case Bind():
            return _bind(state, command)
        case Unbind():
            return _changed(state, command.pipeline, unbind(known(state, command.pipeline), command))
        case Attempt():
            return _attempt(state, command)
        case Decide():
            return _changed(state, command.pipeline, decide(known(state, command.pipeline), command))
        case Follow():
            return _changed(state, command.pipeline, follow(known(state, command.pipeline), command))
        case Park():
            parked, effects = park(known(state, command.pipeline), command)
            return _changed(state, command.pipeline, parked, *effects)
        case Replay():
            replayed, effects = replay(known(state, command.pipeline), command)
            return _changed(state, command.pipeline, replayed, *effects)
        case ReplayChosen():
            replayed, effects = replay_chosen(known(state, command.pipeline), command)
            return _changed(state, command.pipeline, replayed, *effects)
        case Describe():
            return _describe(state, command)
        case Adopt():
            return _adopt(state, command)
        case Fork():
            return _fork(state, command)
        case Bury():
            return _changed(state, command.pipeline, bury(known(state, command.pipeline), command))
        case Mirror():
            pipeline = current(state, command.pipeline, command.generation)
            return _changed(state, command.pipeline, mirror(pipeline, command))
        case Serve():
            return serve(state, command)
        case Place():
            return place(state, command)
        case Subscribe():
            return subscribe(state, command)
        case Advance():
            return advance(state, command)
        case Unsubscribe():
            return unsubscribe(state, command)
    assert_never(command)


def current(state: State, name: str, generation: int) -> Pipeline:
    """The pipeline, if this is its newest generation. Raises Fenced."""
    pipeline = state.pipelines.get(name)
    if pipeline is None:
        raise Fenced(f"pipeline {name!r} is not registered", "It was dropped, or never started: start it.")
    if generation != pipeline.generation:
        raise Fenced(f"generation {generation} of pipeline {name!r} was replaced by generation {pipeline.generation}")
    return pipeline


def known(state: State, name: str) -> Pipeline:
    """The pipeline, of whatever generation. Raises PipelineError."""
    pipeline = state.pipelines.get(name)
    if pipeline is None:
        raise PipelineError(f"pipeline {name!r} not found", "List them: penstock pipeline list")
    return pipeline


def check_fresh(name: str, pipeline: Pipeline) -> None:
    """Raises PipelineError if the pipeline has epochs: a query without a checkpoint would repeat them."""
    if pipeline.epochs or pipeline.proved > NO_EPOCH:
        raise _no_checkpoint(name, pipeline)


def check_initial(name: str, pipeline: Pipeline) -> None:
    """Spark asks where to start if it has no checkpoint, and also if it runs its first batch again: the commit log
    entry of that batch is durable only after the sync of the second. Raises PipelineError if there were more.
    """
    if len(pipeline.epochs) > 1 or (not pipeline.epochs and pipeline.proved > 0):
        raise _no_checkpoint(name, pipeline)


def _no_checkpoint(name: str, pipeline: Pipeline) -> PipelineError:
    return PipelineError(
        f"pipeline {name!r} has no checkpoint, but has committed epoch {max(pipeline.merged, pipeline.proved)}",
        f"Restore its checkpoint, or start from scratch: penstock pipeline reset {name}",
    )


def _changed(state: State, name: str, new: Pipeline, *effects: Effect) -> Applied:
    """The state with the new pipeline, and the effects on the sources that it reads, or has read."""
    old = state.pipelines.get(name)
    if new is old:
        return state, effects
    sources = _concerned(name, new) if old is None else _concerned(name, old) | _concerned(name, new)
    changed = replace(state, pipelines={**state.pipelines, name: new})
    changed, follow = settled(state, changed, sources)
    return changed, (*effects, *follow)


def _concerned(name: str, pipeline: Pipeline) -> frozenset[str]:
    """The sources whose release depends on it: those that it reads, and its own outputs that have sinks."""
    ports = {sink.port for sink in pipeline.sinks.values()}
    return pipeline.sources | {source_of(output_segment(name, port)) for port in ports}


def _renumbered(state: State) -> State:
    return replace(state, incarnations=state.incarnations + 1, generations=state.generations + 1)


def _start(state: State, start: Start) -> Applied:
    old = state.pipelines.get(start.pipeline)
    if old is None:
        _check_count(state)
        state = replace(state, incarnations=state.incarnations + 1)
        old = Pipeline(incarnation=state.incarnations, generation=0)
    inputs = {key: _input(start.pipeline, key, old, *given) for key, given in start.inputs.items()}
    limits = Limits(*start.limits)
    if start.request == old.request:
        new = replace(old, inputs={**old.inputs, **inputs}, limits=limits)
        return _changed(state, start.pipeline, old if new == old else new)
    if start.outputs is None:  # a caller that does not know the outputs does not know all inputs either
        inputs = {**old.inputs, **inputs}
    outputs = old.outputs if start.outputs is None else start.outputs
    check_sinks(outputs, old.sinks)
    inputs = unlinked(old, inputs)
    at = old.merged if old.epochs else old.proved
    state = replace(state, generations=state.generations + 1)
    new = replace(
        in_effect(old),
        generation=state.generations,
        request=start.request,
        inputs=inputs,
        outputs=outputs,
        limits=limits,
        leader=None,
        running=(at, at),
    )
    # With Spark's own sinks an epoch of an older generation may still be proved: its side outputs are needed then.
    keeps_sides = old.generation and not old.outputs and old.is_merged_by_proof
    sweeps = () if keeps_sides else (Sweep(staging_prefix(start.pipeline)),)
    return _changed(state, start.pipeline, new, *sweeps)


def _check_count(state: State) -> None:
    if len(state.pipelines) >= PIPELINES_MAX:
        raise LimitExceeded(f"there are already {len(state.pipelines)} pipelines", "Drop some: penstock pipeline drop")


def _input(name: str, key: str, pipeline: Pipeline, sources: tuple[str, ...], starting: Segments) -> Input:
    """Where an input starts is decided once. The source of its replays stays one of its sources."""
    old = pipeline.inputs.get(key)
    sources, starting = with_replays(name, key, old, sources, starting)
    if old is None:
        return Input(sources, relinked(pipeline, key, starting))
    if old.resolved:
        starting = {**old.starting, **relinked(pipeline, key, starting)}
        if old == Input(sources, starting):
            return old
    return Input(sources, starting)


def _merge(state: State, command: Merge) -> Applied:
    name = command.pipeline
    if command.generation is not None:
        pipeline = current(state, name, command.generation)
    elif name in state.pipelines:
        pipeline = state.pipelines[name]
    else:  # a query that uses only the sink: its first merge registers it
        _check_count(state)
        state = _renumbered(state)
        pipeline = Pipeline(incarnation=state.incarnations, generation=state.generations)
    sweep = Sweep(epoch_prefix(name, command.generation, command.epoch))
    new, effects = merge(pipeline, command)
    if name not in state.pipelines or new is not pipeline:
        return _changed(state, name, new, *effects, sweep)
    return state, (sweep,)


def _complete(state: State, command: Complete) -> Applied:
    pipeline = current(state, command.pipeline, command.generation)
    if command.epoch > pipeline.planned:
        raise PipelineError(f"pipeline {command.pipeline!r} has not planned epoch {command.epoch}")
    if command.epoch <= pipeline.proved:
        return state, ()
    return _changed(state, command.pipeline, pipeline.proven(command.epoch))


def _describe(state: State, command: Describe) -> Applied:
    old = current(state, command.pipeline, command.generation)
    schemas = dict(command.schemas)
    return _changed(state, command.pipeline, old if schemas == old.schemas else replace(old, schemas=schemas))


def _reset(state: State, command: Reset) -> Applied:
    name = command.pipeline
    old = known(state, name)
    state = _renumbered(state)
    inputs = {
        key: Input(spec.sources, _begun(old, key) | done_replays(name, key, old), resolved=False)
        for key, spec in old.inputs.items()
    }
    new = Pipeline(
        incarnation=state.incarnations,
        generation=state.generations,
        inputs=inputs,
        outputs=old.outputs,
        limits=old.limits,
        sinks=old.sinks,
        replayed=old.replayed,
        chosen=old.chosen,
        schemas=old.schemas,
    )
    return _changed(state, name, new, Sweep(staging_prefix(name)))


def _begun(pipeline: Pipeline, key: str) -> dict[str, int]:
    """Where an input first started. What is still stored from there on must stay until the next start."""
    starting = pipeline.inputs[key].starting
    return {segment: starting.get(segment, 0) for segment in pipeline.offset(key, pipeline.floor)}


def _fork(state: State, command: Fork) -> Applied:
    """The new pipeline has the inputs and the watermark of the other one, and nothing else of it. What it will read is
    retained and not acknowledged from now on: nothing after that epoch is released before the other one completes it.
    """
    origin, at = known(state, command.origin), forked_at(state, command)
    _check_count(state)
    state = _renumbered(state)
    new = Pipeline(
        incarnation=state.incarnations,
        generation=state.generations,
        inputs={key: _forked(origin, command.origin, key, at) for key in origin.inputs},
        limits=origin.limits,
        cuts={NO_EPOCH: Cut({}, origin.cuts[at].watermark)},
    )
    return _changed(state, command.pipeline, new)


def forked_at(state: State, command: Fork) -> int:
    """The cut of the last committed epoch. Raises PipelineError if the fork is not possible."""
    origin, name = known(state, command.origin), command.pipeline
    if name in state.pipelines:
        raise PipelineError(
            f"pipeline {name!r} exists already", f"Choose another name, or drop it first: penstock pipeline drop {name}"
        )
    at = origin.merged if origin.epochs else origin.proved
    if at == NO_EPOCH:
        raise PipelineError(
            f"pipeline {command.origin!r} has not committed an epoch",
            f"Fork a pipeline that has, or start {name} without a fork: it begins where its `starting` points.",
        )
    return at


def _forked(origin: Pipeline, name: str, key: str, at: int) -> Input:
    """Without replayed dead letters: those belong to the output of the other pipeline."""
    sources = own_sources(name, key, origin.inputs[key])
    offsets = origin.offset(key, at).items()
    return Input(sources, {segment: offset for segment, offset in offsets if source_of(segment) in sources})


def _drop(state: State, command: Drop) -> Applied:
    old = state.pipelines.get(command.pipeline)
    if old is None:
        return state, ()
    left = {name: pipeline for name, pipeline in state.pipelines.items() if name != command.pipeline}
    marks = tuple(_without(mark, command.segments) for mark in state.marks)
    dropped, follow = settled(state, replace(state, pipelines=left, marks=marks), _concerned(command.pipeline, old))
    return dropped, (Sweep(staging_prefix(command.pipeline)), *follow)


def _without(mark: Mark, segments: Collection[str]) -> Mark:
    return mark._replace(segments={name: end for name, end in mark.segments.items() if name not in segments})


def _bind(state: State, command: Bind) -> Applied:
    """Registers the pipeline if it is unknown: none of its epochs is complete without its sinks."""
    pipeline = state.pipelines.get(command.pipeline)
    if pipeline is None:
        _check_count(state)
        state = _renumbered(state)
        pipeline = Pipeline(incarnation=state.incarnations, generation=state.generations)
    return _changed(state, command.pipeline, bind(pipeline, command, state.attempts))


def _attempt(state: State, command: Attempt) -> Applied:
    state = replace(state, attempts=state.attempts + 1)
    return _changed(state, command.pipeline, replace(known(state, command.pipeline), attempt=state.attempts))


def _adopt(state: State, command: Adopt) -> Applied:
    adopted = adopt(known(state, command.pipeline), command)
    state = replace(state, attempts=max(state.attempts, command.attempts))
    return _changed(state, command.pipeline, adopted)


def _retain(state: State, command: Retain) -> Applied:
    retention = Retention(command.mode, command.amount)  # type: ignore[arg-type]  # the service has checked it
    if retention == state.retention:
        return state, ()
    marks = state.marks if retention.mode == "time" else ()
    changed = replace(state, retention=retention, marks=marks)
    return changed, (Truncate(truncatable(changed)),)


def _mark(state: State, command: MarkTime) -> Applied:
    if state.marks and command.time_us <= state.marks[-1].time_us:
        raise PipelineError("a time mark is not later than the last one", "Check the clock of this machine.")
    return replace(state, marks=(*state.marks, Mark(command.time_us, command.segments))), ()


def _expire(state: State, command: Expire) -> Applied:
    expired = [mark for mark in state.marks if mark.time_us <= command.time_us]
    if not expired:
        return state, ()
    segments: dict[str, int] = {}
    for mark in expired:
        segments |= mark.segments
    return replace(state, marks=state.marks[len(expired) :]), (Truncate(segments),)
