"""Events put together so that the work per event is small."""

from collections.abc import Iterable, Iterator

from penstock.core.types import Buffer
from penstock.protocol.segment import HEADER_SIZE, frame_events


def batches(events: Iterable[Buffer], block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """The events with their headers, about a block at a time, and how many they are."""
    batch: list[Buffer] = []
    size = 0
    for event in events:
        size += HEADER_SIZE + len(event)
        if size > block_bytes and batch:
            yield frame_events(batch), len(batch)
            batch, size = [], HEADER_SIZE + len(event)
        batch.append(event)
    if batch:
        yield frame_events(batch), len(batch)
