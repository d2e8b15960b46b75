"""Deployments for tests: any, for Hypothesis, and small ones by hand."""

from hypothesis import strategies as st

from penstock.protocol.api.deployment import ConnectorSpec, Deployment, End, Link, PipelineSpec

_CONNECTORS = ("a", "b", "c", "d")
_PIPELINES = ("p", "q", "r")
_PORTS = ("out", "err")


def connector(name: str, type: str = "null", **more: object) -> ConnectorSpec:  # noqa: A002
    return ConnectorSpec(name=name, id=name, instance="01", type=type, **more)  # type: ignore[arg-type]


def pipeline(name: str, **more: object) -> PipelineSpec:
    return PipelineSpec(name=name, id=name, instance="01", spark="system::passthrough", **more)  # type: ignore[arg-type]


def link(source: str, target: str) -> Link:
    """Ends as `kind/name/port`, such as `connector/a/out`."""
    return Link(End(*source.split("/")), End(*target.split("/")), f"penstock://{target}")


def deployed(*parts: ConnectorSpec | PipelineSpec | Link) -> Deployment:
    return Deployment(
        connectors={part.name: part for part in parts if isinstance(part, ConnectorSpec)},
        pipelines={part.name: part for part in parts if isinstance(part, PipelineSpec)},
        links=tuple(part for part in parts if isinstance(part, Link)),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Whose links lead between what is there."""
    names = draw(st.sets(st.sampled_from(_CONNECTORS)))
    pipelines = draw(st.sets(st.sampled_from(_PIPELINES)))
    connectors = {
        name: connector(
            name,
            "tcp-client",
            config=draw(st.sampled_from([{"port": 1}, {"port": 2}])),
            codec=draw(st.sampled_from([None, "json", "string"])),
            quota_bytes=draw(st.sampled_from([None, 100])),
        )
        for name in names
    }
    specs = {name: pipeline(name, code=draw(st.sampled_from(["1", "2"]))) for name in pipelines}
    sources = [End("connector", name, "out") for name in names]
    inputs = [End("pipeline", name, "in") for name in pipelines]
    outputs = [End("pipeline", name, port) for name in pipelines for port in _PORTS]
    sinks = [End("connector", name, "in") for name in names]
    possible = [Link(one, other) for one in sources for other in inputs]
    possible += [Link(one, other) for one in outputs for other in sinks + inputs]
    links = draw(st.lists(st.sampled_from(sorted(possible)), unique=True)) if possible else []
    return Deployment(connectors=connectors, pipelines=specs, links=tuple(links))
