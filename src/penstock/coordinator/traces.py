"""Records when each phase of an epoch begins and ends, and exports every phase as a span once it has ended.

In memory only, and no decision depends on it. The span of the epoch itself is exported when the epoch is complete: by
the worker that completes it, which may have been started since. That one does not know when the epoch began.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from penstock.coordinator.machine.state import CUTS_MAX, Pipeline, State
from penstock.coordinator.spans import LINKS_MAX, Attributes, EpochId, Span, SpanContext, Value, ranges, upstream
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Segments, Staged

SINK_SPANS_MAX = 100
"""Spans of attempts of one epoch: a sink that is away for a day is tried thousands of times. The number of all attempts
is an attribute of `deliver`.
"""

Export = Callable[[Span], None]


@dataclass(slots=True)
class OpenEpoch:
    """An epoch that is not complete."""

    id: EpochId
    began_ns: int
    ended_ns: int
    """When its last phase has ended."""
    attributes: dict[str, Value] = field(default_factory=dict)
    links: tuple[SpanContext, ...] = ()
    cut_ns: int | None = None
    """When the decision about its cut began; None once the cut was returned to Spark, or if that is not known."""
    spark_ns: int | None = None
    """When its cut was returned to Spark; None if Spark does not run it."""
    generation: int = 0
    """Of the run of Spark that got it."""
    merged_ns: int | None = None
    attempts: int = 0

    def span(self, name: str, start_ns: int, end_ns: int, attributes: Attributes, error: str = "") -> Span:
        """A phase: a span below that of the epoch. `spark` may run several times, each in a generation of its own."""
        context = self.id.span(name, self.generation) if name == "spark" else self.id.span(name)
        self.ended_ns = max(self.ended_ns, end_ns)
        return Span(
            name=name,
            context=context,
            parent=self.id.root,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=attributes,
            error=error,
        )


class Traces:
    """`now_ns` is the time since 1970. Without `export` nothing is recorded. Belongs to the thread that owns the
    store.
    """

    def __init__(self, now_ns: Callable[[], int], export: Export | None = None, seed: bytes = b"") -> None:
        self.is_on = export is not None
        self.now_ns = now_ns
        self._export = export or (lambda _: None)
        self._seed = seed
        self._open: dict[str, dict[int, OpenEpoch]] = {}
        self._seen: dict[str, Pipeline] = {}

    def recover(self, state: State) -> None:
        """Epochs that another process has begun, and this one is going to complete."""
        for name, pipeline in state.pipelines.items() if self.is_on else ():
            for number in sorted({*pipeline.cuts, *pipeline.epochs}):
                if number > _over(pipeline):
                    epoch = self._begin(name, pipeline, number, self.now_ns())
                    epoch.merged_ns = epoch.began_ns if number in pipeline.epochs else None
                    epoch.attributes["penstock.resumed"] = True

    # The phases, in order.

    def cut(
        self, name: str, before: Pipeline, state: State, began_ns: int, ends: Segments, taken: tuple[int, int]
    ) -> None:
        """The cut of the next epoch of the pipeline, as it was `before`, is decided. `taken`: rows and bytes."""
        if not self.is_on:
            return
        pipeline = state.pipelines[name]
        epoch = self._begin(name, pipeline, pipeline.planned, began_ns)
        epoch.cut_ns = began_ns
        starts = {segment: before.position(before.planned, segment) for segment in ends}
        rows, size = taken
        epoch.attributes |= {"penstock.rows": rows, "penstock.bytes": size, "penstock.ranges": ranges(starts, ends)}
        if pipeline.watermark is not None:
            epoch.attributes["penstock.watermark_us"] = pipeline.watermark
        self._link(epoch, upstream(self._seed, state, starts, ends))

    def link(self, name: str, number: int, links: Iterable[SpanContext]) -> None:
        """The epoch contains what was sent in these spans. Those beyond LINKS_MAX are left out."""
        epoch = self._found(name, number)
        if epoch is not None:
            self._link(epoch, links)

    def _link(self, epoch: OpenEpoch, links: Iterable[SpanContext]) -> None:
        known = dict.fromkeys((*epoch.links, *islice(links, LINKS_MAX)))
        epoch.links = (*islice(known, LINKS_MAX),)

    def returned(self, name: str, pipeline: Pipeline, number: int) -> None:
        """Spark has got the epoch's cut, and runs it. A query with several loads asks once for each."""
        epoch = self._found(name, number)
        if epoch is None or (epoch.spark_ns is not None and epoch.generation == pipeline.generation):
            return
        now = self.now_ns()
        if epoch.cut_ns is not None:
            self._export(epoch.span("cut", epoch.cut_ns, now, {}))
            epoch.cut_ns = None
        if epoch.spark_ns is not None:
            self._spark(epoch, now, f"replaced by generation {pipeline.generation}")
        epoch.spark_ns, epoch.generation = now, pipeline.generation

    def merged(self, name: str, pipeline: Pipeline, number: int, began_ns: int, staged: Sequence[Staged]) -> None:
        """Its output is durable. `began_ns`: when Spark asked for the merge."""
        if not self.is_on:
            return
        epoch = self._found(name, number) or self._begin(name, pipeline, number, began_ns)
        if epoch.spark_ns is not None:
            self._spark(epoch, began_ns)
        epoch.merged_ns = self.now_ns()
        output: dict[str, Value] = {
            "penstock.output.rows": sum(one.rows or 0 for one in staged),
            "penstock.output.bytes": sum(one.length for one in staged),
            "penstock.output.ports": tuple(dict.fromkeys(one.port for one in staged)),
        }
        self._export(epoch.span("merge", began_ns, epoch.merged_ns, output))

    def _spark(self, epoch: OpenEpoch, end_ns: int, error: str = "") -> None:
        assert epoch.spark_ns is not None
        generation = {"penstock.generation": epoch.generation}
        self._export(epoch.span("spark", epoch.spark_ns, end_ns, generation, error))
        epoch.spark_ns = None

    def begin_attempt(self, name: str, number: int) -> int:
        """The epoch is about to be delivered to a sink, or to all that vote. Returns the time."""
        epoch = self._found(name, number)
        if epoch is not None:
            epoch.attempts += 1
        return self.now_ns()

    def decided(self, name: str, number: int) -> None:
        """A sink is to have the epoch for good; that is not durable yet."""
        epoch = self._found(name, number)
        if epoch is not None:
            epoch.ended_ns = self.now_ns()

    def end_attempt(
        self, name: str, incarnation: int, number: int, began_ns: int, sink: Attributes, error: str = ""
    ) -> None:
        """The attempt is over at this sink. The epoch may be complete by now: sinks commit after the decision."""
        epoch = self._found(name, number)
        if not self.is_on or (epoch is not None and epoch.attempts > SINK_SPANS_MAX):
            return
        identity = EpochId(self._seed, name, incarnation, number)
        self._export(
            Span(
                name="sink",
                context=identity.span("sink", sink["penstock.sink"], began_ns),
                parent=identity.span("deliver"),
                start_ns=began_ns,
                end_ns=self.now_ns(),
                attributes=sink,
                error=error,
            )
        )

    # Completion.

    def completed(self, state: State) -> list[tuple[OpenEpoch, str]]:
        """The epochs that are over in this state, each with why it ended without being complete, if it did. They are
        no longer open: `finish` them when the state is durable.
        """
        return [one for name in [*self._open] for one in self._ended(name, state.pipelines.get(name))]

    def _ended(self, name: str, pipeline: Pipeline | None) -> Iterator[tuple[OpenEpoch, str]]:
        if pipeline is not None and pipeline is self._seen.get(name):
            return
        epochs, reason = self._open[name], "the pipeline was reset or dropped"
        for number, epoch in [*epochs.items()]:
            if pipeline is None or pipeline.incarnation != epoch.id.incarnation:
                yield epochs.pop(number), reason
            elif number <= _over(pipeline):
                yield epochs.pop(number), ""
        if pipeline is None:
            del self._open[name]
            self._seen.pop(name, None)
        else:
            self._seen[name] = pipeline

    def finish(self, epoch: OpenEpoch, reason: str = "") -> None:
        """Export what is left of it, and the span of the epoch itself."""
        now = self.now_ns()
        if epoch.spark_ns is not None:  # Spark's own sinks: there is no merge
            self._spark(epoch, now, reason)
        if epoch.attempts and epoch.merged_ns is not None:
            attempts = {"penstock.attempts": epoch.attempts}
            self._export(epoch.span("deliver", epoch.merged_ns, max(epoch.ended_ns, epoch.merged_ns), attempts))
        if not reason:
            self._export(epoch.span("complete", min(epoch.ended_ns, now), now, {}))
        self._export(
            Span(
                name="epoch",
                context=epoch.id.root,
                parent=None,
                start_ns=epoch.began_ns,
                end_ns=now,
                attributes={**epoch.attributes, "penstock.generation": epoch.generation},
                links=epoch.links,
                error=reason,
            )
        )

    def _begin(self, name: str, pipeline: Pipeline, number: int, began_ns: int) -> OpenEpoch:
        identity = EpochId(self._seed, name, pipeline.incarnation, number)
        epoch = OpenEpoch(identity, began_ns, began_ns, generation=pipeline.generation)
        epoch.attributes = {
            "penstock.pipeline": name,
            "penstock.incarnation": pipeline.incarnation,
            "penstock.epoch": number,
        }
        epochs = self._open.setdefault(name, {})
        epochs[number] = epoch
        self._seen.pop(name, None)
        if len(epochs) > CUTS_MAX:  # the ledger retains no more
            del epochs[next(iter(epochs))]
        return epoch

    def _found(self, name: str, number: int) -> OpenEpoch | None:
        return self._open.get(name, {}).get(number)


def _over(pipeline: Pipeline) -> int:
    """The last epoch that nothing more happens to. Epochs without new input have no cut, and `complete` is a cut."""
    last = pipeline.last_delivered
    return max(pipeline.complete, NO_EPOCH if last is None else last)
