"""Turns the result of a pipeline's function into the rows that one query writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.spark.codecs.registry import codec as codec_named
from penstock.spark.pipelines import DEFAULT_PORT
from penstock.spark.sink.plan import Part, Plan, PortEncoding
from penstock.spark.sink.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

# Frames with the sink's columns.

_ACCEPTED = {
    "key": ("binary", "string"),
    "event_time": ("timestamp",),
    "stream": ("string",),
    "source": ("string",),
    "stream_id": ("bigint",),
    "message_id": ("bigint",),
    "port": ("string",),
}
"""Columns that the sink accepts beside `value`, and their types."""

JSON = {"ignoreNullFields": "false"}
"""For Spark's `to_json`: every row has all columns."""

PLACE = ("segment", "offset")
"""Columns of the source with an event's position: they are not written."""


def row_schema(frame: DataFrame) -> list[tuple[str, str]] | None:
    """Names and types of the fields of the rows' JSON; None if the rows have their own `value`."""
    if "value" in frame.columns:
        return None
    return [(name, kind) for name, kind in frame.dtypes if name != "port"]


JSON_CODEC = "json"
"""What writes rows without a `value`, unless a connector has another codec."""

FIELDS = "__fields"
"""The prefix of struct columns with the fields of rows: the writer encodes them."""


def payload_of(
    frame: DataFrame, names: Sequence[str], of: str, codecs: Iterable[str], codec: str | None = None
) -> tuple[Part, Column]:
    """The columns as one struct, for the writer's plan and for the frame that leaves. `of` makes its name unique;
    `codecs` are those that will write it, and `codec` is that of the frame's `value`. Raises RequestError for columns
    that one of them cannot write.
    """
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.sink.encoding import marked

    kinds = {name: frame.schema[name].dataType for name in names}
    json = tuple(name for name, kind in kinds.items() if _as_text(kind) == "json")
    columns = [_sendable(frame[quoted(name)], kind).alias(name) for name, kind in kinds.items()]
    sent = to_arrow_schema(frame.select(*columns).schema, timezone="UTC")
    for each in codecs:
        codec_named(each).encoder(marked(sent, json))
    name = f"{FIELDS}_{of}"
    return Part(name, json, codec), functions.struct(*columns).alias(name)


def _as_text(kind: DataType) -> str:
    """How Spark has to write a type that Arrow cannot hold, or Python cannot write: as JSON, as text, or not ("")."""
    text = kind.simpleString()
    if "variant" in text or ("interval" in text and kind.typeName() in ("struct", "array", "map")):
        return "json"
    return "text" if "interval" in text else ""


def _sendable(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions

    match _as_text(kind):
        case "json":
            return functions.to_json(column, JSON)
        case "text":
            return column.cast("string")
    return column


def quoted(name: str) -> str:
    """The name, quoted so that a frame's `[…]` accepts any characters in it."""
    return "`" + name.replace("`", "``") + "`"


def as_bytes(frame: DataFrame) -> DataFrame:
    """The same types for every port: a union needs them."""
    names = [name for name in ("value", "key") if name in frame.columns]
    return frame.withColumns({name: frame[name].cast("binary") for name in names})


Schemas: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""Port → names and Spark types of the fields of its JSON rows; omits ports whose rows have a `value` of their own."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows that the writer encodes by a plan."""

    frame: DataFrame
    schemas: Schemas
    plan: Plan


@dataclass(frozen=True, slots=True)
class Leaving:
    """`ports` is empty for Spark's own sinks, whose writer the user has configured; otherwise `frame` has the sink's
    columns, including `port` unless all rows go to DEFAULT_PORT, and those that the plan names.
    """

    ports: tuple[str, ...]
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    schemas: Schemas = field(default_factory=dict)
    plan: Plan = field(default_factory=dict)
    """How the writer encodes rows without a `value`; empty if all have one."""


def leaving(given: object, declared: tuple[str, ...] | None, side_ports: tuple[str, ...] = ()) -> Leaving:
    """One query for everything that the function returns, so that it commits together. `side_ports`: what leaves beside
    it. Raises RequestError.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    match given:
        case DataStreamWriter():
            return Leaving((), writer=given)
        case DataFrame():
            found = _single(given, declared)
        case Encoded(frame, schemas, plan):
            _check_streaming(frame)
            found = Leaving(declared or tuple(plan), frame, schemas=schemas, plan=plan)
        case Mapping() if given and all(isinstance(frame, DataFrame) for frame in given.values()):
            found = _several(given, declared)
        case _:
            raise _no_result(given)
    return replace(found, ports=tuple(dict.fromkeys((*found.ports, *side_ports))))


def _no_result(given: object) -> RequestError:
    return RequestError(
        f"the function returns {type(given).__name__}",
        "Return a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter that is not started.",
    )


def _single(frame: DataFrame, declared: tuple[str, ...] | None) -> Leaving:
    """In a frame with a column `port`, each row names its port."""
    if "port" in frame.columns:
        if not declared:
            raise RequestError("the rows name their ports", "Declare them: @pipeline(outputs=[…])")
        written, plan = _columns(frame, declared)
        return Leaving(declared, written, schemas=_schemas(dict.fromkeys(declared, frame)), plan=plan)
    all_ports = declared or (DEFAULT_PORT,)
    ports = tuple(port for port in all_ports if port not in DEAD_LETTER_PORTS) or (DEFAULT_PORT,)
    if len(ports) > 1:
        raise RequestError(f"one DataFrame for the ports {', '.join(ports)}", "Return a dict, or add a column `port`.")
    written, plan = _columns(frame, ports) if ports == (DEFAULT_PORT,) else _to_port(frame, ports[0])
    return Leaving(all_ports, written, schemas=_schemas({ports[0]: frame}), plan=plan)


def _several(frames: Mapping[str, DataFrame], declared: tuple[str, ...] | None) -> Leaving:
    ports = declared or tuple(frames)
    if unknown := sorted(frames.keys() - set(ports)):
        raise RequestError(f"the port {unknown[0]!r} is not declared", f"Declared are: {', '.join(ports)}.")
    written = {port: _to_port(frame, port) for port, frame in frames.items()}
    plan = {port: encoding for _, own in written.values() for port, encoding in own.items()}
    if plan:  # rows with a `value` have a place in it too
        plan = {**{port: PortEncoding(((port, JSON_CODEC),), (Part(),)) for port in frames}, **plan}
    return Leaving(ports, united([frame for frame, _ in written.values()]), schemas=_schemas(frames), plan=plan)


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of several ports in one frame. Fields of other ports are null, not their structs: Arrow refuses a null
    struct with fields that are not nullable.
    """
    kinds = {each.name: each.dataType for frame in frames for each in frame.schema if each.name.startswith(FIELDS)}
    filled = [_with_fields(frame, kinds) for frame in frames]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), filled)


def _with_fields(frame: DataFrame, kinds: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions

    def nothing(kind: Any) -> Column:
        return functions.struct(*(functions.lit(None).cast(each.dataType).alias(each.name) for each in kind.fields))

    missing = {name: nothing(kind) for name, kind in kinds.items() if name not in frame.columns}
    return frame.withColumns(missing) if missing else frame


def _schemas(frames: Mapping[str, DataFrame]) -> Schemas:
    found = {port: row_schema(frame) for port, frame in frames.items()}
    return {port: schema for port, schema in found.items() if schema is not None}


def _to_port(frame: DataFrame, port: str) -> tuple[DataFrame, Plan]:
    from pyspark.sql import functions

    if "port" in frame.columns:
        raise RequestError(
            f"the rows for the port {port!r} have a column `port` of their own",
            "Drop or rename it: it would be lost.",
        )
    return _columns(frame.withColumn("port", functions.lit(port)), (port,))


def _columns(frame: DataFrame, ports: Sequence[str]) -> tuple[DataFrame, Plan]:
    """The sink's columns. Without a `value`, a row is written as the JSON of its columns, beside those columns that the
    sink accepts. With a `value`, other columns are refused: nothing is lost silently.
    """
    _check_streaming(frame)
    if "value" in frame.columns:
        frame = frame.drop(*PLACE)
        check_schema(frame.schema)
        return as_bytes(frame), {}
    names = [name for name in frame.columns if name != "port"]
    part, fields = payload_of(frame, names, ports[0], (JSON_CODEC,))
    accepted = [frame[name] for name, kind in frame.dtypes if kind in _ACCEPTED.get(name, ())]
    plan = {port: PortEncoding(((port, JSON_CODEC),), (part,)) for port in ports}
    return as_bytes(frame.select(fields, *accepted)), plan


def _check_streaming(frame: DataFrame) -> None:
    if not frame.isStreaming:
        raise RequestError(
            "the function returns a DataFrame that is not a stream", "Derive it from the function's inputs."
        )
