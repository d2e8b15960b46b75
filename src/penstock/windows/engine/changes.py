"""What a batch does to a bucket: decided first, done by `advance` when nothing can go wrong any more."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.windows.engine.index import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A blob, and what the index says of it."""

    data: bytes
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Panes as the plan's schema has them; rows that are late after all (t, carried); blobs to put and to remove."""

    panes: list[pa.Table]
    late: list[pa.Table]
    puts: Mapping[int, Written]
    removed: frozenset[int]
