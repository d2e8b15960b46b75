"""What the coordinator knows: pipelines, their cuts, what was merged of them. Values that never change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Limits, Segments
from penstock.protocol.stored.names import kind_of

# How long data are kept: until they are complete, for ever, for a time, or up to a size.


@dataclass(frozen=True, slots=True)
class Retention:
    """`complete`: until every registered pipeline has completed them, and Spark will not read them again. `keep`: for
    ever. `time`: `amount` microseconds; `size`: `amount` bytes of each segment: these two may remove what a pipeline
    still needs, and its reader is then told so.
    """

    mode: Literal["complete", "keep", "time", "size"] = "complete"
    amount: int = 0


COMPLETE = Retention()


CUTS_MAX = 1000
"""Cuts kept of a pipeline: Spark's own checkpoint holds far fewer, and asks for none that is older."""

BATCHES_MAX = 1000
"""Merged batches kept of a pipeline, for the same reason."""

RERUN_EPOCHS = 2
"""Epochs before the last proved one that Spark may still read: a power cut can take its newest files with it."""


class Cut(NamedTuple):
    """Where an epoch ends, in every segment that the pipeline reads, and the watermark there."""

    segments: Segments
    watermark: int | None = None


class Batch(NamedTuple):
    """A merged batch: it holds the epochs after `start`, up to `end`."""

    start: int
    end: int
    ends: Mapping[str, int]
    """Where each port's output segment ended after it."""
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Input:
    sources: tuple[str, ...]
    starting: Segments
    """Where its first epoch begins; a segment that is not named begins at 0."""
    resolved: bool = True
    """False after a reset, until the next start decides anew; until then `starting` is only held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """What is known of a sink that is bound to a port."""

    port: str
    url: str
    votes: bool
    begun: int
    """Where in the port's output segment it began; 0 also if nothing was kept there but for sinks before it."""
    at: int
    """How far it is in the port's output segment: all before is committed at it, or parked."""
    sent: int = 0
    """Bytes of payloads that are committed at it: the id of its next message."""
    decided: str = ""
    """The last transaction that was committed at it. It may not have heard of that yet."""
    parked: int = 0
    """Epochs that it was never given."""

    def lacks(self, batch: Batch) -> bool:
        return self.at < batch.ends.get(self.port, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    incarnation: int
    generation: int
    request: str = ""
    inputs: dict[str, Input] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    """Ports; () for Spark's own sinks, None if they are not known yet."""
    limits: Limits = field(default_factory=Limits)
    cuts: dict[int, Cut] = field(default_factory=lambda: {NO_EPOCH: Cut({})})
    """By epoch, ascending; the last of them is the last one planned. The cut of NO_EPOCH is where the inputs start. An
    epoch that Spark runs without new input has no cut: it reads nothing behind the cut before it.
    """
    batches: dict[int, Batch] = field(default_factory=dict)
    """By number, ascending."""
    proved: int = NO_EPOCH
    """The last epoch that Spark is known to have committed."""
    complete: int = NO_EPOCH
    """The last epoch whose effect is durable wherever it has to be. Never goes back."""
    leader: str | None = None
    """The first input that has asked in this generation: its asking decides cuts."""
    running: tuple[int, int] = (NO_EPOCH, NO_EPOCH)
    """The cuts that Spark's current batch begins and ends with."""
    sinks: dict[str, Sink] = field(default_factory=dict)
    attempt: int = 0
    """The number of the round that is open; 0 if there is none, or if it can no longer be decided."""
    replayed: dict[str, int] = field(default_factory=dict)
    """Port → how far in its output segment letters have been sent through again. Never goes back."""
    schemas: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Port → names and Spark types of the fields that its JSON rows have, where they are known."""

    @property
    def planned(self) -> int:
        return next(reversed(self.cuts))

    @property
    def last_batch(self) -> int | None:
        return next(reversed(self.batches), None)

    @property
    def merged(self) -> int:
        last = self.last_batch
        return NO_EPOCH if last is None else self.batches[last].end

    @property
    def last_delivered(self) -> int | None:
        """The last merged epoch that every sink has; where no sink is bound, the last one."""
        found = (
            n for n, batch in reversed(self.batches.items()) if not any(s.lacks(batch) for s in self.sinks.values())
        )
        return next(found, None)

    @property
    def delivered(self) -> int:
        """The cut up to which every sink has the output; where no sink is bound, the last one that was merged."""
        last = self.last_delivered
        if last is not None:
            return self.batches[last].end
        return next((batch.start for batch in self.batches.values()), NO_EPOCH)

    @property
    def ports(self) -> tuple[str, ...]:
        """Those that were declared, or those that something was merged into."""
        if self.outputs is not None:
            return self.outputs
        last = self.last_batch
        return () if last is None else tuple(self.batches[last].ends)

    @property
    def floor(self) -> int:
        """The last cut behind which Spark reads nothing again, whatever a crash takes from its checkpoint."""
        bound = min(self.complete, self.proved - RERUN_EPOCHS - 1)
        if bound in self.cuts:
            return bound
        return next((epoch for epoch in reversed(self.cuts) if epoch <= bound), next(iter(self.cuts)))

    @property
    def next_epoch(self) -> int:
        """The number of Spark's next batch. Those without new input count too, as far as their merges tell of them."""
        last = self.last_batch
        return 1 + (self.planned if last is None else max(self.planned, last))

    def proven(self, epoch: int) -> "Pipeline":
        """As it is when Spark has committed all epochs up to this one: of Spark's own sinks these are complete."""
        done = self.delivered if self.outputs or self.sinks else max(self.delivered, epoch)
        return replace(self, proved=epoch, complete=max(self.complete, done))

    @property
    def watermark(self) -> int | None:
        return self.cuts[self.planned].watermark

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(source for spec in self.inputs.values() for source in spec.sources)

    def position(self, epoch: int, segment: str) -> int:
        """How far the pipeline is in a segment at the end of an epoch."""
        found = self.cuts[epoch].segments.get(segment)
        if found is not None:
            return found
        starts = [spec.starting[segment] for spec in self.inputs.values() if segment in spec.starting]
        return min(starts, default=0)

    def segments(self, epoch: int) -> dict[str, int]:
        """The position in every segment of its inputs that was known at the end of the epoch."""
        return {name: self.position(epoch, name) for name in self._known(epoch)}

    def _known(self, epoch: int) -> Iterator[str]:
        sources = self.sources
        known = dict.fromkeys(self.cuts[epoch].segments)
        for spec in self.inputs.values():
            known |= dict.fromkeys(spec.starting)
        return (name for name in known if source_of(name) in sources)

    def offset(self, name: str, epoch: int) -> dict[str, int]:
        """As `segments`, for one input: it begins where it was told to, though another may have begun earlier."""
        spec = self.inputs[name]
        known = dict.fromkeys([*self.cuts[epoch].segments, *spec.starting])
        return {
            segment: max(self.position(epoch, segment), spec.starting.get(segment, 0))
            for segment in sorted(known)
            if source_of(segment) in spec.sources
        }


class Mark(NamedTuple):
    """How long the segments that had grown were, at a time: what is older than retention allows ends there."""

    time_us: int
    segments: Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    released: dict[str, Segments] = field(default_factory=dict)
    """Of every source that a pipeline reads: how far all of them have completed its segments. Never goes back."""
    retention: Retention = COMPLETE
    marks: tuple[Mark, ...] = ()
    generations: int = 0
    """The last generation that any pipeline was given: one that is dropped and made again has no old number."""
    incarnations: int = 0
    attempts: int = 0
    """The number of the last round of two-phase commit, of any pipeline: none is used again."""


@lru_cache(maxsize=10_000)
def source_of(segment: str) -> str:
    """The source that a segment's data belong to."""
    return kind_of(segment).source
