"""The diff of two deployments: which connectors, pipelines and sinks to stop, start and change. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from penstock.application.plan import plan_of
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import ConnectorSpec, Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorChanges:
    """Connectors that are in none of these run on. What is restarted is in both `stop` and `start`."""

    stop: frozenset[str] = frozenset()
    start: frozenset[str] = frozenset()
    configure: frozenset[str] = frozenset()
    """They run on with another quota, acknowledgement, watermark or breaker policy."""
    relink: frozenset[str] = frozenset()
    """They run on, but their events lead elsewhere, or their `in` port is linked differently."""

    def as_json(self) -> dict[str, list[str]]:
        return {
            "stopped": sorted(self.stop - self.start),
            "started": sorted(self.start - self.stop),
            "restarted": sorted(self.stop & self.start),
            "configured": sorted(self.configure),
            "relinked": sorted(self.relink),
        }


@dataclass(frozen=True, slots=True)
class PipelineChanges:
    """Pipelines that are in neither run on. What is restarted is in `start`, and was in the old deployment."""

    stop: tuple[str, ...]
    start: tuple[str, ...]
    restart: frozenset[str]

    def as_json(self) -> dict[str, list[str]]:
        return {
            "pipelines_stopped": sorted(self.stop),
            "pipelines_started": sorted({*self.start} - self.restart),
            "pipelines_restarted": sorted(self.restart),
        }


def connector_changes(old: Deployment, new: Deployment) -> ConnectorChanges:
    """From what runs to what should run."""
    stay = {name for name in old.connectors.keys() & new.connectors.keys() if _same_connector(name, old, new)}
    return ConnectorChanges(
        stop=frozenset(old.connectors.keys() - stay),
        start=frozenset(new.connectors.keys() - stay),
        configure=frozenset(n for n in stay if _settings(old.connectors[n]) != _settings(new.connectors[n])),
        relink=frozenset(name for name in stay if links_of(old, name) != links_of(new, name)),
    )


def pipeline_changes(old: Deployment, new: Deployment) -> PipelineChanges:
    """A pipeline is restarted if its query would be made from anything else. One that is gone is stopped and keeps its
    place in its sources and sinks: if it comes back, it continues there. Raises RequestError, as `plan_of`.
    """
    both = old.pipelines.keys() & new.pipelines.keys()
    same = {name for name in both if plan_of(old, name) == plan_of(new, name)}
    return PipelineChanges(
        tuple(name for name in old.pipelines if name not in new.pipelines),
        tuple(name for name in new.pipelines if name not in same),
        frozenset(both - same),
    )


def links_of(deployment: Deployment, connector: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """The sinks downstream, the pipelines that its events reach, and whether its `in` port is linked."""
    return deployment.downstream(connector), deployment.pipelines_of(connector), deployment.has_in(connector)


def _same_connector(name: str, old: Deployment, new: Deployment) -> bool:
    return _built_from(old.connectors[name]) == _built_from(new.connectors[name])


def _built_from(spec: ConnectorSpec) -> ConnectorSpec:
    """What the connector is built from: neither what Spark decodes its events with, nor what `configure` changes."""
    blank = ConnectorSpec(name=spec.name, id=spec.id, instance=spec.instance, type=spec.type)
    return replace(
        blank,
        config=spec.config,
        interceptors_in=spec.interceptors_in,
        interceptors_out=spec.interceptors_out,
        reconnect=spec.reconnect,
        segments=spec.segments,
    )


def _settings(spec: ConnectorSpec) -> tuple[object, ...]:
    return (
        *(spec.quota_bytes, spec.ack, spec.max_disorder_us, spec.idle_timeout_seconds, spec.when_all_idle),
        *(spec.event_time_unit, spec.event_time_ingest, spec.breaker),
    )


@dataclass(frozen=True, slots=True)
class Rebinding:
    """The sinks of one pipeline: first some are unbound, then others are bound."""

    unbind: frozenset[str]
    bind: Mapping[str, SinkSpec]
    moved: frozenset[str] = frozenset()
    """To another port, for another codec: rebound when the pipeline restarts and they have got all of the old port."""


def rebinding(wanted: Mapping[str, SinkSpec], given: Collection[str], bound: Mapping[str, SinkSpec]) -> Rebinding:
    """From what is `bound` to what is `wanted`. Only sinks that an application has bound before (`given`) are unbound:
    those that operators have bound by hand stay.
    """
    gone = {name for name in bound if name in given and name not in wanted}
    moved = {name for name, spec in wanted.items() if name in bound and bound[name].port != spec.port}
    return Rebinding(
        frozenset(gone),
        {name: spec for name, spec in wanted.items() if bound.get(name) != spec and name not in moved},
        frozenset(moved),
    )
