"""Merges: every batch once, each behind the last one, of the epochs that Spark was reading."""

from dataclasses import replace

from penstock.coordinator.machine.commands import Merge
from penstock.coordinator.machine.delivering import undelivered
from penstock.coordinator.machine.effects import Effect, Merges
from penstock.coordinator.machine.state import BATCHES_MAX, Batch, Pipeline
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.protocol.stored.names import STAGING_PREFIX, output_segment

NO_GENERATION = "-"
"""Stands in the names of what is staged by a sink that was given no generation."""


def staging_prefix(name: str) -> str:
    return f"{STAGING_PREFIX}{name}/"


def batch_prefix(name: str, generation: int | None, batch: int) -> str:
    """What the names of everything begin with that a batch has staged."""
    return f"{staging_prefix(name)}{NO_GENERATION if generation is None else generation}/{batch}/"


def is_merged(pipeline: Pipeline, command: Merge) -> bool:
    """Whether the batch was merged before. Raises PipelineError if it may not be merged, then or now."""
    known = pipeline.batches.get(command.batch)
    start, end = pipeline.running
    if known is not None:
        if (known.start, known.end) != pipeline.running:
            raise PipelineError(
                f"batch {command.batch} was merged with the epochs after {known.start} up to {known.end}; "
                f"now it is said to hold those after {start} up to {end}",
                "The checkpoint is not the one that the batch was merged with: give it back, or reset the pipeline.",
            )
        return True
    last = pipeline.last_batch
    if last is None:
        return False
    if command.batch != last + 1:
        raise PipelineError(
            f"batch {command.batch} does not follow batch {last}, the last one merged",
            "The checkpoint is not of this pipeline's data: give back the right one, or reset the pipeline.",
        )
    if start != pipeline.batches[last].end:
        raise PipelineError(f"batch {last} ended with epoch {pipeline.batches[last].end}, this one begins at {start}")
    return False


def merge(pipeline: Pipeline, command: Merge) -> tuple[Pipeline, tuple[Effect, ...]]:
    if is_merged(pipeline, command):
        return pipeline, ()
    check_ports(pipeline, command)
    start, end = pipeline.running
    last = pipeline.last_batch
    before = {} if last is None else pipeline.batches[last].ends
    if any(before.get(port, 0) > length for port, length in command.ends.items()):
        raise PipelineError(f"an output of batch {command.batch} ends before that of batch {last}")
    watermark = pipeline.cuts[end].watermark
    batches = {**pipeline.batches, command.batch: Batch(start, end, {**before, **command.ends}, watermark)}
    if len(batches) > BATCHES_MAX:
        if len(undelivered(pipeline)) >= BATCHES_MAX:
            raise LimitExceeded(f"{BATCHES_MAX} batches wait for their sinks", "See: penstock epoch list")
        del batches[next(iter(batches))]
    merged = replace(pipeline, batches=batches).proven(pipeline.proved)
    pairs = tuple((output_segment(command.pipeline, port), segment) for port, segment in command.staged)
    return merged, (Merges(pairs),) if pairs else ()


def check_ports(pipeline: Pipeline, command: Merge) -> None:
    """Raises PipelineError for a port that was not declared."""
    if pipeline.outputs is None:
        return
    ports = dict.fromkeys([*command.ends, *(port for port, _ in command.staged)])
    unknown = [port for port in ports if port not in pipeline.outputs]
    if unknown:
        raise PipelineError(
            f"the pipeline has no output port {unknown[0]!r}",
            f"It declares: {', '.join(pipeline.outputs) or 'none, for it uses a sink of Spark'}.",
        )
