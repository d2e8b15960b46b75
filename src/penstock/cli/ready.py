"""What `penstock run` says when pipelines take events: what to do next, for each source."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from penstock.client.coordinator import PipelineStatus

_REQUESTS = "http-server"
_PROGRAMS = "connector-protocol"
_ELSEWHERE = ("pipeline:", "segment:")
"""How sources begin that nobody sends to directly."""


def ready_lines(
    names: Collection[str], known: Iterable[PipelineStatus], connectors: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Of these pipelines. A request is answered when every pipeline that reads it has it, so all of them must run."""
    connector_of = {one["name"]: one for one in connectors}
    reads = {one.name: _sources(one) for one in known}
    running = {one.name for one in known if one.state == "RUNNING"}
    lines: dict[str, None] = {}
    for name in sorted(running.intersection(names)):
        requests = [source for source in reads[name] if connector_of.get(source, {}).get("type") == _REQUESTS]
        for source in requests:
            if all(reader in running for reader, sources in reads.items() if source in sources):
                lines[f"ready: {connector_of[source]['reached_at']}"] = None
        others = [f"{source}{_how(source, connector_of)}" for source in reads[name] if source not in requests]
        if others:
            lines[f"ready: {name} reads {', '.join(others)}"] = None
    return list(lines)


def _sources(pipeline: PipelineStatus) -> list[str]:
    return list(dict.fromkeys(source for sources in pipeline.inputs.values() for source in sources))


def _how(source: str, connector_of: Mapping[str, Mapping[str, Any]]) -> str:
    """In parentheses: how events come into it."""
    if source.startswith(_ELSEWHERE):
        return ""
    connector = connector_of.get(source)
    if connector is None or connector["type"] == _PROGRAMS:
        return f" (penstock send --source {source})"
    return f" ({connector.get('reached_at') or connector['type']})"
