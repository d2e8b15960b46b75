"""What a query tells the sink."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.client.coordinator.connection import PORT
from penstock.core.address import Address
from penstock.core.errors import RequestError
from penstock.core.suggestions import nearest
from penstock.protocol.stored.names import check_pipeline_name
from penstock.spark.source.options import DEFAULT_WORKER, WORKER_VARIABLE

DEFAULT_PORT = "out"

_OURS = ("worker", "pipeline", "generation", "port", "tlsCa", "tlsCert", "tlsKey")
_SPARKS = ("checkpointLocation", "queryName")
"""Options of Spark's own that reach every sink."""

_KNOWN = {name.lower(): name for name in _OURS + _SPARKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    pipeline: str
    worker: str = DEFAULT_WORKER
    """Host and port of its HTTP side."""
    generation: int | None = None
    """None: nobody fences this query, and it fences nobody."""
    port: str = DEFAULT_PORT
    """Where rows go that name none."""
    checkpoint: str | None = None
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    """PEM files: authority, certificate, key; None: what the executors' environment says."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Names in any case, as Spark gives them. Raises RequestError that tells all that is wrong at once."""
        given = {name.lower(): text for name, text in options.items()}
        problems = [*_problems(given)]
        if problems:
            raise RequestError(f"options of the sink: {'; '.join(problems)}", f"The options are {', '.join(_OURS)}.")
        generation = given.get("generation")
        return cls(
            pipeline=given["pipeline"],
            worker=given.get("worker") or os.environ.get(WORKER_VARIABLE) or DEFAULT_WORKER,
            generation=None if generation is None else int(generation),
            port=given.get("port", DEFAULT_PORT),
            checkpoint=given.get("checkpointlocation"),
            tls=(given.get("tlsca"), given.get("tlscert"), given.get("tlskey")),
        )


def _problems(given: Mapping[str, str]) -> Iterator[str]:
    for name in given.keys() - _KNOWN.keys():
        near = nearest(name, _KNOWN)
        yield f"unknown option {name!r}" + (f": is it {_KNOWN[near]!r}?" if near else "")
    if "pipeline" not in given:
        yield "'pipeline' is missing: the name under which the worker keeps the epochs"
    for name in ("pipeline", "port"):
        if name in given:
            yield from _refused(name, given[name])
    generation = given.get("generation", "0")
    if not (generation.isascii() and generation.isdigit()):
        yield f"'generation' is {generation!r}, and must be the number that the worker gave"
    if "worker" in given:
        yield from _refused_address(given["worker"])


def _refused(name: str, text: str) -> Iterator[str]:
    try:
        check_pipeline_name(text, name)
    except RequestError as error:
        yield f"{error} ({error.hint.rstrip('.')})"


def _refused_address(text: str) -> Iterator[str]:
    try:
        Address.parse(text.removeprefix("http://").rstrip("/"), PORT)
    except RequestError as error:
        yield f"'worker': {error}"
