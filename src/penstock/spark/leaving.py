"""What a pipeline's function gives, made into what one query writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.errors import RequestError
from penstock.spark.declared_sinks import DEFAULT_PORT
from penstock.spark.leaving_rows import PLACE, as_bytes, as_json, row_schema, with_letters
from penstock.spark.letter import LETTER_PORTS
from penstock.spark.lettered import check_letters, has_letters, twice
from penstock.spark.sink_schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


Schemas: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""Port → names and Spark types of the fields of its JSON rows; without ports whose rows have a `value` of their own."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows that have their `value` already, with what it holds."""

    frame: DataFrame
    schemas: Schemas


@dataclass(frozen=True, slots=True)
class Leaving:
    """`ports` is empty for Spark's own sinks, whose writer the user has set up; otherwise `frame` has the sink's
    columns, `port` among them unless all goes to DEFAULT_PORT.
    """

    ports: tuple[str, ...]
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    schemas: Schemas = field(default_factory=dict)


def leaving(given: object, declared: tuple[str, ...] | None) -> Leaving:
    """One query for all that the function gives: so all of it commits together. Raises RequestError."""
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    match given:
        case DataStreamWriter():
            return Leaving((), writer=given)
        case DataFrame():
            return _single(given, declared)
        case Encoded(frame, schemas):
            return replace(_single(frame, declared), schemas=schemas)
        case Mapping() if given and all(isinstance(frame, DataFrame) for frame in given.values()):
            return _several(given, declared)
    raise RequestError(
        f"the function gives {type(given).__name__}",
        "Return a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter that is not started.",
    )


def _with_letter_ports(ports: tuple[str, ...], frames: Sequence[DataFrame]) -> tuple[str, ...]:
    """With those of letters, if any of the frames may have some. Raises RequestError where letters would be lost, or
    leave twice.
    """
    seen: set[int] = set()
    for frame in frames:
        marks = check_letters(frame)
        if seen & marks:
            raise twice("what the function gives")
        seen |= marks
    lettered = any(map(has_letters, frames))
    return tuple(dict.fromkeys((*ports, *LETTER_PORTS))) if lettered else tuple(ports)


def _single(frame: DataFrame, declared: tuple[str, ...] | None) -> Leaving:
    """A frame with a column `port` says for each row where it goes."""
    if "port" in frame.columns:
        if not declared:
            raise RequestError("the rows name their ports", "Declare them: @pipeline(outputs=[…])")
        ports = _with_letter_ports(declared, [frame])
        return Leaving(ports, _columns(frame), schemas=_schemas(dict.fromkeys(declared, frame)))
    ports = declared or (DEFAULT_PORT,)
    all_ports = _with_letter_ports(ports, [frame])
    if has_letters(frame):
        ports = tuple(port for port in ports if port not in LETTER_PORTS) or (DEFAULT_PORT,)
    if len(ports) > 1:
        raise RequestError(f"one DataFrame for the ports {', '.join(ports)}", "Return a dict, or add a column `port`.")
    leaving = _columns(frame) if ports == (DEFAULT_PORT,) else _to_port(frame, ports[0])
    return Leaving(all_ports, leaving, schemas=_schemas({ports[0]: frame}))


def _several(frames: Mapping[str, DataFrame], declared: tuple[str, ...] | None) -> Leaving:
    ports = _with_letter_ports(declared or tuple(frames), [*frames.values()])
    if unknown := sorted(frames.keys() - set(ports)):
        raise RequestError(f"the port {unknown[0]!r} is not declared", f"Declared are: {', '.join(ports)}.")
    first, *others = [_to_port(frame, port) for port, frame in frames.items()]
    for other in others:
        first = first.unionByName(other, allowMissingColumns=True)
    return Leaving(ports, first, schemas=_schemas(frames))


def _schemas(frames: Mapping[str, DataFrame]) -> Schemas:
    found = {port: row_schema(frame) for port, frame in frames.items()}
    return {port: schema for port, schema in found.items() if schema is not None}


def _to_port(frame: DataFrame, port: str) -> DataFrame:
    from pyspark.sql import functions

    if "port" in frame.columns:
        raise RequestError(
            f"the rows for the port {port!r} have a column `port` of their own",
            "Drop it, or give it another name: it would be lost.",
        )
    return _columns(frame.withColumn("port", functions.lit(port)))


def _columns(frame: DataFrame) -> DataFrame:
    """The sink's columns. Without a `value`, a row leaves as the JSON of its columns; those that the sink takes of them
    go along as well. Beside a `value` nothing else is taken, and nothing is lost in silence.
    """
    if not frame.isStreaming:
        raise RequestError("a DataFrame that leaves is not a stream", "Make it from the function's inputs.")
    if has_letters(frame):
        return with_letters(frame)
    if "value" in frame.columns:
        frame = frame.drop(*PLACE)
        check_schema(frame.schema)
        return as_bytes(frame)
    return as_bytes(as_json(frame))
