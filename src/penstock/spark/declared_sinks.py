"""The sinks that a pipeline is declared with, each by a name of its own. Whether their URLs are right is not looked at
here: those who bind them know.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from penstock.coordinator.delivery_messages import SinkSpec
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import check_pipeline_name

Urls: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""A URL, several, or URLs by the names of their sinks."""

Declared: TypeAlias = str | Sequence[str] | Mapping[str, Urls]
"""By port; without one, for the port of a DataFrame that names none."""

DEFAULT_PORT = "out"
"""Where a DataFrame goes that names no port."""

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def sinks_of(declared: Declared) -> dict[str, SinkSpec]:
    """By their names: those that are given, then the kinds of the others. Raises RequestError."""
    named: dict[str, SinkSpec] = {}
    unnamed: list[SinkSpec] = []
    by_port = declared if isinstance(declared, Mapping) else {DEFAULT_PORT: declared}
    for port, given in by_port.items():
        check_pipeline_name(port, "port")
        if isinstance(given, Mapping):
            for name, url in given.items():
                if name in named:
                    raise RequestError(f"two sinks are named {name!r}", "Give each a name of its own.")
                named[check_pipeline_name(name, "sink")] = _spec(port, url)
        else:
            unnamed += [_spec(port, url) for url in _several(given)]
    return with_sinks(named, unnamed)


def with_sinks(named: Mapping[str, SinkSpec], unnamed: Iterable[SinkSpec]) -> dict[str, SinkSpec]:
    """Each of the others under its kind, with a number from the second on: the same names whenever it is asked. One
    that is there already is not there twice.
    """
    sinks = dict(named)
    for spec in unnamed:
        if spec not in sinks.values():
            sinks[_free_name(spec.url, sinks)] = spec
    return sinks


def check_ports(sinks: Mapping[str, SinkSpec], ports: Sequence[str]) -> None:
    """Raises RequestError for a sink that would never be given anything."""
    for name, spec in sinks.items():
        if spec.port not in ports:
            near = get_close_matches(spec.port, ports, 1)
            hint = (
                f"Did you mean {near[0]}?"
                if near
                else f"Its ports: {', '.join(ports) or 'none, it has a writer of Spark'}."
            )
            raise RequestError(f"the sink {name!r} is bound to the port {spec.port!r}, which is not there", hint)


def _several(given: object) -> Sequence[object]:
    return given if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _spec(port: str, url: object) -> SinkSpec:
    if not isinstance(url, str):
        raise RequestError(f"{url!r} is no URL of a sink", 'Write sinks={"out": "file:results"}.')
    return SinkSpec(port, url)


def _free_name(url: str, taken: Mapping[str, SinkSpec]) -> str:
    kind = _NO_NAME.sub("-", url.partition(":")[0].lower())[:80] or "sink"
    numbered = (f"{kind}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (kind, *numbered) if name not in taken)
