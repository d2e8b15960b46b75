"""What a changed application means for what runs. Pure: two deployments in, what is to be done out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import ConnectorSpec, Deployment, End


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is in none of these goes on untouched. What is to begin anew is in both `stop` and `start`."""

    stop: frozenset[str] = frozenset()
    """Connectors that are there no more, or are made otherwise."""
    start: frozenset[str] = frozenset()
    configure: frozenset[str] = frozenset()
    """Connectors that go on, with another quota, acknowledgement, watermark or policy of their breakers."""
    relink: frozenset[str] = frozenset()
    """Connectors that go on, and whose events lead elsewhere, or whose port `in` is linked otherwise."""
    stop_pipelines: frozenset[str] = frozenset()
    start_pipelines: frozenset[str] = frozenset()

    @property
    def restart(self) -> frozenset[str]:
        return self.stop & self.start

    @property
    def restart_pipelines(self) -> frozenset[str]:
        return self.stop_pipelines & self.start_pipelines

    def as_json(self) -> dict[str, list[str]]:
        return {
            "stopped": sorted(self.stop - self.start),
            "started": sorted(self.start - self.stop),
            "restarted": sorted(self.restart),
            "configured": sorted(self.configure),
            "relinked": sorted(self.relink),
            "pipelines_stopped": sorted(self.stop_pipelines - self.start_pipelines),
            "pipelines_started": sorted(self.start_pipelines - self.stop_pipelines),
            "pipelines_restarted": sorted(self.restart_pipelines),
        }


def changes(old: Deployment, new: Deployment) -> Changes:
    """From what runs to what is to run. A pipeline that is gone from the application is stopped and left as it is, with
    its place in its sources and its sinks: whoever brings it back goes on where it was.
    """
    stay = {name for name in old.connectors.keys() & new.connectors.keys() if _same_connector(name, old, new)}
    stay_pipelines = {
        name
        for name in old.pipelines.keys() & new.pipelines.keys()
        if pipeline_view(old, name) == pipeline_view(new, name)
    }
    return Changes(
        stop=frozenset(old.connectors.keys() - stay),
        start=frozenset(new.connectors.keys() - stay),
        configure=frozenset(n for n in stay if _settings(old.connectors[n]) != _settings(new.connectors[n])),
        relink=frozenset(name for name in stay if links_of(old, name) != links_of(new, name)),
        stop_pipelines=frozenset(old.pipelines.keys() - stay_pipelines),
        start_pipelines=frozenset(new.pipelines.keys() - stay_pipelines),
    )


def links_of(deployment: Deployment, connector: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """The sinks downstream, the pipelines that its events reach, and whether something is linked to its port `in`."""
    return deployment.downstream(connector), deployment.pipelines_of(connector), has_in(deployment, connector)


def has_in(deployment: Deployment, connector: str) -> bool:
    return any((link.target.kind, link.target.name) == ("connector", connector) for link in deployment.links)


def has_out(deployment: Deployment, connector: str) -> bool:
    """Whether somebody reads its events, or what could not become one."""
    return any((link.source.kind, link.source.name) == ("connector", connector) for link in deployment.links)


def pipeline_view(deployment: Deployment, name: str) -> tuple[Any, ...]:
    """All that a pipeline's query is made from: where it is equal, the query may go on."""
    inputs = {
        port: sorted((end, _read_as(deployment, end)) for end in ends) for port, ends in deployment.inputs(name).items()
    }
    written = {(port, _codec(deployment, connector)) for port, connector in deployment.sinks(name)}
    return deployment.pipelines[name], inputs, written


def _same_connector(name: str, old: Deployment, new: Deployment) -> bool:
    return _made_from(old.connectors[name]) == _made_from(new.connectors[name])


def _made_from(spec: ConnectorSpec) -> ConnectorSpec:
    """What the connector itself is made from: not what Spark decodes its events with, nor what can change under it."""
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


def _read_as(deployment: Deployment, end: End) -> str:
    return _codec(deployment, end.name) if end.kind == "connector" else ""


def _codec(deployment: Deployment, connector: str) -> str:
    spec = deployment.connectors.get(connector)
    if spec is None:  # a source of the system's own
        return ""
    return repr((spec.codec, sorted(spec.codec_map.items()), spec.schema))


@dataclass(frozen=True, slots=True)
class Rebinding:
    """Of one pipeline: first some sinks are unbound, then others are bound."""

    unbind: frozenset[str]
    bind: Mapping[str, SinkSpec]
    moved: frozenset[str] = frozenset()
    """To another port, for another codec: when the pipeline is started anew, and they have got all of the old one."""


def rebinding(wanted: Mapping[str, SinkSpec], given: Collection[str], bound: Mapping[str, SinkSpec]) -> Rebinding:
    """From what is `bound` to what is `wanted`. Only sinks that an application has `given` before are unbound: those
    that people have bound by hand are theirs.
    """
    gone = {name for name in bound if name in given and name not in wanted}
    moved = {name for name, spec in wanted.items() if name in bound and bound[name].port != spec.port}
    return Rebinding(
        frozenset(gone),
        {name: spec for name, spec in wanted.items() if bound.get(name) != spec and name not in moved},
        frozenset(moved),
    )
