"""What the worker itself writes for whoever may read it is bounded where nobody does."""

import logging

from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)


def keep_newest(store: SegmentStore, segment: str, bytes_max: int) -> None:
    """If there is more than that, give up the older half, at the beginning of a record."""
    info = store.info(segment)
    if info.length - info.start > bytes_max:
        start = store.record(segment, info.length - bytes_max // 2).start
        store.truncate(segment, start)
        log.info("segment %r: nobody reads it, and the oldest %s bytes are dropped", segment, start - info.start)
