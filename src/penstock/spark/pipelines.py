"""`@pipeline`: a function from DataFrames to what leaves, and how it is to be run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args, overload

from penstock.coordinator.delivery_messages import SinkSpec
from penstock.coordinator.messages import AtSegments, AtTime, Limits, Starting
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size
from penstock.protocol.stored.names import check_pipeline_name, parse_sources
from penstock.spark.declared_sinks import Declared, sinks_of
from penstock.spark.source_schema import COLUMNS

Function: TypeAlias = Callable[..., Any]
Mode: TypeAlias = Literal["append", "complete"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, int]

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A function and how it is run. Calling it calls the function, as a test does."""

    name: str
    function: Function
    inputs: Mapping[str, tuple[str, ...]]
    """Parameter → the sources that it reads."""
    columns: tuple[str, ...] = tuple(COLUMNS)
    """Of the DataFrames that the function is given."""
    outputs: tuple[str, ...] | None = None
    """Its ports; None: what the function gives says it."""
    mode: Mode = "append"
    trigger_ms: int | None = None
    """Between the starts of two epochs; None: one after the other."""
    starting: Starting = "earliest"
    limits: Limits = field(default_factory=Limits)
    sinks: Mapping[str, SinkSpec] = field(default_factory=dict)
    """By their names; they are bound before the first epoch of a run."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


@overload
def pipeline(function: Function, /) -> Pipeline: ...


@overload
def pipeline(
    *,
    name: str | None = None,
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    outputs: Sequence[str] | None = None,
    sinks: Declared | None = None,
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
    outputs: Sequence[str] | None = None,
    sinks: Declared | None = None,
    mode: Mode = "append",
    trigger: str | None = None,
    starting: Start = "earliest",
    max_bytes_per_epoch: int | str | None = None,
    max_rows_per_epoch: int | None = None,
) -> Pipeline | Callable[[Function], Pipeline]:
    """Make a function a pipeline, for `penstock run`.

    It takes streaming DataFrames and gives a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter (one of
    Spark's own sinks, not started). A parameter reads the source of its own name, unless `inputs` names one or several:
    a connector `NAME`, a pipeline's output `pipeline:NAME/PORT`, a segment `segment:NAME`. `sinks` says where ports go
    to: `{"out": "file:results"}`, or only the URL where there is one port. The function is called to see what it gives,
    and again for every start of its query. Raises RequestError for what cannot be run.
    """

    def declare(function: Function) -> Pipeline:
        return Pipeline(
            name=check_pipeline_name(name or function.__name__),
            function=function,
            inputs=_inputs(function, inputs or {}),
            outputs=None if outputs is None else tuple(check_pipeline_name(port, "port") for port in outputs),
            sinks=sinks_of(sinks or {}),
            mode=_mode(mode),
            trigger_ms=None if trigger is None else parse_duration_ms(trigger),
            starting=starting_of(starting),
            limits=limits_of(max_bytes_per_epoch, max_rows_per_epoch),
        )

    return declare if function is None else declare(function)


def starting_of(start: Start) -> Starting:
    """Where a first epoch begins, as the coordinator takes it: an instant, or a map from segments to offsets."""
    if isinstance(start, datetime):
        instant = start if start.tzinfo else start.replace(tzinfo=UTC)
        return AtTime((instant - _EPOCH) // timedelta(microseconds=1))
    if isinstance(start, Mapping):
        return AtSegments(dict(start))
    if start in ("earliest", "latest"):
        return start
    raise RequestError(f"{start!r} is no place to start at", 'Give "earliest", "latest", a datetime, or a cut.')


def sources_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """One, several with commas between them, or a list. Raises RequestError for what cannot be a source."""
    return tuple(map(str, parse_sources(given if isinstance(given, str) else ",".join(given))))


def limits_of(max_bytes_per_epoch: int | str | None, max_rows_per_epoch: int | None) -> Limits:
    """Bytes may be written as 64MiB."""
    size = parse_size(max_bytes_per_epoch) if isinstance(max_bytes_per_epoch, str) else max_bytes_per_epoch
    return Limits(bytes=size, rows=max_rows_per_epoch)


def _mode(mode: Mode) -> Mode:
    if mode not in get_args(Mode):
        raise RequestError(f"there is no mode {mode!r}", "The sink takes append and complete.")
    return mode


def _inputs(function: Function, given: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """A parameter with a default is the function's own affair, unless it is named."""
    inputs = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RequestError(
                f"{function.__name__} takes *{parameter.name}", "Give each input a parameter of its own."
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
