"""A connector, as the gateway knows it: its segments, the streams that were ever seen, and whether it has room."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.core.attributes import QUOTA
from penstock.core.errors import NoRoom, PenstockError, StoreFailed
from penstock.core.types import Buffer, Position
from penstock.gateway.head import NO_COLUMNS, Mark, MarkKind, encode_head
from penstock.gateway.settings import ConnectorSettings
from penstock.gateway.stream_log import KnownStream, StreamLog
from penstock.protocol.connector.bulk import StreamColumns
from penstock.protocol.connector.credits import LargestFrame
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

PREFIX = "connector/"

# What a mark stands on where there is no message: an event without data. Readers of streams pass over it.
_EMPTY_EVENT = bytes(8)
# The quota is counted over all of a connector's segments, and binds its credits: none is for one of them alone.
_NO_QUOTA = {QUOTA: 2**63 - 1}
_SNAPSHOT_BYTES_PER_STREAM = 16 * 1024


def streams_segment(name: str) -> str:
    return f"{PREFIX}{name}/streams"


def data_segment(name: str, route: int) -> str:
    return f"{PREFIX}{name}/{route}"


class Connector:
    """Owned by the gateway; outlives its sessions. All changes go through the store's one thread."""

    def __init__(self, name: str, store: SegmentStore, settings: ConnectorSettings, snapshot_bytes: int) -> None:
        self.name = name
        self.settings = settings
        self.largest_frame = LargestFrame()
        self._store = store
        self._snapshot_bytes = snapshot_bytes
        self._appended = 0
        self.segments = self._open_segments()
        self._log = StreamLog(store, streams_segment(name), self.segments)
        self.streams = self._log.recover()
        self.current_ids: Callable[[], None] = lambda: None
        """Brings `last_id` of the streams that are open in sessions up to date."""

    def _open_segments(self) -> list[str]:
        """Those that exist, and more if the setting has grown: a stream stays where it was put.
        The table's own segment is made last: where it is there, the connector was made.
        """
        names: list[str] = []
        while self._store.exists(data_segment(self.name, len(names))):
            names.append(data_segment(self.name, len(names)))
        made = self._store.exists(streams_segment(self.name))
        with suppress(*[NoRoom] if made and names else []):  # a full disk must not keep out what is there already
            while len(names) < self.settings.segments:
                name = data_segment(self.name, len(names))
                if not self._store.exists(name):
                    self._store.create(name, _NO_QUOTA)
                names.append(name)
        if not made:
            self._store.create(streams_segment(self.name), _NO_QUOTA)
        return names

    def find(self, stream_id: int, name: str) -> KnownStream:
        """The stream, put into a segment if it is new."""
        stream = self.streams.get(stream_id)
        if stream is None:
            digest = hashlib.blake2b(stream_id.to_bytes(8, "big"), digest_size=8).digest()
            route = int.from_bytes(digest, "big") % min(self.settings.segments, len(self.segments))
            stream = self.streams[stream_id] = KnownStream(name, route)
        return stream

    def append(self, route: int, data: Buffer, columns: StreamColumns, marks: Sequence[Mark] = ()) -> Position:
        """Store events with the head that tells of them. Raises DiskFull, with nothing stored."""
        buffers: list[Buffer] = [data] if len(data) else [_EMPTY_EVENT]
        head = encode_head(columns, marks)
        position = self._store.append(self.segments[route], buffers, head=head).position
        self._appended += len(data) + len(head)
        return position

    def mark(self, route: int, marks: Sequence[Mark]) -> Position:
        return self.append(route, b"", NO_COLUMNS, marks)

    def snapshot_if_due(self) -> None:
        """Write the table down if much was stored since. Not in the middle of a run: the ids that a session has
        accepted count as stored, and a part of them is not yet.
        """
        if self._appended > max(self._snapshot_bytes, _SNAPSHOT_BYTES_PER_STREAM * len(self.streams)):
            self._appended = 0
            try:
                self.snapshot()
            except PenstockError as error:  # the table can be made from the heads as well, only more slowly
                log.warning("the table of streams of %r is not written down: %s", self.name, error)

    def snapshot(self) -> None:
        """Write the table of streams down."""
        self.current_ids()
        self._log.write(self.streams)
        self._appended = 0

    def has_room(self) -> bool:
        """Whether sources may send more: within the quota, and on a disk that has room."""
        quota = self.settings.quota_bytes
        if quota is not None and self.held_bytes >= quota:
            return False
        try:
            self._store.journal.room_for(0, draining=False)
        except (NoRoom, StoreFailed):
            return False
        return True

    @property
    def held_bytes(self) -> int:
        there = filter(self._store.exists, self.segments)  # somebody may delete one over the segment protocol
        return sum(info.length - info.start for info in map(self._store.info, there))


def started(stream_id: int, name: str) -> Mark:
    return Mark(stream_id, MarkKind.STARTED, name)


def ended(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.ENDED)
