"""Whether links can be: ports that are there, and that can serve; inputs that something leads to."""

from collections.abc import Mapping, Sequence

from penstock.config.connectors import CheckedConnector
from penstock.config.deployment import End, Link
from penstock.config.expansion import Reached, Route
from penstock.config.mistakes import nearest
from penstock.config.pipelines import CheckedPipeline
from penstock.config.types import CapabilitiesOf
from penstock.config.yaml_document import Document

_BEGINS = ("out", "err")
_ENDS = ("in",)


class Linking:
    """Of all that could be checked; ends at what could not are passed over: its own mistakes are told."""

    def __init__(
        self,
        document: Document,
        connectors: Mapping[str, CheckedConnector],
        pipelines: Mapping[str, CheckedPipeline],
    ) -> None:
        self._document = document
        self._connectors = connectors
        self._pipelines = pipelines

    def links(self, routes: Sequence[Route]) -> list[Link]:
        found: dict[tuple[End, End], tuple[Route, Link]] = {}
        for route in routes:
            self._check_source(route.source)
            self._check_target(route.target)
            self._check_pair(route)
            link = Link(self._end(route.source), self._end(route.target), route.target.shown)
            first, _ = found.setdefault((link.source, link.target), (route, link))
            if first.binding is route.binding and first.target.path != route.target.path:
                self._complain(route.target, f'"{route.source.shown}" is linked to "{link.url}" twice')
        links = [link for _, link in found.values()]
        self._check_inputs(links)
        self._check_circles(links)
        return links

    def _end(self, reached: Reached) -> End:
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        port = reached.url.port if pipeline is None or reached.is_key else pipeline.port(reached.url.port)
        return End("pipeline" if reached.url.kind == "pipeline" else "connector", reached.name, port)

    def _complain(self, reached: Reached, text: str, hint: str = "") -> None:
        self._document.complain(reached.path, text, hint, key=reached.is_key)

    def _check_source(self, reached: Reached) -> None:
        port = reached.url.port
        if reached.url.kind == "connector" and reached.name in self._connectors:
            capabilities = self._connectors[reached.name].capabilities
            if port in _ENDS:
                text = f'Unable to link from "{reached.shown}". Events leave the system through port "{port}"'
                self._complain(reached, text, "It can only stand on the right of a link.")
            elif port in _BEGINS and capabilities.source is None:
                self._complain(reached, _unable(reached, "sink"))
            elif port not in _BEGINS:
                self._complain(reached, *_no_port(reached, _ports(capabilities)))
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        if pipeline is not None and port not in pipeline.outputs:
            self._complain(reached, *_no_port(reached, pipeline.outputs))

    def _check_target(self, reached: Reached) -> None:
        port = reached.url.port
        if reached.url.kind == "system":
            self._complain(reached, "system/streams can only be read", "It can only stand on the left of a link.")
        if reached.url.kind == "connector" and reached.name in self._connectors:
            capabilities = self._connectors[reached.name].capabilities
            if port in _BEGINS:
                text = f'Unable to link to "{reached.shown}". Events enter the system through port "{port}"'
                self._complain(reached, text, "It can only stand on the left of a link.")
            elif port in _ENDS and capabilities.sink is None:
                self._complain(reached, _unable(reached, "source"))
            elif port not in _ENDS:
                self._complain(reached, *_no_port(reached, _ports(capabilities)))
        pipeline = self._pipelines.get(reached.name) if reached.url.kind == "pipeline" else None
        if pipeline is not None and pipeline.inputs is not None and port not in pipeline.inputs:
            self._complain(reached, *_no_port(reached, pipeline.inputs))

    def _check_pair(self, route: Route) -> None:
        if "pipeline" not in (route.source.url.kind, route.target.url.kind) and route.target.url.kind != "system":
            text = (
                f'Unable to link "{route.source.shown}" to "{route.target.shown}". A link leads to or from a pipeline'
            )
            self._complain(route.target, text, "Put pipeline/system::passthrough between them.")

    def _check_inputs(self, links: Sequence[Link]) -> None:
        linked = {link.target for link in links}
        for name, pipeline in self._pipelines.items():
            for port in sorted(pipeline.required):
                if pipeline.inputs is not None and End("pipeline", name, port) not in linked:
                    path = pipeline.item.path if pipeline.item is not None else ("binding",)
                    text = f'nothing is linked to the input "{port}" of the pipeline "{name}"'
                    self._document.complain(path, text, f"Add a link to pipeline/{pipeline.spec.id}/{port}.")

    def _check_circles(self, links: Sequence[Link]) -> None:
        """A pipeline that waits for its own results would wait for ever."""
        follows: dict[str, set[str]] = {}
        for link in links:
            if link.source.kind == link.target.kind == "pipeline":
                follows.setdefault(link.source.name, set()).add(link.target.name)
        for name in follows:
            reached, waiting = set[str](), [*follows[name]]
            while waiting:
                if (each := waiting.pop()) not in reached:
                    reached.add(each)
                    waiting += follows.get(each, ())
            if name in reached:
                item = self._pipelines[name].item if name in self._pipelines else None
                path = item.path if item is not None else ("binding",)
                self._document.complain(
                    path, f'the results of the pipeline "{name}" lead back to it', "Cut the circle."
                )


def _unable(reached: Reached, role: str) -> str:
    """The sentence of the RFC."""
    port = reached.url.port
    return (
        f'Unable to link to "{reached.shown}". Connector does not support linking to port "{port}". '
        f"It can only act as event {role}."
    )


def _ports(capabilities: CapabilitiesOf) -> list[str]:
    return [*(_BEGINS if capabilities.source is not None else ()), *(_ENDS if capabilities.sink is not None else ())]


def _no_port(reached: Reached, ports: Sequence[str] | frozenset[str]) -> tuple[str, str]:
    text = f'Unable to link to "{reached.shown}". {reached.url.kind.capitalize()} has no port "{reached.url.port}"'
    return text, nearest(reached.url.port, ports)
