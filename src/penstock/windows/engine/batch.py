"""What a batch brings to a bucket: prepared blobs, read."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.windows.engine import blob

PARTIALS, LATE, RAW = "partials", "late", "raw"
"""The tables of a prepared blob: partials of slices or sessions, late rows, rows that only the state can judge."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tables of partials, of late rows and of rows to be judged; and how many late rows were dropped by mappers."""

    partials: list[pa.Table]
    late: list[pa.Table]
    raw: list[pa.Table]
    dropped: int


def read_batch(blobs: Iterable[bytes], before: int | None) -> Batch:
    """Raises RequestError if they were judged against another watermark."""
    read = [blob.unpack(data) for data in blobs]
    for each in read:
        if each.facts["before"] != before:
            raise RequestError(
                f"rows were judged against watermark {each.facts['before']}, their batch begins at {before}",
                "Run the batch again: its rows and its watermark must come from the same cut.",
            )
    tables = {name: [each.tables[name] for each in read if name in each.tables] for name in (PARTIALS, LATE, RAW)}
    return Batch(tables[PARTIALS], tables[LATE], tables[RAW], sum(each.facts["dropped"] for each in read))
