"""What closes windows over each source, for `penstock check`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.config.deployment import PASSTHROUGH
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import Form, Source

if TYPE_CHECKING:
    from penstock.config import Loaded
    from penstock.config.deployment import ConnectorSpec

_NO_STREAMS = "segment"
"""A type of connector whose events are of no stream: nothing holds a watermark back."""


def windows_over_connectors(loaded: "Loaded") -> Iterator[str]:
    """A sentence for each connector of an application whose events reach a pipeline that may have windows."""
    deployment = loaded.deployment
    for name, spec in deployment.connectors.items():
        functions = {deployment.pipelines[reached].spark for reached in deployment.pipelines_of(name)}
        if functions - {PASSTHROUGH} and spec.type != _NO_STREAMS:
            yield _closing(spec, own_event_times=loaded.capabilities[name].own_event_times)


def _closing(spec: "ConnectorSpec", *, own_event_times: bool | None) -> str:
    over = f"windows over {spec.name}"
    if own_event_times is None:
        return f"{over} close by the worker's clock, unless the connector gives event times of its own"
    if not own_event_times:
        return f"{over} close by the worker's clock"
    if spec.event_time_ingest:
        return f"{over} close by the worker's clock, unless programs send event times of their own"
    slowest = f"{over} wait for the slowest stream"
    if spec.idle_timeout_seconds is None:
        return f"{slowest}; a silent stream holds them back, idle_timeout is off"
    silent = f"{slowest}; one that is silent for {spec.idle_timeout_seconds:g} s is left out"
    if spec.when_all_idle == "clock":
        return f"{silent}; when all are, they close by the worker's clock"
    return f"{silent}; when all are, they wait for the next event, when_all_idle is wait"


def windows_over_programs(inputs: Iterable[Sequence[str]]) -> Iterator[str]:
    """Of the sources of a Python file's pipeline, in one sentence: the worker that it will run with decides."""
    sources = [*filter(_is_connector, dict.fromkeys(source for sources in inputs for source in sources))]
    if sources:
        yield (
            f"windows over {', '.join(sources)} wait for the slowest stream; a silent stream holds them back, "
            "unless the worker has an --idle-timeout"
        )


def _is_connector(source: str) -> bool:
    try:
        return Source.parse(source).form is Form.CONNECTOR
    except RequestError:  # it is reported where the pipeline is started
        return False
