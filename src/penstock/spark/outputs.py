"""Turns the result of a pipeline's function into the rows that one query writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import (
    LETTER,
    LETTER_PORTS,
    REASON_CHARACTERS_MAX,
    check_letters,
    has_letters,
    twice,
)
from penstock.spark.pipelines import DEFAULT_PORT
from penstock.spark.sink.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Frames with the sink's columns: rows with any columns, and dead letters, in one projection.

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
"""Every row has all columns."""

PLACE = ("segment", "offset")
"""Columns of the source with an event's position: they are not written."""


def row_schema(frame: DataFrame) -> list[tuple[str, str]] | None:
    """Names and types of the fields of the rows' JSON; None if the rows have their own `value`."""
    if "value" in frame.columns:
        return None
    return [(name, kind) for name, kind in frame.dtypes if name not in ("port", LETTER)]


def as_json(frame: DataFrame) -> DataFrame:
    """Each row as the JSON of its columns, beside the columns that the sink accepts directly."""
    accepted = [name for name, kind in frame.dtypes if kind in _ACCEPTED.get(name, ())]
    return frame.select(_whole(frame, "port").alias("value"), *accepted)


def _whole(frame: DataFrame, *but: str) -> Column:
    from pyspark.sql import functions

    names = [name for name in frame.columns if name not in but]
    return functions.to_json(functions.struct(*(frame[quoted(name)] for name in names)), JSON)


def quoted(name: str) -> str:
    """The name, quoted so that a frame's `[…]` accepts any characters in it."""
    return "`" + name.replace("`", "``") + "`"


def as_bytes(frame: DataFrame) -> DataFrame:
    """The same types for every port: a union needs them."""
    names = [name for name in ("value", "key") if name in frame.columns]
    return frame.withColumns({name: frame[name].cast("binary") for name in names})


def with_letters(frame: DataFrame) -> DataFrame:
    """Writes dead letters with the contents of `letter`, and the other rows as if the column did not exist."""
    from pyspark.sql import functions

    others = frame.drop(LETTER)
    if "value" in others.columns:
        check_schema(others.drop(*PLACE).schema)
    letter = frame[LETTER]
    good = {name: frame[name] for name, kind in others.dtypes if kind in _ACCEPTED.get(name, ())}
    good |= _payload(frame)
    columns = {"value": "binary"} | {name: kinds[0] for name, kinds in _ACCEPTED.items()} | {"metadata": "binary"}
    dead = {name: letter[name] for name in columns if name != "metadata"} | {"metadata": _metadata(letter)}
    return frame.select(
        *(
            functions.when(letter.isNotNull(), dead[name])
            .otherwise(good.get(name, functions.lit(None)).cast(kind))
            .alias(name)
            for name, kind in columns.items()
        )
    )


def _payload(frame: DataFrame) -> dict[str, Column]:
    """The `value` of a row that is not a dead letter, and its `metadata` if it has its own."""
    if "value" in frame.columns:
        return {name: frame[name] for name in ("value", "metadata") if name in frame.columns}
    return {"value": _whole(frame, "port", LETTER)} if set(frame.columns) - {"port", LETTER} else {}


def _metadata(letter: Column) -> Column:
    """A dead letter's metadata, as a map in msgpack: built by Spark, so that no row goes through Python for it."""
    from pyspark.sql import functions

    numbers = {
        "offset": letter["offset"],
        "watermark": functions.unix_micros(letter["watermark"]),
        "behind_us": letter["behind_us"],
    }
    pairs = [
        _text_pair("reason", functions.substring(letter["reason"], 1, REASON_CHARACTERS_MAX)),
        _text_pair("segment", letter["segment"]),
        *(_number_pair(name, number) for name, number in numbers.items()),
    ]
    return _map(pairs)


def text_map(texts: Mapping[str, Column]) -> Column:
    """A map in msgpack of those texts that are not null, built by Spark like a dead letter's metadata. At most 15
    texts, with names of at most 31 bytes.
    """
    return _map([_text_pair(name, text) for name, text in texts.items()])


def _map(pairs: Sequence[Column]) -> Column:
    """A map in msgpack of those pairs that are not null."""
    from pyspark.sql import functions

    count = sum((pair.isNotNull().cast("int") for pair in pairs), functions.lit(0))
    nothing = functions.lit(b"")
    return functions.concat(_unhexed(count + 0x80, 2), *(functions.coalesce(pair, nothing) for pair in pairs))


def _text_pair(name: str, text: Column) -> Column:
    """Null for a text that is null."""
    from pyspark.sql import functions

    data = text.cast("binary")
    return functions.concat(_label(name, 0xDB), _unhexed(functions.octet_length(data), 8), data)


def _number_pair(name: str, number: Column) -> Column:
    from pyspark.sql import functions

    return functions.concat(_label(name, 0xD3), _unhexed(number, 16))


def _label(name: str, lead: int) -> Column:
    """A key, and the type byte of its value: a str with a 32-bit length, or an i64."""
    from pyspark.sql import functions

    return functions.lit(bytes((0xA0 + len(name),)) + name.encode() + bytes((lead,)))


def _unhexed(number: Column, digits: int) -> Column:
    """A number as bytes, padded to so many hexadecimal digits; a negative one needs 16."""
    from pyspark.sql import functions

    return functions.unhex(functions.lpad(functions.hex(number.cast("bigint")), digits, "0"))


Schemas: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""Port → names and Spark types of the fields of its JSON rows; omits ports whose rows have a `value` of their own."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows whose `value` is already encoded, with its fields."""

    frame: DataFrame
    schemas: Schemas


@dataclass(frozen=True, slots=True)
class Leaving:
    """`ports` is empty for Spark's own sinks, whose writer the user has configured; otherwise `frame` has the sink's
    columns, including `port` unless all rows go to DEFAULT_PORT.
    """

    ports: tuple[str, ...]
    frame: DataFrame | None = None
    writer: DataStreamWriter | None = None
    schemas: Schemas = field(default_factory=dict)


def leaving(given: object, declared: tuple[str, ...] | None) -> Leaving:
    """One query for everything that the function returns, so that it commits together. Raises RequestError."""
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
        f"the function returns {type(given).__name__}",
        "Return a DataFrame, a dict from ports to DataFrames, or a DataStreamWriter that is not started.",
    )


def _with_letter_ports(ports: tuple[str, ...], frames: Sequence[DataFrame]) -> tuple[str, ...]:
    """The ports, with those of dead letters if any of the frames may have some. Raises RequestError if dead letters
    would be lost or written twice.
    """
    seen: set[int] = set()
    for frame in frames:
        marks = check_letters(frame)
        if seen & marks:
            raise twice("the result of the function")
        seen |= marks
    lettered = any(map(has_letters, frames))
    return tuple(dict.fromkeys((*ports, *LETTER_PORTS))) if lettered else tuple(ports)


def _single(frame: DataFrame, declared: tuple[str, ...] | None) -> Leaving:
    """In a frame with a column `port`, each row names its port."""
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
    written = _columns(frame) if ports == (DEFAULT_PORT,) else _to_port(frame, ports[0])
    return Leaving(all_ports, written, schemas=_schemas({ports[0]: frame}))


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
            "Drop or rename it: it would be lost.",
        )
    return _columns(frame.withColumn("port", functions.lit(port)))


def _columns(frame: DataFrame) -> DataFrame:
    """The sink's columns. Without a `value`, a row is written as the JSON of its columns, beside those columns that the
    sink accepts. With a `value`, other columns are refused: nothing is lost silently.
    """
    if not frame.isStreaming:
        raise RequestError(
            "the function returns a DataFrame that is not a stream", "Derive it from the function's inputs."
        )
    if has_letters(frame):
        return with_letters(frame)
    if "value" in frame.columns:
        frame = frame.drop(*PLACE)
        check_schema(frame.schema)
        return as_bytes(frame)
    return as_bytes(as_json(frame))
