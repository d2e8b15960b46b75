"""Event times from the data of one source, found in the worker, before its events are stored.

events ──▶ Extraction ──▶ times ──▶ stored events, heads, watermarks
                      └─▶ without a usable time: the time of arrival, or a dead letter in NAME.err
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.connectors.event_times import field_values
from penstock.protocol.connector.bulk.columns import HEAD_SIZE, Columns
from penstock.protocol.event_time.field import SCANNED_CODECS, EventTimeField
from penstock.protocol.stored.bulk import Bytes
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.metadata import known_metadata

if TYPE_CHECKING:
    from penstock.protocol.event_time.extractor import Block

CONTENT_TYPE = "content_type"
"""The key of an event's metadata."""

_TYPES_CACHED = 100
"""Metadata whose codec is remembered: those of HTTP requests may all differ, and have up to 64 KiB each."""


class Times(NamedTuple):
    """The event times of a block."""

    times: NDArray[np.int64]
    """In microseconds; NO_TIME for an event without a usable one."""
    untimed: list[int]
    """The rows of those."""
    why: Callable[[int], str]
    """From such a row to the reason."""


class Extraction:
    """Finds the event times of one source. Raises RequestError if a plugin cannot be loaded.

    The kernels are loaded, and compiled if they are not in numba's cache, when the first such source is configured.
    """

    def __init__(self, spec: EventTimeField) -> None:
        from penstock.protocol.event_time.extractor import Block, Extractor

        named = {spec.codec or "", *spec.codec_map.values()}.difference(SCANNED_CODECS)
        self.spec = spec
        self._block = Block
        self._extractor = Extractor(spec, {name: found for name in named if (found := field_values(name, spec.field))})
        self._codec_of = lru_cache(_TYPES_CACHED)(self._chosen)

    def of_messages(self, columns: Columns) -> Times:
        """The times of a run of MESSAGE frames, which have no content types."""
        starts = np.asarray(columns.starts)
        keys_end = starts[:-1] + np.asarray(columns.key_sizes) + HEAD_SIZE
        return self._of(self._block(columns.data, keys_end, starts[1:]), self.spec.codec)

    def of_values(self, values: Bytes, metadata: Sequence[bytes] | bytes) -> Times:
        """The times of these events. `metadata` are MessagePack maps: one for each event, or one for all."""
        offsets = np.asarray(values.offsets, np.int64)
        block = self._block(values.data, offsets[:-1], offsets[1:])
        if not self.spec.codec_map:
            return self._of(block, self.spec.codec)
        if isinstance(metadata, bytes):
            return self._of(block, self._codec_of(metadata))
        times, reasons = np.full(len(block), NO_TIME, np.int64), dict[int, str]()
        codecs = [self._codec_of(one) for one in metadata]
        for codec in dict.fromkeys(codecs):
            rows = np.array([row for row, other in enumerate(codecs) if other == codec], np.int64)
            found = self._of(block.chosen(rows), codec)
            times[rows] = found.times
            reasons |= {int(rows[row]): found.why(row) for row in found.untimed}
        return Times(times, sorted(reasons), reasons.__getitem__)

    def _of(self, block: "Block", codec: str | None) -> Times:
        found, why = self._extractor.times(block, codec), self._extractor.why
        return Times(found.times, found.untimed(), lambda row: why(int(found.kinds[row]), found.quotes.get(row), codec))

    def _chosen(self, metadata: bytes) -> str | None:
        """The codec of events with this metadata."""
        found = known_metadata(metadata).get(CONTENT_TYPE)
        if not isinstance(found, str):
            return self.spec.codec
        kind = found.partition(";")[0].strip().lower()
        by_type = {pattern.strip().lower(): codec for pattern, codec in self.spec.codec_map.items()}
        family = f"{kind.partition('/')[0]}/*"
        return next((by_type[one] for one in (kind, family, "*/*", "*") if one in by_type), self.spec.codec)
