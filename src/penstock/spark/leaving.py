"""What a pipeline's function gives, made into what one query writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.spark.declared_sinks import DEFAULT_PORT
from penstock.spark.sink_schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TAKEN = {
    "key": ("binary", "string"),
    "event_time": ("timestamp",),
    "stream": ("string",),
    "source": ("string",),
    "stream_id": ("bigint",),
    "message_id": ("bigint",),
    "port": ("string",),
}
"""Columns that the sink takes beside `value`, and their types."""

_JSON = {"ignoreNullFields": "false"}
"""Every row has all columns."""

_PLACE = {"segment", "offset"}
"""Columns of the source that say where an event was: they end there."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """`ports` is empty for Spark's own sinks, whose writer the user has set up; otherwise `frame` has the sink's
    columns, `port` among them unless all goes to DEFAULT_PORT.
    """

    ports: tuple[str, ...]
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None


def leaving(given: object, declared: tuple[str, ...] | None) -> Leaving:
    """One query for all that the function gives: so all of it commits together. Raises RequestError."""
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    match given:
        case DataStreamWriter():
            return Leaving((), writer=given)
        case DataFrame():
            return _single(given, declared)
        case Mapping() if given and all(isinstance(frame, DataFrame) for frame in given.values()):
            return _several(given, declared)
    raise RequestError(
        f"the function gives {type(given).__name__}",
        "Return a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter that is not started.",
    )


def _single(frame: DataFrame, declared: tuple[str, ...] | None) -> Leaving:
    """A frame with a column `port` says for each row where it goes."""
    if "port" in frame.columns:
        if not declared:
            raise RequestError("the rows name their ports", "Declare them: @pipeline(outputs=[…])")
        return Leaving(declared, _columns(frame))
    ports = declared or (DEFAULT_PORT,)
    if len(ports) > 1:
        raise RequestError(f"one DataFrame for the ports {', '.join(ports)}", "Return a dict, or add a column `port`.")
    return Leaving(ports, _columns(frame) if ports == (DEFAULT_PORT,) else _to_port(frame, ports[0]))


def _several(frames: Mapping[str, DataFrame], declared: tuple[str, ...] | None) -> Leaving:
    ports = declared or tuple(frames)
    if unknown := sorted(frames.keys() - set(ports)):
        raise RequestError(f"the port {unknown[0]!r} is not declared", f"Declared are: {', '.join(ports)}.")
    first, *others = [_to_port(frame, port) for port, frame in frames.items()]
    for other in others:
        first = first.unionByName(other, allowMissingColumns=True)
    return Leaving(ports, first)


def _to_port(frame: DataFrame, port: str) -> DataFrame:
    from pyspark.sql import functions

    if "port" in frame.columns:
        raise RequestError(
            f"the rows for the port {port!r} have a column `port` of their own",
            "Drop it, or give it another name: it would be lost.",
        )
    return _columns(frame).withColumn("port", functions.lit(port))


def _columns(frame: DataFrame) -> DataFrame:
    """The sink's columns. Without a `value`, a row leaves as the JSON of its columns; those that the sink takes of them
    go along as well. Beside a `value` nothing else is taken, and nothing is lost in silence.
    """
    if not frame.isStreaming:
        raise RequestError("a DataFrame that leaves is not a stream", "Make it from the function's inputs.")
    if "value" in frame.columns:
        frame = frame.drop(*_PLACE)
        check_schema(frame.schema)
        return _as_bytes(frame)
    return _as_bytes(_as_json(frame))


def _as_json(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    whole = functions.struct(*(frame[_quoted(name)] for name in frame.columns if name != "port"))
    kept = [name for name, kind in frame.dtypes if kind in _TAKEN.get(name, ())]
    return frame.select(functions.to_json(whole, _JSON).alias("value"), *kept)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _as_bytes(frame: DataFrame) -> DataFrame:
    """The same types from every port: they are united."""
    names = [name for name in ("value", "key") if name in frame.columns]
    return frame.withColumns({name: frame[name].cast("binary") for name in names})
