"""Frames with the sink's columns: what rows of any columns become, and what letters do, in one projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.spark.letter import LETTER, REASON_CHARACTERS_MAX
from penstock.spark.sink_schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

JSON = {"ignoreNullFields": "false"}
"""Every row has all columns."""

PLACE = ("segment", "offset")
"""Columns of the source that say where an event was: they end there."""


def row_schema(frame: DataFrame) -> list[tuple[str, str]] | None:
    """Names and types of the fields that its rows have as JSON; None for rows with a `value` of their own."""
    if "value" in frame.columns:
        return None
    return [(name, kind) for name, kind in frame.dtypes if name not in ("port", LETTER)]


def as_json(frame: DataFrame) -> DataFrame:
    """Rows as the JSON of their columns, beside those of them that the sink takes as well."""
    kept = [name for name, kind in frame.dtypes if kind in _TAKEN.get(name, ())]
    return frame.select(_whole(frame, "port").alias("value"), *kept)


def _whole(frame: DataFrame, *but: str) -> Column:
    from pyspark.sql import functions

    names = [name for name in frame.columns if name not in but]
    return functions.to_json(functions.struct(*(frame[quoted(name)] for name in names)), JSON)


def quoted(name: str) -> str:
    """As a frame's `[…]` takes a name with any characters in it."""
    return "`" + name.replace("`", "``") + "`"


def as_bytes(frame: DataFrame) -> DataFrame:
    """The same types from every port: they are united."""
    names = [name for name in ("value", "key") if name in frame.columns]
    return frame.withColumns({name: frame[name].cast("binary") for name in names})


def with_letters(frame: DataFrame) -> DataFrame:
    """The rows that are letters as what they hold, the others as they would leave without that column."""
    from pyspark.sql import functions

    others = frame.drop(LETTER)
    if "value" in others.columns:
        check_schema(others.drop(*PLACE).schema)
    letter = frame[LETTER]
    good = {name: frame[name] for name, kind in others.dtypes if kind in _TAKEN.get(name, ())}
    good |= _payload(frame)
    columns = {"value": "binary"} | {name: kinds[0] for name, kinds in _TAKEN.items()} | {"metadata": "binary"}
    told = {name: letter[name] for name in columns if name != "metadata"} | {"metadata": _metadata(letter)}
    return frame.select(
        *(
            functions.when(letter.isNotNull(), told[name])
            .otherwise(good.get(name, functions.lit(None)).cast(kind))
            .alias(name)
            for name, kind in columns.items()
        )
    )


def _payload(frame: DataFrame) -> dict[str, Column]:
    """What a row that is no letter has for `value`, and for `metadata` if it brings its own."""
    if "value" in frame.columns:
        return {name: frame[name] for name in ("value", "metadata") if name in frame.columns}
    return {"value": _whole(frame, "port", LETTER)} if set(frame.columns) - {"port", LETTER} else {}


def _metadata(letter: Column) -> Column:
    """What a letter tells besides, as a map in msgpack: made by Spark, so that no row goes through Python for it."""
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
    """A map in msgpack, of those texts that are not null: made by Spark, as a letter's. At most 15 of them, with names
    of at most 31 bytes.
    """
    return _map([_text_pair(name, text) for name, text in texts.items()])


def _map(pairs: Sequence[Column]) -> Column:
    """Of those pairs that are not null."""
    from pyspark.sql import functions

    count = sum((pair.isNotNull().cast("int") for pair in pairs), functions.lit(0))
    nothing = functions.lit(b"")
    return functions.concat(_unhexed(count + 0x80, 2), *(functions.coalesce(pair, nothing) for pair in pairs))


def _text_pair(name: str, text: Column) -> Column:
    """Null for a text that is not there."""
    from pyspark.sql import functions

    data = text.cast("binary")
    return functions.concat(_label(name, 0xDB), _unhexed(functions.octet_length(data), 8), data)


def _number_pair(name: str, number: Column) -> Column:
    from pyspark.sql import functions

    return functions.concat(_label(name, 0xD3), _unhexed(number, 16))


def _label(name: str, lead: int) -> Column:
    """A key, and the byte that says what its value is: a str with a length of 32 bits, or an i64."""
    from pyspark.sql import functions

    return functions.lit(bytes((0xA0 + len(name),)) + name.encode() + bytes((lead,)))


def _unhexed(number: Column, digits: int) -> Column:
    """So many digits of a number, as bytes; a negative one has 16 of them."""
    from pyspark.sql import functions

    return functions.unhex(functions.lpad(functions.hex(number.cast("bigint")), digits, "0"))
