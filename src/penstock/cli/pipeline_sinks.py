"""The sinks of pipelines in a file: those declared there, and those of the command line."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.waiting import waiting
from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import RequestError
from penstock.spark.pipelines import DEFAULT_PORT, check_ports, with_sinks

if TYPE_CHECKING:
    from penstock.connectors.urls import ParsedSink
    from penstock.protocol.api.delivery import SinkSpec
    from penstock.spark.pipelines import Pipeline

_DELIVERY_SECONDS_MAX = 60.0
"""Without any epoch delivered: the sink is stuck, and the worker's next run continues with it."""

_LOOK_SECONDS = 0.1

_PLACED = re.compile(r"(?:([A-Za-z0-9._-]+)/)?([A-Za-z0-9._-]+)=(.*)", re.DOTALL)

SinkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sink",
        metavar="[PORT=]URL",
        help="The sink of a port, like file:results; may be repeated. See penstock sink types.",
    ),
]


@dataclass(frozen=True, slots=True)
class CheckedSink:
    """`parsed` is None where there are mistakes. `unseen`: a package or a variable that it needs is missing
    here, and may be where the worker runs.
    """

    name: str
    spec: "SinkSpec"
    parsed: "ParsedSink | None"
    mistakes: Sequence[RequestError]
    unseen: RequestError | None = None


def bound_to(pipelines: Sequence["Pipeline"], given: Sequence[str]) -> list["Pipeline"]:
    """The pipelines with the sinks of the command line added: `URL`, `PORT=URL`, or, where there are several
    pipelines, `NAME/PORT=URL`.
    """
    from penstock.protocol.api.delivery import SinkSpec

    added: dict[str, list[SinkSpec]] = {pipeline.name: [] for pipeline in pipelines}
    for text in given:
        name, port, url = _placed(text, list(added))
        added[name].append(SinkSpec(port, url))
    return [replace(one, sinks=with_sinks(one.sinks, added[one.name])) for one in pipelines]


def _placed(text: str, names: Sequence[str]) -> tuple[str, str, str]:
    """Pipeline, port, URL. A URL has its colon before any equals sign."""
    match = _PLACED.fullmatch(text)
    name, port, url = (match[1], match[2], match[3]) if match else (None, DEFAULT_PORT, text)
    if name is None and len(names) > 1:
        raise RequestError(
            f"--sink {port}=… is ambiguous: the file has several pipelines",
            f"Write --sink NAME/{port}=URL, with one of: {', '.join(names)}.",
        )
    if name is not None and name not in names:
        raise RequestError(f"--sink: pipeline {name!r} not found", f"Available: {', '.join(names)}.")
    return name or names[0], port, url


def checked(pipeline: "Pipeline") -> list[CheckedSink]:
    """All its sinks, each with all its mistakes."""
    return [_checked(name, spec, pipeline.outputs) for name, spec in pipeline.sinks.items()]


def _checked(name: str, spec: "SinkSpec", ports: Sequence[str] | None) -> CheckedSink:
    from penstock.connectors.registry import NotInstalled  # here: other commands need no connectors
    from penstock.connectors.secrets import UnsetVariable
    from penstock.connectors.urls import parse_sink

    parsed, mistakes, unseen = None, [], None
    try:
        parsed = parse_sink(spec.url)
        parsed.check_installed()
    except (NotInstalled, UnsetVariable) as error:
        unseen = error
    except RequestError as error:
        mistakes.append(error)
    if ports is not None:
        try:
            check_ports({name: spec}, ports)
        except RequestError as error:
            mistakes.append(error)
    return CheckedSink(name, spec, parsed, mistakes, unseen)


def check_sinks(pipelines: Sequence["Pipeline"], *, worker_is_here: bool) -> None:
    """Raises RequestError with all mistakes in any of them. What is missing here, such as a package, is a
    mistake only if the worker runs here.
    """
    mistakes = [
        RequestError(f"pipeline {pipeline.name}, sink {sink.name}: {error}", error.hint)
        for pipeline in pipelines
        if pipeline.sinks
        for sink in checked(pipeline)
        for error in (*sink.mistakes, *([sink.unseen] if sink.unseen and worker_is_here else []))
    ]
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise RequestError("\n".join(map(str, mistakes)), " ".join(hints))


def wait_for_delivery(worker: str, names: Sequence[str], report: Callable[[str], None]) -> None:
    """Wait until the sinks have all output of the pipelines, or nothing moves; then report what is left."""
    with waiting("waiting for the delivery of what was processed"), CoordinatorClient(worker) as client:
        for name in names:
            left = _left(client, name)
            if left:
                report(f"{name}: {left} epochs are not delivered yet; see penstock epoch list {name}")


def _left(client: CoordinatorClient, name: str) -> int:
    left, moved = len(client.epochs(name)), time.monotonic()
    while left and time.monotonic() - moved < _DELIVERY_SECONDS_MAX:
        time.sleep(_LOOK_SECONDS)
        now = len(client.epochs(name))
        left, moved = now, moved if now == left else time.monotonic()
    return left
