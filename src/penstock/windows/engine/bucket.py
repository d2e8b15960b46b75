"""The state of a bucket of keys, as the engine sees it, and what it reports of it."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class BucketState(Protocol):
    """Where a bucket's state lies: an index, and blobs by number. What a batch puts only the next one reads."""

    def index(self) -> bytes | None:
        """None for a bucket that never was."""

    def put_index(self, data: bytes) -> None:
        """Replaces it."""

    def get(self, window: int) -> bytes | None:
        """None if there is none."""

    def put(self, window: int, data: bytes) -> None:
        """Makes or replaces it."""

    def remove(self, window: int) -> None:
        """It is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A bucket after a batch. `keys` counts a key in each window that holds it; late rows since the state began."""

    open_windows: int
    keys: int
    state_bytes: int
    late_kept: int
    late_dropped: int
    waiting: int
    """Windows that have not fired, one for each key and window."""
    first_end: int | None
    """When the first of them ends, in microseconds; None: there is none."""
    next_time: int | None
    """The watermark at which something fires or is removed next; None: there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What a batch gave: panes as `plan.pane_schema`, late rows as `plan.late_schema` (none with late="drop")."""

    panes: pa.Table
    late: pa.Table
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Blobs for `advance`, by bucket; a bucket has none if no row was its own."""

    partials: dict[int, bytes]
