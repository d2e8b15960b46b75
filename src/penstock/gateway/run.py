"""A run of messages on its way into the store: received together, stored together, acknowledged together."""

from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.core.types import Position
from penstock.gateway.connector import Connector
from penstock.protocol.connector import NOTHING_YET, Ack, Acked, encode
from penstock.protocol.connector.bulk import DROPPED, Admission, Columns, encode_acks, rewrite, stream_columns

if TYPE_CHECKING:
    from penstock.gateway.opened_streams import OpenedStreams, Waiting


class Run:
    """Keeps numbers alone: the bytes belong to the receive buffer, and are copied into stored events at once."""

    __slots__ = ("_columns", "admission", "count", "duplicates", "kept", "received_at", "size")

    def __init__(self, columns: Columns, admission: Admission, received_at: float) -> None:
        self._columns: Columns | None = columns
        self.admission = admission
        self.received_at = received_at
        self.count = len(columns)
        self.size = columns.size
        self.duplicates = bytes(admission.routes).count(DROPPED)
        self.kept = admission.count - self.duplicates

    def store(self, connector: Connector, streams: "OpenedStreams") -> Position:
        """Append each route's events to its segment; returns the position at which all of them are durable.
        Raises NoRoom when a route's events could not be stored: its streams go back to where they were.
        """
        columns, self._columns = self._columns, None
        assert columns is not None
        position = streams.end_of_journal
        marked: list[tuple[Waiting, Position]] = []
        for route in range(len(connector.segments)):
            stored = rewrite(columns, self.admission, route)
            if not stored.count:
                continue
            waiting = streams.take_marks(route)
            numbers = stream_columns(self.admission.streams, route)
            try:
                position = connector.append(route, stored.data, numbers, waiting.marks)
            except PenstockError:
                streams.not_stored(self.admission.streams, from_route=route)
                raise
            marked.append((waiting, position))
        for waiting, at in marked:
            streams.marked(waiting, at)
        return position

    def ack(self, granted: int) -> bytes:
        """The ACK for all streams in it."""
        streams = self.admission.streams
        if not self.admission.problem:
            return encode_acks(granted, streams.stream_ids, streams.last_ids)
        pairs = zip(streams.stream_ids.tolist(), streams.last_ids.tolist(), strict=True)
        return encode(Ack(granted, tuple(Acked(*pair) for pair in pairs if pair[1] != NOTHING_YET)))
