"""What came in through a connector and could not become an event: the source `NAME.err`."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgpack

from penstock.connectors.api import StreamRef
from penstock.core.errors import NoRoom
from penstock.ingest.connector import active_again, started
from penstock.ingest.connectors.room import LOOK_SECONDS
from penstock.ingest.gateway import Gateway
from penstock.ingest.settings import AckMode, ConnectorSettings
from penstock.ingest.stored_batch import Values, columns, stored_batch
from penstock.ingest.stream_log import Standing
from penstock.ingest.unread import keep_newest
from penstock.protocol.connector import NOTHING_YET, stream_id_of
from penstock.protocol.stored.dead_letters import REASON
from penstock.protocol.stored.event import SOURCE, STREAM

SUFFIX = ".err"

LETTER_BYTES_MAX = 8 << 20
"""Of what came, that are kept of one letter: half of the largest append. The metadata `cut_from` says how many came."""

UNREAD_BYTES_MAX = 64 << 20
"""That are kept where no pipeline reads them: peers that send nothing but garbage must not fill the disk."""

IDLE_SECONDS = 1.0
"""No letter says nothing: nobody waits for one."""

_REASON_MAX = 1000
_STREAM = "letters"
_STREAM_ID = stream_id_of(_STREAM)
_SETTINGS = ConnectorSettings(segments=1, ack=AckMode.DURABLE, idle_timeout_seconds=IDLE_SECONDS, arrival_time=True)


class SourceLetters:
    """A connector with one segment, made at the first letter. Each letter has the origin that an event of its stream
    would have had: the connector, the name and the id of the stream.
    """

    def __init__(self, gateway: Gateway, connector: str) -> None:
        self._gateway = gateway
        self.name = connector + SUFFIX
        self.count = 0

    async def write(self, data: bytes, reason: str, stream: StreamRef, name: str, told: Mapping[str, Any]) -> None:
        """Store what came, with the reason and what is told of its stream. Waits for room on the disk."""
        metadata = {SOURCE: stream.connector, STREAM: name, REASON: reason[:_REASON_MAX], **told}
        if len(data) > LETTER_BYTES_MAX:
            metadata["cut_from"] = len(data)
        while True:
            try:
                self._append(data[:LETTER_BYTES_MAX], stream, msgpack.packb(metadata))
            except NoRoom:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                self.count += 1
                return

    def _append(self, data: bytes, stream: StreamRef, metadata: bytes) -> None:
        self._gateway.configure(self.name, _SETTINGS)
        own = self._gateway.hosted(self.name)
        own.signals = None  # it is no stream that somebody has opened
        if not self._gateway.completion(self.name).is_held:
            keep_newest(self._gateway.store, own.segments[0], UNREAD_BYTES_MAX)
        known, now = own.find(_STREAM_ID, _STREAM), self._gateway.clock.now()
        number = 1 if known.last_id == NOTHING_YET else known.last_id + 1
        marks = [started(_STREAM_ID, known)] if known.standing is Standing.ENDED else []
        marks += [active_again(_STREAM_ID)] if known.standing is Standing.IDLE else []
        batch = stored_batch(0, stream.stream_id, Values([data], [number], now, metadata=metadata), marks)
        own.append([batch._replace(streams=columns(_STREAM_ID, number, now))])
        known.last_id = number
        own.stays_away(_STREAM_ID)
        own.snapshot_if_due()
