"""Batches of events as in the source's reader, and their decoded rows, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.spark.codecs.batch_decoder import Decoded, Decoder
from penstock.spark.codecs.codec import Branch
from penstock.spark.source.schema import COLUMNS


def events(
    *values: bytes, content_types: Sequence[str | None] = (), segments: Sequence[str] = (), source: str = "tills"
) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "content_type": pa.array(content_types or [None] * count, pa.string()),
            "segment": pa.array(segments or [f"connector/{source}/0"] * count, pa.string()),
            "source": pa.array([source] * count, pa.string()),
        }
    )


class Result:
    """The rows that were decoded, and the dead letters."""

    def __init__(self, decoder: Decoder, decoded: Decoded) -> None:
        rows = decoded.batch.select([field.name for field in decoder.fields])
        self.rows: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict")
        self.values: list[bytes] = decoded.batch.column("value").to_pylist()
        self.failed: list[tuple[bytes, str]] = [
            *zip(decoded.failed.column("value").to_pylist(), decoded.reasons, strict=True)
        ]


def decode(batch: pa.RecordBatch, branches: Sequence[Branch]) -> Result:
    decoder = Decoder(branches, tuple(COLUMNS))
    return Result(decoder, decoder.decode(batch))


def decode_values(codec: str, schema: str | None, *values: bytes) -> Result:
    return decode(events(*values), [Branch(codec, schema)])
