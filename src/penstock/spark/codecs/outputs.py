"""Encodes frames for a pipeline's sinks: each row as the bytes that the sinks of its port need, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import AS_IT_IS, CODECS, Outlet
from penstock.spark.codecs.decoder import BRANCH, Decoded
from penstock.spark.codecs.encoder import DATA, encoded
from penstock.spark.codecs.expressions import as_json, packed_metadata
from penstock.spark.dead_letters.column import LETTER, has_letters
from penstock.spark.outputs import quoted, text_map
from penstock.spark.sink.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VALUE = "__value"
_LEAVING = "__leaving"

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


Encode = Callable[["DataFrame", str], "Column"]
"""Returns the value of each row, encoded with a codec."""


def leave(frame: DataFrame, outlets: Mapping[str, Outlet], port: str | None, untouched: frozenset[str]) -> DataFrame:
    """The frame with the sink's columns and `port`. `port` None: the rows name it. `untouched`: the columns that the
    function received, as returned by `attributes`; those that have not changed are not written again beside a `value`.

    Raises RequestError for rows that cannot be written.
    """
    same = {name for name, attribute in attributes(frame).items() if attribute in untouched}
    if "value" in frame.columns:
        _check_value(frame, same)
        return placed(frame, outlets, port, lambda given, _: given["value"].cast("binary"), same, is_encoded=False)
    payload = [name for name in frame.columns if not _is_of_event(frame, name)]
    if not payload and not has_letters(frame):
        raise RequestError("the rows that leave have no columns of their own", "Keep `value`, or the columns to write.")

    def encode(given: DataFrame, codec: str) -> Column:
        return encoded(
            codec,
            {name: given[quoted(name)] for name in payload},
            {name: given.schema[name].dataType for name in payload},
        )

    return placed(frame, outlets, port, encode if payload else _nothing, same, is_encoded=True)


def schemas(frame: DataFrame, outlets: Mapping[str, Outlet], port: str | None) -> dict[str, list[tuple[str, str]]]:
    """Names and types of the fields of the rows that `leave` writes, for the ports that contain JSON."""
    if "value" in frame.columns:
        return {}
    fields = [(name, kind) for name, kind in frame.dtypes if not _is_of_event(frame, name)]
    if [name for name, _ in fields] == [DATA]:  # the whole event
        kind: Any = frame.schema[DATA].dataType
        if kind.typeName() != "struct":
            return {}
        fields = [(field.name, field.dataType.simpleString()) for field in kind.fields]
    chosen = [outlets[port]] if port is not None else [*outlets.values()]
    return {target: fields for outlet in chosen for target, codec in outlet.targets if codec == "json"}


def attributes(frame: DataFrame) -> dict[str, str]:
    """Its columns, each with Spark's attribute for it: a column that was recreated has a different one."""
    output = frame._jdf.queryExecution().analyzed().output()  # noqa: SLF001  no public way to the plan
    return {name: output.apply(number).toString() for number, name in enumerate(frame.columns)}


def _nothing(frame: DataFrame, codec: str) -> Column:  # noqa: ARG001  an Encode
    """For a frame that has only dead letters."""
    from pyspark.sql import functions

    return functions.lit(None).cast("binary")


def _is_of_event(frame: DataFrame, name: str) -> bool:
    kind = frame.schema[name].dataType.simpleString()
    return name in (LETTER, "port", *_ABOUT) or kind in (_EVENT | _ENDING).get(name, ())


def _check_value(frame: DataFrame, same: set[str]) -> None:
    """Beside a `value` only columns of the event are written. Others would be lost, unless `value` contains them."""
    others = [n for n in frame.columns if n != "value" and not _is_of_event(frame, n) and n not in same]
    if others:
        raise RequestError(
            f"the rows have `value` and also {', '.join(f'`{name}`' for name in others)}, which it does not contain",
            "Drop `value`, so that the codec writes the columns; or drop the other columns.",
        )
    check_schema(frame.select("value").schema)


def placed(
    frame: DataFrame,
    outlets: Mapping[str, Outlet],
    port: str | None,
    encode: Encode,
    same: set[str],
    *,
    is_encoded: bool,
) -> DataFrame:
    """Each row once per target, with the target's bytes; a dead letter only once."""
    from pyspark.sql import functions

    chosen = [outlets[port]] if port is not None else [*outlets.values()]
    codecs = sorted({codec for outlet in chosen for _, codec in outlet.targets})
    valued = frame.withColumns({f"{_VALUE}.{codec}": encode(frame, codec) for codec in codecs})
    written = [frame[quoted(name)].alias(name) for name in frame.columns if _is_written(frame, name)]
    about = [_metadata(frame, same, chosen, is_encoded=is_encoded)]
    if port is not None and len(chosen[0].targets) == 1:
        target, codec = chosen[0].targets[0]
        value = valued[quoted(f"{_VALUE}.{codec}")].alias("value")
        return valued.select(*written, *about, value, functions.lit(target).alias("port"))
    copies = functions.explode_outer(_copies(valued, chosen, port)).alias(_LEAVING)
    opened = valued.select(*written, *about, copies)
    names = [opened[quoted(name)] for name in opened.columns if name != _LEAVING]
    return opened.select(*names, opened[_LEAVING]["value"].alias("value"), opened[_LEAVING]["port"].alias("port"))


def _is_written(frame: DataFrame, name: str) -> bool:
    kind = frame.schema[name].dataType.simpleString()
    return kind in _EVENT.get(name, ()) or (name == LETTER and has_letters(frame))


def _copies(valued: DataFrame, outlets: Sequence[Outlet], port: str | None) -> Column:
    """What is written for a row: a list of values with their ports. A dead letter has a list of one."""
    from pyspark.sql import functions

    lists = {outlet.port: _list(valued, outlet) for outlet in outlets}
    if port is not None:
        copies = lists[port]
    else:
        named = functions.coalesce(valued["port"].cast("string"), functions.lit("null"))
        unknown = functions.raise_error(functions.concat(functions.lit("unknown port "), named))
        copies = reduce(
            lambda rest, name: functions.when(valued["port"] == functions.lit(name), lists[name]).otherwise(rest),
            reversed([*lists]),
            unknown.cast("array<struct<port: string, value: binary>>"),
        )
    if not has_letters(valued):
        return copies
    one = functions.array(functions.lit(None).cast("struct<port: string, value: binary>"))
    return functions.when(valued[LETTER].isNotNull(), one).otherwise(copies)


def _list(valued: DataFrame, outlet: Outlet) -> Column:
    from pyspark.sql import functions

    return functions.array(
        *(
            functions.struct(functions.lit(target).alias("port"), valued[quoted(f"{_VALUE}.{codec}")].alias("value"))
            for target, codec in outlet.targets
        )
    )


def _metadata(frame: DataFrame, same: set[str], outlets: Sequence[Outlet], *, is_encoded: bool) -> Column:
    """The rows' own metadata, in msgpack, with the content type: the rows' own, that of the received bytes, or that of
    the codec that encoded them.
    """
    from pyspark.sql import functions

    content_type = _content_type(frame, same, outlets, is_encoded=is_encoded)
    if "metadata" in frame.columns and "metadata" not in same:
        known = functions.lit(None).cast("string") if content_type is None else content_type
        return _as_map(frame, known).alias("metadata")
    if content_type is None:
        return functions.lit(None).cast("binary").alias("metadata")
    return functions.when(content_type.isNotNull(), text_map({"content_type": content_type})).alias("metadata")


def _content_type(frame: DataFrame, same: set[str], outlets: Sequence[Outlet], *, is_encoded: bool) -> Column | None:
    from pyspark.sql import functions

    is_set = "content_type" in frame.columns
    if is_set and not (is_encoded and "content_type" in same):
        return frame["content_type"].cast("string")
    codecs = {codec for outlet in outlets if outlet.adds_content_type for _, codec in outlet.targets}
    if not is_encoded or len(codecs) != 1:
        return None
    return functions.lit(CODECS[codecs.pop()].content_types[0])


def _as_map(frame: DataFrame, content_type: Column) -> Column:
    """The rows' own metadata: bytes in msgpack, or a struct, map or VARIANT, which is converted to msgpack."""
    kind: Any = frame.schema["metadata"].dataType
    column = frame["metadata"]
    match kind.typeName():
        case "binary":
            return column
        case "struct" | "map":
            return packed_metadata(column, content_type)
        case "variant":
            return packed_metadata(as_json(column), content_type)
    raise RequestError(
        f"`metadata` is {kind.simpleString()}", "Make it a struct, a map, a VARIANT or the bytes of a map in msgpack."
    )


# Events that only pass through a pipeline: the same bytes where possible, otherwise encoded with another codec.

_TEXTS = ("json", "csv", "string")
"""Codecs that produce text."""


def passed(decoded: Decoded, outlets: Mapping[str, Outlet], port: str) -> DataFrame:
    """The frame with the sink's columns: value, key, origin, event time and content type stay. An event that its codec
    could not decode is a dead letter. Raises RequestError if one codec cannot write what another has read.
    """
    frame = decoded.frame
    codecs = {codec for _, codec in outlets[port].targets}
    alike = all(same_bytes(branch.codec, codec) for branch in decoded.branches for codec in codecs)
    same = set(attributes(frame))
    return placed(frame, outlets, port, lambda given, codec: _value(given, decoded, codec), same, is_encoded=not alike)


def same_bytes(codec: str | None, wanted: str) -> bool:
    """Whether bytes that were read with one codec can be written unchanged where another one is wanted."""
    if AS_IT_IS in (codec, wanted) or codec in (None, wanted):
        return True
    return wanted == "string" and codec in _TEXTS


def _value(frame: DataFrame, decoded: Decoded, codec: str) -> Column:
    from pyspark.sql import functions

    def of_branch(rest: Column, number: int) -> Column:
        if same_bytes(decoded.branches[number].codec, codec):
            return rest
        names = decoded.of_branch[number]
        columns = {name: frame[quoted(name)] for name in names}
        written = encoded(codec, columns, {name: frame.schema[name].dataType for name in names})
        return functions.when(frame[BRANCH] == number, written).otherwise(rest)

    return reduce(of_branch, range(len(decoded.branches)), frame["value"])
