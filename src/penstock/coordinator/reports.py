"""The status of pipelines as people see it, and what they are blocked by."""

from collections.abc import Callable

from penstock.coordinator.flow import Flow
from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.machine.delivery import undelivered
from penstock.coordinator.machine.state import CUTS_MAX, EPOCHS_MAX, Pipeline, State, source_of
from penstock.coordinator.machine.subscriptions import readers_of
from penstock.coordinator.records import Records
from penstock.coordinator.settings import Connectors, CoordinatorSettings
from penstock.coordinator.views import View
from penstock.coordinator.watermark.source_table import Blocker, Times
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import PipelineStatus, WatermarkBlocker
from penstock.protocol.stored.names import Form, Source, output_segment

WAITING_EPOCHS_MAX = EPOCHS_MAX // 2
"""Merged epochs that a sink may lack before the pipeline's cut stops advancing. The same number is left for what is cut
already, and for epochs that Spark runs without new input, before a merge is refused.
"""


class Reports:
    """Computed from the state on every call."""

    def __init__(
        self,
        records: Records,
        views: Callable[[str], View],
        heartbeats: Heartbeats,
        watermarks: Watermarks,
        connectors: Connectors,
        settings: CoordinatorSettings,
        flow: Flow,
    ) -> None:
        self._records = records
        self._views = views
        self._heartbeats = heartbeats
        self._watermarks = watermarks
        self._connectors = connectors
        self._settings = settings
        self._flow = flow

    def lag_bytes(self, state: State, name: str) -> int:
        """Durable bytes of its sources that the pipeline has not completed."""
        pipeline = state.pipelines[name]
        view = self._views(name)
        segments = view.all_segments(pipeline.sources)
        return sum(max(0, view.records.stored_end(s) - pipeline.position(pipeline.complete, s)) for s in segments)

    def undelivered(self, state: State, name: str) -> dict[str, int]:
        """Port → bytes of its output that some reader or sink has not completed; only ports that have one."""
        found = {}
        for port in state.pipelines[name].ports:
            segment = output_segment(name, port)
            done = self._done(state, name, port)
            if done:
                found[port] = max(0, self._records.end(segment) - min(done.values()))
        return found

    def _done(self, state: State, name: str, port: str) -> dict[str, int]:
        """How far the pipelines that read a port and the sinks bound to it have completed its output."""
        segment = output_segment(name, port)
        sinks = state.pipelines[name].sinks
        done = {f"sink {key}": sink.at for key, sink in sinks.items() if sink.port == port}
        return done | self._readers(state, segment)

    def blocked(self, state: State, name: str) -> str | None:
        """What blocks the pipeline's cut, although there may be new input: "blocked by …"."""
        pipeline = state.pipelines[name]
        if (waits := self._views(name).blocked) is not None:
            return waits
        waiting = self.undelivered(state, name)
        limit = pipeline.limits.undelivered_bytes
        limit = self._settings.undelivered_bytes if limit is None else limit
        if waiting and sum(waiting.values()) > limit:
            port = max(waiting, key=lambda port: waiting[port])
            who = _least(self._done(state, name, port))
            return _blocked_by(who, f"{sum(waiting.values())} bytes of its output", limit)
        behind = undelivered(pipeline)
        if len(behind) >= WAITING_EPOCHS_MAX:
            who = [f"sink {key}" for key, sink in pipeline.sinks.items() if sink.lacks(behind[0][1])]
            return _blocked_by(who, f"{len(behind)} epochs", WAITING_EPOCHS_MAX)
        unfinished = pipeline.planned - pipeline.proven(pipeline.planned).complete
        return f"blocked: {unfinished} of its epochs are not complete" if unfinished >= CUTS_MAX else None

    def _readers(self, state: State, segment: str) -> dict[str, int]:
        """The pipelines that read the segment, with their states, and how far they have completed it; also those of
        other shards.
        """
        source = source_of(segment)
        others = readers_of(state.subscriptions, source) if state.subscriptions else {}
        own = {
            f"{name} ({self._heartbeats.state(name)})": pipeline.position(pipeline.complete, segment)
            for name, pipeline in state.pipelines.items()
            if source in pipeline.sources
        }
        return own | {who: done.get(segment, 0) for who, done in others.items()}

    def pipelines(self, state: State) -> list[PipelineStatus]:
        return [self._pipeline(state, name) for name in sorted(state.pipelines)]

    def _pipeline(self, state: State, name: str) -> PipelineStatus:
        pipeline = state.pipelines[name]
        standing = self._watermarks.standing(state, name)
        running = _running(pipeline)
        # An epoch that Spark ran without new input has no cut, but is shown like any other.
        merged = NO_EPOCH if pipeline.last_epoch is None else pipeline.last_epoch
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
            blocked=self.blocked(state, name) or self._views(name).problem,
            heartbeat_age_seconds=self._heartbeats.age(name),
            inputs={key: list(spec.sources) for key, spec in pipeline.inputs.items()},
            outputs=None if pipeline.outputs is None and not pipeline.epochs else list(pipeline.ports),
            is_reset=any(not spec.resolved for spec in pipeline.inputs.values()),
            watermark_blocked_by=None if standing is None else self._blocker(standing.blocker),
            watermark_unmoved_seconds=None if standing is None else round(standing.unmoved_seconds, 3),
            failure=self._heartbeats.failure(name),
            driver_silent_seconds=self._heartbeats.driver_age(name),
            asked_seconds=self._heartbeats.asked_age(name),
            running_epoch=running,
            running_seconds=None if running is None else self._running_seconds(name),
            query=self._heartbeats.query(name),
        )

    def _running_seconds(self, name: str) -> float | None:
        """How long Spark has been processing its epoch, in its current generation, as far as this worker knows."""
        flow = self._flow.pipelines.get(name)
        since = None if flow is None else flow.running_since()
        if since is None:  # it was cut before the worker started
            return self._heartbeats.asked_age(name)
        return self._flow.clock() - max(since, self._heartbeats.started_at(name))

    def _blocker(self, blocker: Blocker | None) -> WatermarkBlocker | None:
        if blocker is None:
            return None
        stream = "" if blocker.stream_id is None else self._connectors.stream_name(blocker.source, blocker.stream_id)
        return WatermarkBlocker(blocker.source, blocker.stream_id, stream, blocker.time)

    def read_times(self, source: str) -> tuple[Times, int]:
        """As `Watermarks.read_times`."""
        return self._watermarks.read_times(source)

    def slowest(self, state: State, connector: str) -> list[str]:
        """The pipelines that a connector's data is retained for: those that are farthest behind."""
        source = str(Source(Form.CONNECTOR, connector))
        segments = self._views("").segments(source)
        return [*dict.fromkeys(who for segment in segments for who in _least(self._readers(state, segment)))]


def _blocked_by(who: list[str], what: str, limit: int) -> str:
    """Sinks that vote advance together: of several that are behind, delivery knows which one the others wait for."""
    if len(who) == 1:
        return f"blocked by {who[0]}: {what} wait, and the limit is {limit}"
    return f"blocked: {what} wait for {', '.join(who)}, and the limit is {limit}"


def _running(pipeline: Pipeline) -> int | None:
    """The epoch that Spark processes, or would process: it is cut, and its output is not committed."""
    committed = pipeline.merged if pipeline.ports else pipeline.proved
    return pipeline.planned if pipeline.planned > committed else None


def _least(done: dict[str, int]) -> list[str]:
    """The ones that are farthest behind."""
    least = min(done.values(), default=0)
    return [who for who, at in done.items() if at == least]
