"""Epochs of a pipeline, as pure functions of its state: cuts, merges, and what completed epochs release.

A cut is where an epoch ends. The load that leads decides it, once; every other request gets the same answer.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

from penstock.coordinator.machine.burials import check_effective, in_effect
from penstock.coordinator.machine.commands import (
    Ask,
    Effect,
    Merge,
    Merges,
    Mirror,
    Plan,
    Read,
    Release,
    Truncate,
)
from penstock.coordinator.machine.delivery import delivered_output, ports_for_sinks, undelivered
from penstock.coordinator.machine.state import (
    CUTS_MAX,
    EPOCHS_MAX,
    Cut,
    MergedEpoch,
    Pipeline,
    State,
    Subscription,
    source_of,
)
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.protocol.api.pipelines import InputOffset, Segments
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import Form, Source, output_segment

NEWER_CHECKPOINT = (
    "Restore the worker's newest data, or the checkpoint from a copy of the same time; or start from scratch: "
    "penstock pipeline reset"
)
OLDER_CHECKPOINT = "Restore the newest checkpoint, or start from scratch: penstock pipeline reset"

_USERS_OWN = (Form.SEGMENT, Form.PRAVEGA)
"""Users write, and truncate, these themselves."""

SEGMENTS_MAX = 1000
"""Segments of one cut: Spark writes all of them to its log for every batch, and a thousand cuts are retained."""


def check_offset(name: str, pipeline: Pipeline, key: str, offset: InputOffset) -> int:
    """The epoch of an offset that this coordinator has returned. Raises PipelineError for any other offset."""
    if key not in pipeline.inputs:
        raise PipelineError(f"input {key!r} not found", f"It has: {', '.join(pipeline.inputs) or 'none'}.")
    if offset.epoch is None or offset.incarnation != pipeline.incarnation:
        raise PipelineError(
            f"the checkpoint of pipeline {name!r} belongs to other data: it is of incarnation {offset.incarnation}, "
            f"the pipeline is in incarnation {pipeline.incarnation}",
            f"If the pipeline was reset, delete the checkpoint. Otherwise: {NEWER_CHECKPOINT} {name}",
        )
    if offset.epoch not in pipeline.cuts:
        first, is_newer = next(iter(pipeline.cuts)), offset.epoch > pipeline.planned
        raise PipelineError(
            f"the checkpoint of pipeline {name!r} is {'newer' if is_newer else 'older'} than the ledger: epoch "
            f"{offset.epoch} is not among those that are kept: {first} to {pipeline.planned}",
            f"{NEWER_CHECKPOINT if is_newer else OLDER_CHECKPOINT} {name}",
        )
    known, spec = pipeline.offset(key, offset.epoch), pipeline.inputs[key]
    given = {segment: spec.starting.get(segment, 0) for segment in known}  # segments of a source that was added later
    given |= {segment: at for segment, at in offset.segments.items() if source_of(segment) in spec.sources}
    if given != known:
        raise PipelineError(
            f"epoch {offset.epoch} of pipeline {name!r}, input {key!r}, ends at {known}, not at {given}",
            f"The checkpoint belongs to other data. {NEWER_CHECKPOINT} {name}",
        )
    return offset.epoch


def answer(pipeline: Pipeline, load: str, start: int) -> int | None:
    """The epoch up to which a load that asks from `start` reads; None if a new cut is due, which the leader decides."""
    if pipeline.leader in (None, load):
        return next((epoch for epoch in pipeline.cuts if epoch > start), None) if start < pipeline.planned else None
    return max(start, pipeline.running[1])


def uncommitted(pipeline: Pipeline) -> tuple[int, int] | None:
    """The cuts between which the first epoch reads that is planned and not committed; None if there is none."""
    start, end = pipeline.running
    last = pipeline.committed
    if start == last < end:
        return start, end
    return next(((last, epoch) for epoch in pipeline.cuts if epoch > last), None)


def ask(pipeline: Pipeline, command: Ask) -> Pipeline:
    known = answer(pipeline, command.load, command.start)
    if command.end != (command.start if known is None else known):
        raise PipelineError(f"epoch {command.start} is followed by {known}, not by {command.end}")
    leader = pipeline.leader or command.load
    running = (command.start, command.end) if leader == command.load else pipeline.running
    asked = replace(pipeline, leader=leader, running=running)
    asked = asked.proven(max(command.start, pipeline.proved))
    return pipeline if asked == pipeline else asked


def attach(pipeline: Pipeline) -> Pipeline:
    pipeline = in_effect(pipeline)
    return pipeline if pipeline.leader is None else replace(pipeline, leader=None)


def read(pipeline: Pipeline, command: Read) -> Pipeline:
    if not (command.start in pipeline.cuts and command.end in pipeline.cuts and command.start <= command.end):
        raise PipelineError(
            f"the batch reads from cut {command.start} to {command.end}, which do not exist or are out of order"
        )
    running = (command.start, command.end)
    return pipeline if running == pipeline.running else replace(pipeline, running=running)


def plan(pipeline: Pipeline, command: Plan) -> Pipeline:
    """The next cut. Nothing in it goes back."""
    epoch = pipeline.planned
    known = command.load.partition("/")[0] in pipeline.inputs
    if not known or answer(pipeline, command.load, epoch) is not None:
        raise PipelineError(f"input {command.load!r} is not the leader, and cannot decide a cut")
    _check_ends(pipeline, command)
    proven = replace(pipeline, leader=command.load).proven(epoch)
    if epoch - proven.complete >= CUTS_MAX:
        raise LimitExceeded(f"{CUTS_MAX} epochs wait for completion")
    sources = proven.sources
    before = {name: at for name, at in proven.cuts[epoch].segments.items() if source_of(name) in sources}
    following = proven.next_epoch
    cuts = {**proven.cuts, following: Cut({**before, **command.ends}, command.watermark)}
    first = min(following + 1 - CUTS_MAX, proven.floor)
    for old in [*cuts]:
        if old >= first:
            break
        del cuts[old]
    return replace(proven, cuts=cuts, running=(epoch, following))


def _check_ends(pipeline: Pipeline, command: Plan) -> None:
    epoch, sources = pipeline.planned, pipeline.sources
    before = pipeline.cuts[epoch].watermark
    rises = command.watermark is not None and (before is None or command.watermark > before)
    advances = all(pipeline.position(epoch, name) < end for name, end in command.ends.items())
    if not advances or not (command.ends or rises):
        raise PipelineError(f"the cut after epoch {epoch} does not advance in every segment that it names")
    if any(source_of(name) not in sources for name in command.ends):
        raise PipelineError(f"the cut after epoch {epoch} names a segment that the pipeline does not read")
    if len(pipeline.cuts[epoch].segments.keys() | command.ends.keys()) > SEGMENTS_MAX:
        raise LimitExceeded(
            f"the pipeline would read more than {SEGMENTS_MAX} segments", "Move some sources to another pipeline."
        )
    if before is not None and (command.watermark is None or command.watermark < before):
        raise PipelineError(f"the watermark after epoch {epoch} goes back from {before} to {command.watermark}")


# Merges: every epoch once, in order, with the cuts between which Spark was reading.


def is_merged(pipeline: Pipeline, command: Merge) -> bool:
    """Whether the epoch is already merged. Raises PipelineError if it cannot be merged, or was merged otherwise."""
    known = pipeline.epochs.get(command.epoch)
    start, end = pipeline.running
    if known is not None:
        if (known.start, known.end) != pipeline.running:
            raise PipelineError(
                f"epoch {command.epoch} was merged with the input from cut {known.start} to {known.end}, "
                f"and now reads from {start} to {end}",
                "The checkpoint is not the one that the epoch was merged with: restore it, or reset the pipeline.",
            )
        return True
    check_effective(pipeline, command.epoch)
    last = pipeline.last_epoch
    if last is None:
        return False
    if command.epoch != last + 1:
        raise PipelineError(
            f"epoch {command.epoch} does not follow epoch {last}, the last one merged",
            "The checkpoint belongs to other data: restore the right one, or reset the pipeline.",
        )
    if start != pipeline.epochs[last].end:
        raise PipelineError(f"epoch {last} read up to cut {pipeline.epochs[last].end}, the next one starts at {start}")
    return False


def merge(pipeline: Pipeline, command: Merge) -> tuple[Pipeline, tuple[Effect, ...]]:
    if is_merged(pipeline, command):
        return pipeline, ()
    check_ports(pipeline, command)
    start, end = pipeline.running
    last = pipeline.last_epoch
    before = {} if last is None else pipeline.epochs[last].ends
    if any(before.get(port, 0) > length for port, length in command.ends.items()):
        raise PipelineError(f"an output of epoch {command.epoch} ends before that of epoch {last}")
    watermark = pipeline.cuts[end].watermark
    epochs = {**pipeline.epochs, command.epoch: MergedEpoch(start, end, {**before, **command.ends}, watermark)}
    if len(epochs) > EPOCHS_MAX:
        if len(undelivered(pipeline)) >= EPOCHS_MAX:
            raise LimitExceeded(f"{EPOCHS_MAX} epochs wait for their sinks", "See: penstock epoch list")
        del epochs[next(iter(epochs))]
    merged = replace(pipeline, epochs=epochs, manifest=command.manifest).proven(pipeline.proved)
    pairs = tuple((output_segment(command.pipeline, port), segment) for port, segment in command.staged)
    pairs += command.merges
    return merged, (Merges(pairs),) if pairs else ()


def mirror(pipeline: Pipeline, command: Mirror) -> Pipeline:
    """Raises PipelineError for one that is based on another: what it refers to may be deleted."""
    if pipeline.manifest == command.manifest:
        return pipeline
    if pipeline.manifest != command.before:
        raise PipelineError(
            f"the checkpoint is based on {command.before!r}, but the last one that was mirrored is "
            f"{pipeline.manifest!r}",
            "Another query of this pipeline has mirrored its checkpoint: stop one of them.",
        )
    return replace(pipeline, manifest=command.manifest)


def check_ports(pipeline: Pipeline, command: Merge) -> None:
    """Raises PipelineError for a port that was not declared. Those of dead letters need no declaration."""
    if pipeline.outputs is None:
        return
    ports = dict.fromkeys([*command.ends, *(port for port, _ in command.staged)])
    unknown = [port for port in ports if port not in (*pipeline.outputs, *DEAD_LETTER_PORTS)]
    if unknown:
        raise PipelineError(
            f"the pipeline has no output port {unknown[0]!r}",
            f"It declares: {', '.join(pipeline.outputs) or 'none, because it writes to a sink of Spark'}.",
        )


# What completed epochs release: how far sources are acknowledged, and what retention may remove.


def settled(old: State, new: State, sources: Iterable[str]) -> tuple[State, tuple[Effect, ...]]:
    """`new`, with these sources released as far as its pipelines have completed them, and the effects of that. What was
    released of a source of another shard may not be acknowledged there: a pipeline that reads it again holds it.
    """
    sources = frozenset(sources)
    released = dict(new.released)
    least = _least(new, sources, lambda pipeline: pipeline.complete, lambda subscription: subscription.done)
    effects: list[Effect] = []
    for source in sorted(sources):
        before = released.pop(source, None)
        after: Segments | None = least.get(source)
        if after is not None and source not in new.remote:
            after = _raised(before or {}, after)
        if after is not None:
            released[source] = after
        if after != before:
            effects.append(Release(source, after))
    floors = _risen(truncatable(old, sources), truncatable(new, sources))
    if floors:
        effects.append(Truncate(floors))
    return replace(new, released=released), tuple(effects)


def _raised(before: Segments, least: Segments) -> Segments:
    """What was released stays released."""
    return {name: max(before.get(name, 0), least.get(name, 0)) for name in sorted(before.keys() | least.keys())}


def truncatable(state: State, sources: Iterable[str] | None = None) -> dict[str, int]:
    """How far retention `complete` may truncate each segment of these sources, or of all of them: never past what a
    pipeline may still read, or a sink lacks. Segments that users write themselves are not touched.
    """
    if state.retention.mode != "complete":
        return {}
    delivered, only_for_sinks = _outputs(state)
    chosen = state.released.keys() | {source_of(name) for name in only_for_sinks} if sources is None else sources
    ours = frozenset(source for source in chosen if Source.parse(source).form not in _USERS_OWN)
    least = _least(state, ours, *_FLOORS)
    read = {name: offset for segments in least.values() for name, offset in segments.items()}
    free = {name: _read_floor(state, name, delivered[name]) for name in only_for_sinks if source_of(name) in ours}
    return free | {name: min(offset, delivered.get(name, offset)) for name, offset in read.items()}


def _outputs(state: State) -> tuple[dict[str, int], list[str]]:
    """Outputs with sinks: how far all their sinks are, and which outputs are retained for sinks only."""
    delivered: dict[str, int] = {}
    only_for_sinks: list[str] = []
    for name, pipeline in state.pipelines.items():
        if pipeline.sinks:
            delivered |= {output_segment(name, port): at for port, at in delivered_output(pipeline).items()}
            only_for_sinks += [output_segment(name, port) for port in ports_for_sinks(pipeline)]
    return delivered, only_for_sinks


def floors(state: State, source: str) -> Segments:
    """What is before these positions none of the shard's own pipelines reads again."""
    return _least(replace(state, subscriptions={}), frozenset([source]), *_FLOORS).get(source, {})


_Reading = tuple[Callable[[Pipeline], int], Callable[[Subscription], Segments | None]]
"""The epoch of a pipeline, and the positions of a subscription, that count."""
_FLOORS: _Reading = (lambda pipeline: pipeline.floor, lambda subscription: subscription.floor)


def _subscribed(state: State, sources: Container[str]) -> Iterator[tuple[str, Subscription]]:
    """The subscriptions of other shards to these sources."""
    for (_, source), one in state.subscriptions.items():
        if one.done is not None and source in sources:
            yield source, one


def _read_floor(state: State, name: str, at: int) -> int:
    """The lowest of `at` and the positions of the segment's readers, including those that have not seen it yet."""
    source = source_of(name)
    readers = (pipeline for pipeline in state.pipelines.values() if source in pipeline.sources)
    others = (one.floor.get(name, 0) for _, one in _subscribed(state, (source,)))
    return min([at, *(pipeline.position(pipeline.floor, name) for pipeline in readers), *others])


def _least(
    state: State,
    sources: frozenset[str],
    epoch_of: Callable[[Pipeline], int],
    positions_of: Callable[[Subscription], Segments | None],
) -> dict[str, dict[str, int]]:
    """Source → segment → the lowest position of the pipelines and subscriptions that read it, each pipeline at its own
    epoch. Only segments that one of them knows. Looks at the segments of each once, however many sources there are.
    """
    readers: dict[str, list[tuple[Pipeline, int]]] = {}
    others: dict[str, list[Segments]] = {}
    known: dict[str, str] = {}
    for pipeline in state.pipelines.values():
        read = pipeline.sources & sources
        if read:
            epoch = epoch_of(pipeline)
            known |= {name: source for name in pipeline.segments(epoch) if (source := source_of(name)) in read}
        for source in read:
            readers.setdefault(source, []).append((pipeline, epoch))
    for source, one in _subscribed(state, sources):
        positions = positions_of(one) or {}
        known |= dict.fromkeys(positions, source)
        others.setdefault(source, []).append(positions)
    least: dict[str, dict[str, int]] = {source: {} for source in (*readers, *others)}
    for name, source in known.items():
        own = [pipeline.position(epoch, name) for pipeline, epoch in readers.get(source, ())]
        least[source][name] = min(own + [positions.get(name, 0) for positions in others.get(source, ())])
    return least


def _risen(old: Segments, new: Segments) -> dict[str, int]:
    return {name: offset for name, offset in new.items() if offset > old.get(name, 0)}
