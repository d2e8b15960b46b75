"""A run of messages on its way into the store: received together, stored together, acknowledged together."""

from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.core.types import Offset, Position
from penstock.ingest.connector import Batch, Connector
from penstock.protocol.connector import NOTHING_YET, Ack, Acked, encode
from penstock.protocol.connector.bulk import DROPPED, Admission, Columns, Stored, encode_acks, rewrite

if TYPE_CHECKING:
    from penstock.ingest.opened_streams import OpenedStreams, Waiting


class Run:
    """Keeps numbers alone: the bytes belong to the receive buffer, and are copied into stored events at once."""

    __slots__ = ("_columns", "admission", "count", "duplicates", "ends", "kept", "received_at", "size")

    def __init__(self, columns: Columns, admission: Admission, received_at: float) -> None:
        self._columns: Columns | None = columns
        self.admission = admission
        self.received_at = received_at
        self.count = len(columns)
        self.size = columns.size
        self.duplicates = int(admission.totals.messages[DROPPED])
        self.kept = admission.count - self.duplicates
        self.ends: dict[int, Offset] = {}
        """Where its record in each segment ends, by route."""

    def store(self, connector: Connector, streams: "OpenedStreams") -> Position:
        """Append each route's events to its segment, all in one record; returns the position at which it is durable.
        Raises NoRoom when they could not be stored: the streams go back to where they were.
        """
        columns, self._columns = self._columns, None
        assert columns is not None
        stored = {r: s for r, s in enumerate(rewrite(columns, self.admission, len(connector.segments))) if s.count}
        if not stored:
            return streams.end_of_journal
        waiting = [streams.take_marks(route) for route in stored]
        try:
            placed = connector.append([_batch(waits, stored[waits.route]) for waits in waiting])
        except PenstockError:
            streams.not_stored(self.admission.streams)
            raise
        for waits, at in zip(waiting, placed, strict=True):
            self.ends[waits.route] = at.end
            streams.marked(waits, at)
        return placed[0].position

    def ack(self, granted: int) -> bytes:
        """The ACK for all streams in it."""
        streams = self.admission.streams
        if not self.admission.problem:
            return encode_acks(granted, streams.stream_ids, streams.last_ids)
        pairs = zip(streams.stream_ids.tolist(), streams.last_ids.tolist(), strict=True)
        return encode(Ack(granted, tuple(Acked(*pair) for pair in pairs if pair[1] != NOTHING_YET)))


def _batch(waiting: "Waiting", stored: Stored) -> Batch:
    return Batch(waiting.route, waiting.marks, stored.count, stored.data, stored.streams)
