"""Pipelines of an application are known before its connectors listen: from the first event on, what they are to read is
kept for them, and complete when they have read it; also while nobody runs them yet.
"""

import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.coordinator.lifecycle import Lifecycle
from penstock.core.errors import PenstockError
from penstock.protocol.api.deployment import Deployment, End
from penstock.protocol.api.pipelines import AtSegments, AtTime, InputSpec, Starting

log = logging.getLogger(__name__)

_EPOCH = datetime.fromtimestamp(0, UTC)


async def register(
    lifecycle: Lifecycle,
    known: Collection[str],
    deployment: Deployment,
    source: Callable[[End], str],
    revision: int,
) -> None:
    """Those that the coordinator does not know. The driver that starts one takes it over as it is. `source`: what is
    read where an end of a link says it.
    """
    for name, spec in deployment.pipelines.items():
        if name in known:
            continue
        starting = starting_in(spec.settings.get("starting", "earliest"))
        inputs = {
            port: InputSpec([*dict.fromkeys(map(source, ends))], starting)
            for port, ends in deployment.inputs(name).items()
        }
        try:
            await lifecycle.register(name, inputs, request=f"application, revision {revision}")
        except PenstockError as error:
            log.error("pipeline %s is not known until its driver starts it: %s", name, error)


def starting_in(given: Any) -> Starting:
    """As a deployment's settings have it: `earliest`, `latest`, a time in ISO 8601, segments and offsets."""
    if isinstance(given, dict):
        return AtSegments(given)
    match given:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    instant = datetime.fromisoformat(given)
    instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return AtTime((instant - _EPOCH) // timedelta(microseconds=1))
