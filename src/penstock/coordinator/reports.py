"""What people are shown: how each pipeline stands, and who holds the chain when nothing moves."""

from collections.abc import Iterator

from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.machine.delivery import undelivered
from penstock.coordinator.machine.state import BATCHES_MAX, CUTS_MAX, State, source_of
from penstock.coordinator.records import Records, Sources
from penstock.coordinator.settings import Connectors, CoordinatorSettings
from penstock.coordinator.watermark.source_table import Held
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import PipelineStatus, WatermarkHeld
from penstock.protocol.stored.names import Form, Source, output_segment

HELD_BATCHES = BATCHES_MAX // 2
"""Merged batches that a sink lacks, before the pipeline's cut stops advancing. Spark also runs batches that no cut is
for: as many are left for those, and for what is cut already, before a merge would be refused.
"""


class Reports:
    """Computed from the state whenever somebody asks."""

    def __init__(
        self,
        records: Records,
        sources: Sources,
        heartbeats: Heartbeats,
        watermarks: Watermarks,
        connectors: Connectors,
        settings: CoordinatorSettings,
    ) -> None:
        self._records = records
        self._sources = sources
        self._heartbeats = heartbeats
        self._watermarks = watermarks
        self._connectors = connectors
        self._settings = settings

    def lag_bytes(self, state: State, name: str) -> int:
        """Durable bytes of its sources that the pipeline has not completed."""
        pipeline = state.pipelines[name]
        segments = self._sources.all_segments(pipeline.sources)
        return sum(max(0, self._records.end(s) - pipeline.position(pipeline.complete, s)) for s in segments)

    def undelivered(self, state: State, name: str) -> dict[str, int]:
        """Of each output that pipelines read or sinks get, the bytes that not all of them have completed."""
        found = {}
        for port in state.pipelines[name].ports:
            segment = output_segment(name, port)
            done = self._done(state, name, port)
            if done:
                found[port] = max(0, self._records.end(segment) - min(done.values()))
        return found

    def _done(self, state: State, name: str, port: str) -> dict[str, int]:
        """How far everyone is who gets a port's output: pipelines that read it, sinks that are bound to it."""
        segment = output_segment(name, port)
        sinks = state.pipelines[name].sinks
        done = {f"sink {key}": sink.at for key, sink in sinks.items() if sink.port == port}
        return done | self._readers(state, segment)

    def held(self, state: State, name: str) -> str | None:
        """Why the pipeline's cut does not advance though there is something new."""
        pipeline = state.pipelines[name]
        waiting = self.undelivered(state, name)
        limit = pipeline.limits.undelivered_bytes
        limit = self._settings.undelivered_bytes if limit is None else limit
        if waiting and sum(waiting.values()) > limit:
            port = max(waiting, key=lambda port: waiting[port])
            who = ", ".join(_least(self._done(state, name, port)))
            return f"{sum(waiting.values())} bytes of its output are not completed by {who}; the limit is {limit}"
        behind = undelivered(pipeline)
        if len(behind) >= HELD_BATCHES:
            who = ", ".join(f"sink {key}" for key, sink in pipeline.sinks.items() if sink.lacks(behind[0][1]))
            return f"{len(behind)} of its epochs are not completed by {who}; the limit is {HELD_BATCHES}"
        unfinished = pipeline.planned - pipeline.proven(pipeline.planned).complete
        return f"{unfinished} of its epochs wait for completion" if unfinished >= CUTS_MAX else None

    def _readers(self, state: State, segment: str) -> dict[str, int]:
        """The pipelines that read it, and how far they have completed it."""
        source = source_of(segment)
        return {
            f"{name} ({self._heartbeats.state(name)})": pipeline.position(pipeline.complete, segment)
            for name, pipeline in state.pipelines.items()
            if source in pipeline.sources
        }

    def pipelines(self, state: State) -> list[PipelineStatus]:
        return [self._pipeline(state, name) for name in sorted(state.pipelines)]

    def _pipeline(self, state: State, name: str) -> PipelineStatus:
        pipeline = state.pipelines[name]
        standing = self._watermarks.standing(state, name)
        # An epoch that Spark ran without new input has no cut, and counts here all the same.
        merged = NO_EPOCH if pipeline.last_batch is None else pipeline.last_batch
        delivered = pipeline.delivered if pipeline.last_delivered is None else pipeline.last_delivered
        return PipelineStatus(
            name=name,
            state=self._heartbeats.state(name),
            incarnation=pipeline.incarnation,
            generation=pipeline.generation,
            planned=max(pipeline.planned, merged),
            merged=merged,
            delivered=delivered,
            complete=delivered if pipeline.complete == pipeline.delivered else pipeline.complete,
            proved=pipeline.proved,
            lag_bytes=self.lag_bytes(state, name),
            undelivered_bytes=sum(self.undelivered(state, name).values()),
            watermark=pipeline.watermark,
            held=self.held(state, name),
            heartbeat_age_seconds=self._heartbeats.age(name),
            inputs={key: list(spec.sources) for key, spec in pipeline.inputs.items()},
            outputs=None if pipeline.outputs is None and not pipeline.batches else list(pipeline.ports),
            is_reset=any(not spec.resolved for spec in pipeline.inputs.values()),
            watermark_held=None if standing is None else self._held_by(standing.held),
            watermark_unmoved_seconds=None if standing is None else round(standing.unmoved_seconds, 3),
        )

    def _held_by(self, held: Held | None) -> WatermarkHeld | None:
        if held is None:
            return None
        stream = "" if held.stream_id is None else self._connectors.stream_name(held.source, held.stream_id)
        return WatermarkHeld(held.source, held.stream_id, stream, held.time)

    def holds(self, state: State) -> Iterator[str]:
        """Sentences, of pipelines that do not run, and of output that is not read."""
        for name in sorted(state.pipelines):
            standing = self._heartbeats.state(name)
            lag = self.lag_bytes(state, name)
            if standing != "RUNNING" and lag:
                yield f"pipeline {name} is {standing}: {lag} bytes of {self._read_by(state, name)} wait for it"
            held = self.held(state, name)
            if held is not None:
                yield f"pipeline {name} is held: {held}"

    def _read_by(self, state: State, name: str) -> str:
        return ", ".join(sorted(state.pipelines[name].sources))

    def slowest(self, state: State, connector: str) -> list[str]:
        """The pipelines that a connector's data wait for."""
        source = str(Source(Form.CONNECTOR, connector))
        segments = self._sources.segments(source)
        return [*dict.fromkeys(who for segment in segments for who in _least(self._readers(state, segment)))]


def _least(done: dict[str, int]) -> list[str]:
    """Those who are farthest behind."""
    least = min(done.values(), default=0)
    return [who for who, at in done.items() if at == least]
