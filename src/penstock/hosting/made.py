"""A deployment's connectors as objects: made and checked before anything that runs is touched."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.config.deployment import ConnectorSpec
from penstock.config.secrets import has_files
from penstock.connectors.api import Capabilities, Connector
from penstock.connectors.making import Chains, make_chains, make_connector
from penstock.core.errors import PenstockError, RequestError

HOSTED_SCHEME = "hosted:"


@dataclass(frozen=True, slots=True)
class Made:
    """A connector that does nothing yet."""

    spec: ConnectorSpec
    connector: Connector[Any]
    chains: Chains
    sink_url: str
    """Where delivery brings what leaves through it."""

    @property
    def capabilities(self) -> Capabilities:
        return self.connector.capabilities(self.connector.options)

    @property
    def delivers(self) -> bool:
        """Whether it brings events out itself; else delivery does, by a URL, or nobody."""
        return self.capabilities.sink is not None and self.sink_url.startswith(HOSTED_SCHEME)

    @property
    def guarantee(self) -> dict[str, str]:
        """By port."""
        promised = {"out": self.capabilities.source, "in": self.capabilities.sink}
        return {port: promise.value for port, promise in promised.items() if promise is not None}


def make(spec: ConnectorSpec) -> Made:
    """With what its secrets' files hold now; no URL has any of that. Raises RequestError."""
    try:
        connector = make_connector(spec.type, spec.config)
        chains = make_chains(spec.interceptors_in, spec.interceptors_out)
        url = _sink_url(spec, connector)
    except RequestError as error:
        raise RequestError(f"connector {spec.name}: {error}", error.hint) from None
    return Made(spec, connector, chains, url or f"{HOSTED_SCHEME}{spec.name}")


def _sink_url(spec: ConnectorSpec, connector: Connector[Any]) -> str | None:
    if connector.capabilities(connector.options).sink is None:
        return None
    url = connector.sink_url(connector.options, spec.name)
    if url is not None and has_files(spec.config):
        raise RequestError(
            f"{spec.type}: delivery brings its events out by a URL, which everybody sees",
            "Write its options out, without ${file:…}.",
        )
    return url


def make_all(specs: Iterable[ConnectorSpec]) -> dict[str, Made]:
    """By name. Raises RequestError with what is wrong with any of them."""
    made, mistakes = {}, []
    for spec in specs:
        try:
            made[spec.name] = make(spec)
        except PenstockError as error:
            mistakes.append(error)
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise RequestError("\n".join(map(str, mistakes)), " ".join(hints))
    return made
