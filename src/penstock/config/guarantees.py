"""Whether what a pipeline or a binding asks for can hold, from the sources that lead to it to the sinks it leads to."""

from collections.abc import Iterator, Mapping, Sequence

from penstock.config.connectors import CheckedConnector
from penstock.config.deployment import Deployment, Link
from penstock.config.expansion import Route
from penstock.config.models import STRENGTH
from penstock.config.pipelines import CheckedPipeline
from penstock.config.yaml_document import Document, KeyPath
from penstock.core.guarantee import Guarantee


def check_guarantees(
    document: Document,
    connectors: Mapping[str, CheckedConnector],
    pipelines: Mapping[str, CheckedPipeline],
    links: Sequence[Link],
    routes: Sequence[Route],
) -> None:
    check = _Check(document, connectors, Deployment(links=tuple(links)))
    for name, pipeline in pipelines.items():
        if pipeline.item is not None and (asked := pipeline.spec.settings.get("guarantee")):
            check.pipeline(name, asked, f"{pipeline.item.what}", (*pipeline.item.path, "guarantee"))
    for route in routes:
        if route.binding.guarantee is not None:
            for end in (route.source, route.target):
                if end.url.kind == "pipeline":
                    what, path = f'binding "{route.binding.id}"', (*route.binding.path, "guarantee")
                    check.pipeline(end.name, route.binding.guarantee, what, path)


class _Check:
    def __init__(self, document: Document, connectors: Mapping[str, CheckedConnector], deployment: Deployment) -> None:
        self._document = document
        self._connectors = connectors
        self._deployment = deployment

    def pipeline(self, name: str, asked: str, what: str, path: KeyPath) -> None:
        for role, connector, promised in self._promises(name):
            if STRENGTH.index(promised) < STRENGTH.index(Guarantee(asked)):
                text = f'{what}: {asked} cannot hold: connector "{connector}" is {promised.value} as a {role}'
                self._document.complain(path, text, f"Ask for {promised.value}, or take another type for it.")

    def _promises(self, name: str) -> Iterator[tuple[str, str, Guarantee]]:
        """Of all connectors that the pipeline's events come from or go to, over any number of pipelines."""
        for connector, checked in self._connectors.items():
            source, sink = checked.capabilities.source, checked.capabilities.sink
            if source is not None and name in self._deployment.pipelines_of(connector):
                yield "source", connector, source
            if sink is not None and connector in self._deployment.sinks_behind(name):
                yield "sink", connector, sink
