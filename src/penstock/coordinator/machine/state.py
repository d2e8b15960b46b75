"""The coordinator's state: pipelines with their cuts, merged epochs and sinks, and the retention. Immutable values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Limits, Segments
from penstock.protocol.stored.names import kind_of


@dataclass(frozen=True, slots=True)
class Retention:
    """How long data is retained. `complete`: until every registered pipeline has completed it, and Spark will not read
    it again. `keep`: forever. `time`: `amount` microseconds. `size`: `amount` bytes of each segment. The last two may
    remove what a pipeline still needs; its reader then gets DataLoss.
    """

    mode: Literal["complete", "keep", "time", "size"] = "complete"
    amount: int = 0


COMPLETE = Retention()

CUTS_MAX = 1000
"""Cuts retained per pipeline. Spark's own checkpoint has far fewer, and it never asks for an older one."""

EPOCHS_MAX = 1000
"""Merged epochs retained per pipeline, for the same reason."""

RERUN_EPOCHS = 2
"""Epochs before the last proved one that Spark may read again: a power cut can remove its newest checkpoint files."""


class Cut(NamedTuple):
    """Where an epoch ends, in every segment that the pipeline reads, and the watermark there."""

    segments: Segments
    watermark: int | None = None


class MergedEpoch(NamedTuple):
    """An epoch whose output is merged. `start` and `end` are the numbers of the cuts between which it has read: equal
    if there was no new input.
    """

    start: int
    end: int
    ends: Mapping[str, int]
    """Port → where its output segment ended after this epoch."""
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Input:
    """A named input of a pipeline."""

    sources: tuple[str, ...]
    starting: Segments
    """Where its first epoch starts; in a segment that is not named, at 0."""
    resolved: bool = True
    """False after a reset, until the next start decides where to start; until then `starting` is only retained."""


class Accepted(NamedTuple):
    """An operator has accepted that a sink's data does not fit the ledger: it continues from what it has."""

    what: str
    """`gap`: it lacks output. `duplicates`: it may get output twice."""
    by: str
    time_us: int
    sent_before: int
    """`Sink.sent` before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A sink that is bound to an output port, and how far it is."""

    port: str
    url: str
    votes: bool
    begun: int
    """Where in the port's output segment it started; also 0 if the segment was retained only for earlier sinks."""
    at: int
    """Its position in the port's output segment: everything before it is committed at the sink, or parked."""
    sent: int = 0
    """Bytes of payloads committed at the sink: the id of its next message."""
    decided: str = ""
    """The last transaction that was decided for it. The sink may not know of the decision yet. Until there is one:
    `bound_after` of the last attempt before it was bound, or "" if the pipeline had no epochs then.
    """
    parked: int = 0
    """How many epochs were parked for it."""
    moved: bool = False
    """It was bound to another URL, and nothing was decided since."""
    accepted: tuple[Accepted, ...] = ()
    """The latest ones, oldest first."""

    def lacks(self, epoch: MergedEpoch) -> bool:
        return self.at < epoch.ends.get(self.port, 0)


class Buried(NamedTuple):
    """An event that an operator has buried. What the tasks of a batch leave out never changes while its query runs: a
    change that concerns the running batch takes effect with the next query, and until then the batch is not merged.
    """

    end: int
    """Where the event ends in its segment."""
    reason: str
    is_left_out: bool
    """By the running query."""
    is_wanted: bool = True
    """By the next one; False: it was undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    incarnation: int
    """Grows with every reset, and when a dropped pipeline is created again."""
    generation: int
    """Grows with every start of its query; older generations are fenced."""
    request: str = ""
    """The id of the request that started this generation: repeating the request does not start another."""
    inputs: dict[str, Input] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    """Ports; () for Spark's own sinks, None while they are not known."""
    limits: Limits = field(default_factory=Limits)
    cuts: dict[int, Cut] = field(default_factory=lambda: {NO_EPOCH: Cut({})})
    """By epoch, ascending; the last one belongs to the epoch planned last. The cut of NO_EPOCH is where the inputs
    start. An epoch that Spark runs without new input has no cut.
    """
    epochs: dict[int, MergedEpoch] = field(default_factory=dict)
    """Those that are merged, by number, ascending."""
    proved: int = NO_EPOCH
    """The last epoch that Spark has certainly committed."""
    complete: int = NO_EPOCH
    """The last epoch whose effect is durable at every sink. Never goes back."""
    leader: str | None = None
    """The load that asked first in this generation: its requests decide cuts."""
    running: tuple[int, int] = (NO_EPOCH, NO_EPOCH)
    """The numbers of the cuts between which Spark's current batch reads."""
    sinks: dict[str, Sink] = field(default_factory=dict)
    attempt: int = 0
    """The number of the open round of two-phase commit; 0 if there is none, or if it can no longer be decided."""
    replayed: dict[str, int] = field(default_factory=dict)
    """Port → how far in its output segment dead letters were replayed in order. Never goes back."""
    chosen: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Port → ranges of its output segment, ascending: the dead letters that were replayed by choice."""
    schemas: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Port → names and Spark types of the fields of its JSON rows, where they are known."""
    buried: dict[tuple[str, int], Buried] = field(default_factory=dict)
    """Segment and offset of an event → how it was buried. Retained for as long as Spark may read the event again."""
    manifest: str = ""
    """The mirrored checkpoint of the last merged epoch, or for Spark's own sinks of the last one that was mirrored; "":
    there is none.
    """

    @property
    def planned(self) -> int:
        """The last epoch with a cut."""
        return next(reversed(self.cuts))

    @property
    def next_epoch(self) -> int:
        """The number of Spark's next batch. Batches without new input are counted by their merges."""
        last = self.last_epoch
        return 1 + (self.planned if last is None else max(self.planned, last))

    @property
    def last_epoch(self) -> int | None:
        """The last merged epoch, with a cut or without."""
        return next(reversed(self.epochs), None)

    @property
    def merged(self) -> int:
        """The last cut whose output is merged."""
        last = self.last_epoch
        return NO_EPOCH if last is None else self.epochs[last].end

    @property
    def last_delivered(self) -> int | None:
        """The last merged epoch that no bound sink lacks."""
        for number, epoch in reversed(self.epochs.items()):
            if not any(sink.lacks(epoch) for sink in self.sinks.values()):
                return number
        return None

    @property
    def delivered(self) -> int:
        """The last cut whose output every sink has; without sinks, the last one that is merged."""
        last = self.last_delivered
        if last is not None:
            return self.epochs[last].end
        return next((epoch.start for epoch in self.epochs.values()), NO_EPOCH)

    @property
    def ports(self) -> tuple[str, ...]:
        """The declared ones, or else those that something was merged into."""
        if self.outputs is not None:
            return self.outputs
        last = self.last_epoch
        return () if last is None else tuple(self.epochs[last].ends)

    @property
    def is_merged_by_proof(self) -> bool:
        """Whether nothing merges its epochs: Spark's own sinks, or nothing is known yet. Earlier epochs may be merged:
        the sink may have changed.
        """
        return self.outputs == () or self.last_epoch is None

    @property
    def floor(self) -> int:
        """The last cut before which Spark reads nothing again, whatever a crash removes from its checkpoint."""
        bound = min(self.complete, self.proved - RERUN_EPOCHS - 1)
        if bound in self.cuts:
            return bound
        return next((epoch for epoch in reversed(self.cuts) if epoch <= bound), next(iter(self.cuts)))

    @property
    def checkpoint_epoch(self) -> int:
        """The last epoch that a checkpoint may have so that its query continues from this state.

        With outputs, that is the last merged epoch: a later one in the checkpoint's commit log would be missing in the
        output. Spark's own sinks have no merges; there it is the last epoch whose cut, or commit, is known. A
        checkpoint without later epochs is what a crash leaves: Spark asks for the next epoch, and gets the cut that is
        stored here, or runs this epoch again, and merging it again changes nothing. NO_EPOCH: it starts without a
        checkpoint, because Spark has certainly committed nothing.
        """
        if self.last_epoch is not None:
            return self.last_epoch
        return NO_EPOCH if self.proved == NO_EPOCH else max(self.planned, self.proved)

    def proven(self, epoch: int) -> "Pipeline":
        """The pipeline after Spark has committed all epochs up to this one. For Spark's own sinks they are complete."""
        done = self.delivered if self.outputs or self.sinks else max(self.delivered, epoch)
        proven = replace(self, proved=epoch, complete=max(self.complete, done))
        return proven if not self.buried else replace(proven, buried=still_buried(proven))

    @property
    def committed(self) -> int:
        """The last cut of a committed epoch: one that is merged, or that Spark has certainly committed."""
        last = max(self.merged, self.proved)
        return max(epoch for epoch in self.cuts if epoch <= last)

    def is_committed(self, segment: str, offset: int) -> bool:
        """Whether what is there belongs to a committed epoch, or is before the first one."""
        return offset < self.position(self.committed, segment)

    @property
    def watermark(self) -> int | None:
        return self.cuts[self.planned].watermark

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(source for spec in self.inputs.values() for source in spec.sources)

    def position(self, epoch: int, segment: str) -> int:
        """The pipeline's offset in a segment at the cut of an epoch."""
        found = self.cuts[epoch].segments.get(segment)
        if found is not None:
            return found
        starts = [spec.starting[segment] for spec in self.inputs.values() if segment in spec.starting]
        return min(starts, default=0)

    def segments(self, epoch: int) -> dict[str, int]:
        """The position in every segment of its inputs that was known at the cut of the epoch."""
        return {name: self.position(epoch, name) for name in self._known(epoch)}

    def _known(self, epoch: int) -> Iterator[str]:
        sources = self.sources
        known = dict.fromkeys(self.cuts[epoch].segments)
        for spec in self.inputs.values():
            known |= dict.fromkeys(spec.starting)
        return (name for name in known if source_of(name) in sources)

    def offset(self, name: str, epoch: int) -> dict[str, int]:
        """As `segments`, for one input, which may start later in a segment than another input does."""
        spec = self.inputs[name]
        known = dict.fromkeys([*self.cuts[epoch].segments, *spec.starting])
        return {
            segment: max(self.position(epoch, segment), spec.starting.get(segment, 0))
            for segment in sorted(known)
            if source_of(segment) in spec.sources
        }


def still_buried(pipeline: Pipeline) -> dict[tuple[str, int], Buried]:
    """Without the events that Spark does not read again, and those that it has processed: with sinks of its own, it may
    commit a batch although one of its events was buried meanwhile.
    """
    left = {
        (segment, offset): one
        for (segment, offset), one in pipeline.buried.items()
        if offset >= pipeline.position(pipeline.floor, segment)
    }
    done = {place for place in left if pipeline.is_committed(*place)}
    return {
        place: one._replace(is_wanted=True) if place in done else one
        for place, one in left.items()
        if one.is_left_out or place not in done
    }


class Mark(NamedTuple):
    """The lengths, at a time, of the segments that had grown: what retention by time removes ends there."""

    time_us: int
    segments: Segments


class Subscription(NamedTuple):
    """What the pipelines of another shard need of a source of this one; see `machine.subscriptions`."""

    term: int
    """Of the other shard's process that has sent it."""
    number: int
    """Grows with each message of that process."""
    pipelines: tuple[str, ...]
    done: Segments | None
    """How far they all have completed it; a segment that is not named: not at all. None: they read it no more."""
    floor: Segments
    """What is before it none of them reads again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    released: dict[str, Segments] = field(default_factory=dict)
    """Source → segment → how far all pipelines that read the source have completed it. Never goes back."""
    retention: Retention = COMPLETE
    marks: tuple[Mark, ...] = ()
    generations: int = 0
    """The last generation of any pipeline: one that is dropped and created again gets a new number."""
    incarnations: int = 0
    """The last incarnation of any pipeline."""
    attempts: int = 0
    """The number of the last round of two-phase commit of any pipeline; none is used again."""
    term: int = 0
    """How many processes have served this shard of a cluster; 0 without a cluster."""
    remote: dict[str, int] = field(default_factory=dict)
    """Sources of other shards that a pipeline has ever read → their shards."""
    subscriptions: dict[tuple[int, str], Subscription] = field(default_factory=dict)
    """Home shard and source → what the pipelines of that shard need of this source of ours."""


@lru_cache(maxsize=10_000)
def source_of(segment: str) -> str:
    """The source that a segment belongs to."""
    return kind_of(segment).source
