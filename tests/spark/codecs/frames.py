"""Frames of events as loads give them, and what becomes of them, as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.spark.codecs.codec import Outlet
from penstock.spark.codecs.decoder import Decoded
from penstock.spark.dead_letters.column import LETTER, has_letters
from penstock.spark.outputs import with_letters
from penstock.spark.source.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in {**COLUMNS, "content_type": "string"}.items())

OUT = Outlet("out", (("out", "json"),))


def events(
    spark: SparkSession,
    *values: bytes,
    content_types: Sequence[str | None] = (),
    segments: Sequence[str] = (),
    source: str = "tills",
) -> DataFrame:
    """Events 1, 2, … of the stream 7, with the key `k`."""
    rows = [
        (
            source,
            "till",
            7,
            number + 1,
            None,
            b"k",
            value,
            segments[number] if segments else f"connector/{source}/0",
            number * 100,
            content_types[number] if content_types else None,
        )
        for number, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def columns(decoded: Decoded) -> list[dict[str, Any]]:
    """What was decoded; VARIANT as what its JSON says. None for letters."""
    from pyspark.sql import functions

    frame = decoded.frame
    kinds = dict(frame.dtypes)
    named = [
        functions.to_json(frame[name]).alias(name) if kinds[name] == "variant" else frame[name]
        for name in decoded.columns
    ]
    found: list[dict[str, Any]] = []
    for row in frame.select(*named, *([LETTER] if has_letters(frame) else [])).collect():
        told = row.asDict(recursive=True)
        if told.pop(LETTER, None) is not None:
            found.append({})
            continue
        found.append({n: json.loads(v) if kinds[n] == "variant" and v is not None else v for n, v in told.items()})
    return found


def letters(decoded: Decoded) -> list[tuple[bytes, str]]:
    """Their bytes and reasons."""
    frame = decoded.frame
    rows = frame.where(frame[LETTER].isNotNull()).select(f"{LETTER}.value", f"{LETTER}.reason").collect()
    return [(bytes(row[0]), row[1]) for row in rows]


def left(frame: DataFrame) -> list[tuple[str, bytes]]:
    """Ports and values as the sink would get them."""
    frame = with_letters(frame) if has_letters(frame) else frame
    return [(row["port"], bytes(row["value"])) for row in frame.collect()]
