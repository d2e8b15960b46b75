"""`@pipeline`: a function from input DataFrames to output, and how to run it."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args, overload

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size
from penstock.core.suggestions import suggestion
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.pipelines import AtSegments, AtTime, Limits, Starting
from penstock.protocol.stored.names import Form, Source, check_pipeline_name, parse_sources
from penstock.spark.codecs.codec import Branch
from penstock.spark.source.schema import COLUMNS, check_columns

# The sinks that a pipeline declares, each with its own name. Their URLs are validated when they are bound, not here.

Urls: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""A URL, several, or sink name → URL."""

Declared: TypeAlias = str | Sequence[str] | Mapping[str, Urls]
"""By port; without a port, for DEFAULT_PORT."""

DEFAULT_PORT = "out"
"""The port of a DataFrame that names none."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def sinks_of(declared: Declared) -> dict[str, SinkSpec]:
    """By name: declared names first, then names derived from the URLs of the others. Raises RequestError."""
    named: dict[str, SinkSpec] = {}
    unnamed: list[SinkSpec] = []
    by_port = declared if isinstance(declared, Mapping) else {DEFAULT_PORT: declared}
    for port, given in by_port.items():
        check_pipeline_name(port, "port")
        if isinstance(given, Mapping):
            for name, url in given.items():
                if name in named:
                    raise RequestError(f"two sinks are named {name!r}", "Use a separate name for each.")
                named[check_pipeline_name(name, "sink")] = _spec(port, url)
        else:
            unnamed += [_spec(port, url) for url in _several(given)]
    return with_sinks(named, unnamed)


def with_sinks(named: Mapping[str, SinkSpec], unnamed: Iterable[SinkSpec]) -> dict[str, SinkSpec]:
    """The named sinks and the unnamed ones, each of which is named after its URL's scheme, with a number from the
    second on: the same names for every call. A sink that is already included is not added again.
    """
    sinks = dict(named)
    for spec in unnamed:
        if spec not in sinks.values():
            sinks[_free_name(spec.url, sinks)] = spec
    return sinks


def check_ports(sinks: Mapping[str, SinkSpec], ports: Sequence[str]) -> None:
    """Raises RequestError for a sink that would never receive anything."""
    for name, spec in sinks.items():
        if spec.port not in ports:
            hint = (
                suggestion(spec.port, ports, "Its ports")
                if ports
                else "It has no ports: it writes with Spark's own writer."
            )
            raise RequestError(
                f"the sink {name!r} is bound to port {spec.port!r}, which the pipeline does not have", hint
            )


def _several(given: object) -> Sequence[object]:
    return given if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _spec(port: str, url: object) -> SinkSpec:
    if not isinstance(url, str):
        raise RequestError(f"{url!r} is not the URL of a sink", 'Write sinks={"out": "file:results"}.')
    return SinkSpec(port, url)


def _free_name(url: str, taken: Mapping[str, SinkSpec]) -> str:
    kind = _NOT_IN_NAMES.sub("-", url.partition(":")[0].lower())[:80] or "sink"
    numbered = (f"{kind}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (kind, *numbered) if name not in taken)


Function: TypeAlias = Callable[..., Any]
Mode: TypeAlias = Literal["append", "complete"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, int]

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A function and how to run it. Calling it calls the function, which is useful in tests."""

    name: str
    function: Function
    inputs: Mapping[str, tuple[str, ...]]
    """Parameter → its sources."""
    columns: tuple[str, ...] = tuple(COLUMNS)
    """The columns of the DataFrames that the function receives."""
    decoding: Mapping[str, tuple[Branch, ...]] = field(default_factory=dict)
    """Parameter → how its events are decoded; bytes, for a parameter that is not in it."""
    outputs: tuple[str, ...] | None = None
    """Its ports; None: derived from what the function returns."""
    mode: Mode = "append"
    trigger_ms: int | None = None
    """Between the starts of two epochs; None: each starts as soon as the previous one ends."""
    starting: Starting = "earliest"
    limits: Limits = field(default_factory=Limits)
    sinks: Mapping[str, SinkSpec] = field(default_factory=dict)
    """By name; they are bound before the first epoch of a run."""
    target: str | None = None
    """`pravega:SCOPE/STREAM`: where the rows of the port `out` are written instead."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


@overload
def pipeline(function: Function, /) -> Pipeline: ...


@overload
def pipeline(
    *,
    name: str | None = None,
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    columns: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sinks: Declared | None = None,
    target: str | None = None,
    mode: Mode = "append",
    trigger: str | None = None,
    starting: Start = "earliest",
    max_bytes_per_epoch: int | str | None = None,
    max_rows_per_epoch: int | None = None,
) -> Callable[[Function], Pipeline]: ...


def pipeline(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    columns: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sinks: Declared | None = None,
    target: str | None = None,
    mode: Mode = "append",
    trigger: str | None = None,
    starting: Start = "earliest",
    max_bytes_per_epoch: int | str | None = None,
    max_rows_per_epoch: int | None = None,
) -> Pipeline | Callable[[Function], Pipeline]:
    """Turn a function into a pipeline, for `penstock run`.

    It takes streaming DataFrames and returns a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter (for
    one of Spark's own sinks, not started). A parameter reads the source of the same name, unless `inputs` names one or
    several: a connector `NAME`, a pipeline's output `pipeline:NAME/PORT`, a segment `segment:NAME`, a stream of
    Pravega's clients `pravega:SCOPE/STREAM`. `columns` are those that the function needs: others are neither read nor
    sent to Spark. `sinks` binds sinks to ports: `{"out": "file:results"}`, or only the URL if there is one port.
    `target` is a stream of Pravega's clients: the rows of the port `out` are written there instead. The function is
    called once to see what it returns, and again for every start of its query. Raises RequestError for a pipeline that
    cannot be run.
    """

    def declare(function: Function) -> Pipeline:
        return Pipeline(
            name=check_pipeline_name(name or function.__name__),
            function=function,
            inputs=_inputs(function, inputs or {}),
            columns=tuple(COLUMNS) if columns is None else check_columns(tuple(columns)),
            outputs=None if outputs is None else tuple(check_pipeline_name(port, "port") for port in outputs),
            sinks=sinks_of(sinks or {}),
            target=None if target is None else target_of(target),
            mode=_mode(mode),
            trigger_ms=None if trigger is None else parse_duration_ms(trigger),
            starting=starting_of(starting),
            limits=limits_of(max_bytes_per_epoch, max_rows_per_epoch),
        )

    return declare if function is None else declare(function)


def starting_of(start: Start) -> Starting:
    """Where the first epoch starts, in the coordinator's form."""
    if isinstance(start, datetime):
        instant = start if start.tzinfo else start.replace(tzinfo=UTC)
        return AtTime((instant - _EPOCH) // timedelta(microseconds=1))
    if isinstance(start, Mapping):
        return AtSegments(dict(start))
    if start in ("earliest", "latest"):
        return start
    raise RequestError(f"{start!r} is not a valid starting position", 'Use "earliest", "latest", a datetime, or a cut.')


def sources_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """One source, several separated by commas, or a list. Raises RequestError for an invalid source."""
    return tuple(map(str, parse_sources(given if isinstance(given, str) else ",".join(given))))


def target_of(given: str) -> str:
    """Raises RequestError for anything but a stream of Pravega's clients."""
    source = Source.parse(given)
    if source.form is not Form.PRAVEGA:
        raise RequestError(f"{given!r} is not a valid target", "Write pravega:SCOPE/STREAM; or bind a sink.")
    return str(source)


def limits_of(max_bytes_per_epoch: int | str | None, max_rows_per_epoch: int | None) -> Limits:
    """Bytes may be written as 64MiB."""
    size = parse_size(max_bytes_per_epoch) if isinstance(max_bytes_per_epoch, str) else max_bytes_per_epoch
    return Limits(bytes=size, rows=max_rows_per_epoch)


def _mode(mode: Mode) -> Mode:
    if mode not in get_args(Mode):
        raise RequestError(f"mode {mode!r} is not supported", "Use append or complete.")
    return mode


def _inputs(function: Function, given: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """A parameter with a default is not an input, unless it is named."""
    inputs = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RequestError(
                f"{function.__name__} takes *{parameter.name}", "Use a separate parameter for each input."
            )
        if parameter.name in given:
            inputs[parameter.name] = sources_of(given[parameter.name])
        elif parameter.default is parameter.empty:
            inputs[parameter.name] = sources_of(parameter.name)
    if unknown := sorted(given.keys() - inputs.keys()):
        raise RequestError(f"{function.__name__} has no parameter {unknown[0]!r}", f"It has: {', '.join(inputs)}.")
    if not inputs:
        raise RequestError(f"{function.__name__} reads nothing", "Name the source that it reads as its parameter.")
    return inputs
