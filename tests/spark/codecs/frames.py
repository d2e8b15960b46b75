"""Frames of events like those of loads, and what is decoded and encoded, as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.kinds import VARIANT
from penstock.spark.codecs.batch_decoder import Decoder
from penstock.spark.codecs.codec import Branch, Outlet
from penstock.spark.codecs.decoder import BRANCH, Decoded, numbered, with_variants
from penstock.spark.codecs.outputs import Left
from penstock.spark.sink.encoding import encoded
from penstock.spark.sink.plan import parse_plan, plan_text
from penstock.spark.sink.rows import by_port
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


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What a reader makes of the events."""

    decoded: Decoded
    rows: list[dict[str, Any]]
    """What was decoded, in order; VARIANT as what its JSON says. Empty for dead letters."""
    dead_letters: list[tuple[bytes, str]]
    """Bytes and reasons of those that could not be decoded."""

    def public(self) -> DataFrame:
        """The frame of a load."""
        return self.decoded.frame.drop(BRANCH)


def decode(frame: DataFrame, branches: Sequence[Branch]) -> Made:
    decoder = Decoder(branches, frame.columns)
    batch = _events(frame)
    found = decoder.decode(batch)
    names = set(decoder.schema.names)
    variants = {field.name for field in decoder.fields if field.kind == VARIANT}
    by_offset = {
        row["offset"]: {
            n: json.loads(v) if n in variants and v is not None else v for n, v in row.items() if n in names
        }
        for row in found.batch.to_pylist()
    }
    dead_letters = [*zip(found.failed.column("value").to_pylist(), found.reasons, strict=True)]
    loaded = frame.sparkSession.createDataFrame(pa.Table.from_batches([found.batch]))
    opened = numbered(with_variants(loaded, decoder), decoder)
    return Made(opened, [by_offset.get(offset, {}) for offset in batch.column("offset").to_pylist()], dead_letters)


def _events(frame: DataFrame) -> pa.RecordBatch:
    (batch,) = frame.toArrow().combine_chunks().to_batches()
    return batch


def columns(made: Made) -> list[dict[str, Any]]:
    return made.rows


def dead_letters(made: Made) -> list[tuple[bytes, str]]:
    return made.dead_letters


def written(left: Left) -> pa.Table:
    """What the sink stores, with `port`."""
    found = []
    for port, rows in by_port(left.frame.toArrow().combine_chunks().to_batches()[0], "out"):
        for target, batch in encoded(rows, port, parse_plan(plan_text(left.plan))):
            found.append(pa.Table.from_batches([batch]).append_column("port", pa.array([target] * batch.num_rows)))
    return pa.concat_tables(found, promote_options="default")


def values(left: Left) -> list[tuple[str, bytes]]:
    """Ports and values as the sink stores them."""
    return [(row["port"], row["value"]) for row in written(left).to_pylist()]
