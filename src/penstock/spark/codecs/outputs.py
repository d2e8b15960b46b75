"""Prepares frames for a pipeline's sinks: the rows that leave, and the plan by which the writer's tasks encode them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import DATA, Outlet
from penstock.spark.codecs.decoder import BRANCH, Decoded
from penstock.spark.outputs import payload_of, quoted
from penstock.spark.outputs import united as united_frames
from penstock.spark.sink.plan import CONTENT_TYPE, PART, RECEIVED, Part, Plan, PortEncoding, same_bytes
from penstock.spark.sink.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVENT = {
    "key": ("binary", "string"),
    "event_time": ("timestamp",),
    "source": ("string",),
    "stream": ("string",),
    "stream_id": ("bigint",),
    "message_id": ("bigint",),
}
"""Columns of an event that are written beside its value, and their types."""

_ENDING = {"segment": ("string",), "offset": ("bigint",)}
"""The position from which it was read: not written."""

_ABOUT = ("metadata", "content_type")

_METADATA = "__metadata"
"""The prefix of columns with the metadata of rows. They are separate for each port, because their types may differ."""

_MARK = "penstock.received"
"""The key in a column's metadata that marks it as one that a function has received: Spark keeps it for a column that is
selected or renamed, and not for one that is computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """Rows that leave, and how the writer encodes them."""

    frame: DataFrame
    plan: Plan = field(default_factory=dict)


def received(frame: DataFrame, name: str) -> DataFrame:
    """The frame of an input, for a function. `leave` recognizes columns that have not changed."""
    columns = []
    for each in frame.schema:
        metadata = {**each.metadata, _MARK: f"{name}/{each.name}"}
        columns.append(frame[quoted(each.name)].alias(each.name, metadata=metadata))
    return frame.select(*columns)


def _unchanged(frame: DataFrame) -> set[str]:
    """The columns that the function has received, under these names, with the `value` that the frame has."""
    marks = {each.name: str(each.metadata.get(_MARK, "")) for each in frame.schema}
    of = marks["value"].partition("/")[0] if marks.get("value") else None
    found = {name for name, mark in marks.items() if mark.partition("/")[2] == name}
    return found if of is None else {name for name in found if marks[name].partition("/")[0] == of}


def leave(frame: DataFrame, outlets: Mapping[str, Outlet], port: str | None) -> Left:
    """The rows with `port`; None: the rows name it. Of the columns that the function received, those that have not
    changed are not written again beside a `value`.

    Raises RequestError for rows that cannot be written.
    """
    same = _unchanged(frame)
    chosen = [outlets[port]] if port is not None else [*outlets.values()]
    part, payload = _payload(frame, same, port or "", _codecs(chosen))
    is_encoded, has_maps = part.fields is not None, any(outlet.codec_maps for outlet in chosen)
    columns = [payload, *_content_type(frame, same, is_encoded=is_encoded, has_maps=has_maps)]
    metadata = f"{_METADATA}_{port or ''}" if "metadata" in frame.columns and "metadata" not in same else None
    if metadata is not None:
        columns.append(_own_metadata(frame).alias(metadata))
    plan = {outlet.port: _encoding(outlet, (part,), metadata) for outlet in chosen}
    return Left(frame.select(*_written(frame), *columns, _port(frame, port)), plan)


def _payload(frame: DataFrame, same: set[str], of: str, codecs: set[str]) -> tuple[Part, Column]:
    """The rows' `value`, or the fields that the writer encodes."""
    if "value" in frame.columns:
        _check_value(frame, same)
        return Part(), frame["value"].cast("binary").alias("value")
    names = [name for name in frame.columns if not _is_of_event(frame, name)]
    if not names:
        raise RequestError("the rows that leave have no columns of their own", "Keep `value`, or the columns to write.")
    return payload_of(frame, names, of, codecs)


def _codecs(outlets: Sequence[Outlet]) -> set[str]:
    named = {codec for outlet in outlets for _, codec in outlet.targets}
    return named | {codec for outlet in outlets for pairs in outlet.codec_maps.values() for _, codec in pairs}


def _encoding(outlet: Outlet, parts: tuple[Part, ...], metadata: str | None = None) -> PortEncoding:
    return PortEncoding(outlet.targets, parts, metadata, outlet.adds_content_type, outlet.codec_maps)


def _written(frame: DataFrame) -> list[Column]:
    kinds = dict(frame.dtypes)
    found = {name: frame[name] for name, accepted in _EVENT.items() if kinds.get(name) in accepted}
    return [column.cast("binary").alias(name) if name == "key" else column for name, column in found.items()]


def _port(frame: DataFrame, port: str | None) -> Column:
    from pyspark.sql import functions

    if port is not None:
        return functions.lit(port).alias("port")
    return functions.coalesce(frame["port"].cast("string"), functions.lit("null")).alias("port")


def schemas(frame: DataFrame, outlets: Mapping[str, Outlet], port: str | None) -> dict[str, list[tuple[str, str]]]:
    """Names and types of the fields of the rows that `leave` writes, for the ports that contain JSON."""
    if "value" in frame.columns:
        return {}
    fields = [(name, kind) for name, kind in frame.dtypes if not _is_of_event(frame, name)]
    if [name for name, _ in fields] == [DATA]:  # the whole event
        kind: Any = frame.schema[DATA].dataType
        if kind.typeName() != "struct":
            return {}
        fields = [(each.name, each.dataType.simpleString()) for each in kind.fields]
    chosen = [outlets[port]] if port is not None else [*outlets.values()]
    return {target: fields for outlet in chosen for target, codec in outlet.targets if codec == "json"}


def _is_of_event(frame: DataFrame, name: str) -> bool:
    kind = frame.schema[name].dataType.simpleString()
    return name in ("port", *_ABOUT) or kind in (_EVENT | _ENDING).get(name, ())


def _check_value(frame: DataFrame, same: set[str]) -> None:
    """Beside a `value` only columns of the event are written. Others would be lost, unless `value` contains them."""
    others = [n for n in frame.columns if n != "value" and not _is_of_event(frame, n) and n not in same]
    if others:
        raise RequestError(
            f"the rows have `value` and also {', '.join(f'`{name}`' for name in others)}, which it does not contain",
            "Drop `value`, so that the codec writes the columns; or drop the other columns.",
        )
    check_schema(frame.select("value").schema)


def _content_type(frame: DataFrame, same: set[str], *, is_encoded: bool, has_maps: bool) -> list[Column]:
    """The rows' own content type, or that of the received bytes if these stay; or what the codec of replies depends
    on.
    """
    if CONTENT_TYPE not in frame.columns:
        return []
    content_type = frame[CONTENT_TYPE].cast("string")
    if not (is_encoded and CONTENT_TYPE in same):
        return [content_type.alias(CONTENT_TYPE)]
    return [content_type.alias(RECEIVED)] if has_maps else []


def _own_metadata(frame: DataFrame) -> Column:
    """Bytes in msgpack, a struct or a map; a VARIANT as its JSON. The writer packs them."""
    from pyspark.sql import functions

    kind: Any = frame.schema["metadata"].dataType
    match kind.typeName():
        case "binary" | "struct" | "map":
            return frame["metadata"]
        case "variant":
            return functions.to_json(frame["metadata"])
    raise RequestError(
        f"`metadata` is {kind.simpleString()}", "Make it a struct, a map, a VARIANT or the bytes of a map in msgpack."
    )


def united(given: Sequence[Left]) -> Left:
    """The rows of several ports in one frame."""
    plan = {port: encoding for one in given for port, encoding in one.plan.items()}
    return Left(united_frames([one.frame for one in given]), plan)


# Events that only pass through a pipeline: the same bytes where possible, otherwise encoded with another codec.


def passed(decoded: Decoded, outlets: Mapping[str, Outlet], port: str) -> Left:
    """Value, key, origin, event time and content type stay. Raises RequestError if one codec cannot write what another
    has read.
    """
    frame, outlet = decoded.frame, outlets[port]
    parts = [_of_branch(decoded, number, outlet) for number in range(len(decoded.branches))]
    columns = [fields for _, fields in parts if fields is not None]
    about = [frame[CONTENT_TYPE]] if CONTENT_TYPE in frame.columns else []
    rows = frame.select(
        *_written(frame), frame["value"], *about, frame[BRANCH].alias(PART), *columns, _port(frame, port)
    )
    return Left(rows, {port: _encoding(outlet, tuple(part for part, _ in parts))})


def _of_branch(decoded: Decoded, number: int, outlet: Outlet) -> tuple[Part, Column | None]:
    """What is written of a branch's events: their bytes, and their fields if a target needs another codec."""
    codec = decoded.branches[number].codec
    others = {wanted for wanted in _codecs([outlet]) if not same_bytes(codec, wanted)}
    if not others:
        return Part(codec=codec), None
    return payload_of(decoded.frame, decoded.of_branch[number], str(number), others, codec)
