"""The source `system/streams`: a row for each stream that starts or ends, stored in the record that says so.

    {"signal": "stream-started", "connector": "sensors", "stream": "lab-1", "stream_id": 17, "at": 1767225600000000}

`at` is in microseconds since 1970, and the row's event time. Only what is durable of the stream is told, and all of it:
the mark of the stream and its row are stored together or not at all. A program that comes back to a stream which has
not ended starts nothing.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.ingest.connector import Batch, Beside, Connector, active_again, started, streams_segment
from penstock.ingest.settings import AckMode, ConnectorSettings
from penstock.ingest.stored_batch import Values, stored_batch
from penstock.ingest.stream_log import Standing
from penstock.ingest.unread import keep_newest
from penstock.protocol.connector import NOTHING_YET, stream_id_of
from penstock.protocol.stored.head import Mark, MarkKind
from penstock.protocol.stored.names import SYSTEM_PREFIX, SYSTEM_STREAMS

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway

UNREAD_BYTES_MAX = 16 << 20
"""That are kept where no pipeline reads them: some hundred thousand signals, for whoever looks later."""

IDLE_SECONDS = 1.0
"""No signal says nothing: a pipeline that reads other sources as well does not wait for one."""

_STREAM = "streams"
_STREAM_ID = stream_id_of(_STREAM)
_SIGNALS = {MarkKind.STARTED: "stream-started", MarkKind.ENDED: "stream-closed"}
_SETTINGS = ConnectorSettings(segments=1, ack=AckMode.DURABLE, idle_timeout_seconds=IDLE_SECONDS, arrival_time=True)


class SystemStreams:
    """Written once an application is deployed, or some pipeline reads it."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self.is_enabled = gateway.store.exists(streams_segment(SYSTEM_STREAMS))
        gateway.configure(SYSTEM_STREAMS, _SETTINGS)

    def enable(self) -> None:
        """From now on there are rows, whether somebody reads them or not."""
        self.is_enabled = True

    @property
    def _is_read(self) -> bool:
        return self._gateway.completion(SYSTEM_STREAMS).is_held

    def rows(self, connector: Connector, marks: Iterable[Mark]) -> Beside | None:
        """As `connector.Signals`."""
        if connector.name.startswith(SYSTEM_PREFIX) or not (self.is_enabled or self._is_read):
            return None
        told = [mark for mark in marks if mark.kind in _SIGNALS and not mark.was_open]
        if not told:
            return None
        own = self._gateway.hosted(SYSTEM_STREAMS)
        if not self._is_read:
            keep_newest(self._gateway.store, own.segments[0], UNREAD_BYTES_MAX)
        return Beside(own, _STREAM_ID, self._batch(own, connector, told))

    def _batch(self, own: Connector, connector: Connector, told: list[Mark]) -> Batch:
        now = self._gateway.clock.now()
        known = own.find(_STREAM_ID, _STREAM)
        first = 1 if known.last_id == NOTHING_YET else known.last_id + 1
        marks = {
            Standing.ENDED: [started(_STREAM_ID, known)],
            Standing.IDLE: [active_again(_STREAM_ID)],
            Standing.ACTIVE: [],
        }[known.standing]
        rows = [_row(connector, mark, now) for mark in told]
        known.last_id = first + len(rows) - 1
        return stored_batch(0, _STREAM_ID, Values(rows, range(first, first + len(rows)), now), marks)


def _row(connector: Connector, mark: Mark, now: int) -> bytes:
    stream = connector.streams.get(mark.stream_id)
    row = {
        "signal": _SIGNALS[mark.kind],
        "connector": connector.name,
        "stream": mark.name or (stream.name if stream is not None else ""),
        "stream_id": mark.stream_id,
        "at": now,
    }
    return json.dumps(row, separators=(",", ":")).encode()
