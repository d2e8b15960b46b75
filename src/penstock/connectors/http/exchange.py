"""One request of a connection, while its answer is awaited: which replies are its own, and what they make. No I/O but
for waking who waits.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus as Status
from typing import Any

from penstock.connectors.api import Outgoing, OutgoingChain
from penstock.connectors.http.answers import REASON, Answer, refusal, reply, says
from penstock.connectors.interceptors.api import BadBytes


class Exchange:
    """The events behind `after`, up to the last one that the request has made, are this request's. Until that one is
    known, all behind `after` are: a connection has one request at a time.
    """

    def __init__(self, after: int, headers: Mapping[str, str], bytes_max: int) -> None:
        self.after = after
        self.last: int | None = None
        self.replied = asyncio.Event()
        """Something has come."""
        self._headers = headers
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: list[bytes] = []
        self._metadata: list[Mapping[str, Any]] = []
        self._reasons: list[str] = []
        self._is_too_large = False

    def owns(self, event_id: int) -> bool:
        return event_id > self.after and (self.last is None or event_id <= self.last)

    def take(self, outgoing: Outgoing) -> list[int]:
        """Its own among them; the places of the others, which nobody waits for, and of those that are too much."""
        left = []
        for place, (value, event_id) in enumerate(zip(outgoing.values, outgoing.ids, strict=True)):
            metadata = outgoing.metadata[place] if outgoing.metadata else {}
            if not self.owns(event_id) or not self._take(value, metadata):
                left.append(place)
        if len(left) < len(outgoing.values) or self._is_too_large:
            self.replied.set()
        return left

    def _take(self, value: bytes, metadata: Mapping[str, Any]) -> bool:
        if REASON in metadata:
            self._reasons.append(str(metadata[REASON]))
            return True
        if self._bytes + len(value) > self._bytes_max:
            self._is_too_large = True
            return False
        self._bytes += len(value)
        self._values.append(value)
        self._metadata.append(metadata)
        return True

    def answer(self, chain: OutgoingChain, content_type: str) -> Answer:
        """Of what has come, now that no more is awaited."""
        if self._is_too_large:
            return says(Status.INTERNAL_SERVER_ERROR, f"the reply is over {self._bytes_max} bytes (reply_bytes_max)")
        if self._reasons:
            return refusal(self._reasons)
        if not self._values:
            return Answer(Status.NO_CONTENT)
        try:
            body = b"".join(_chained(chain, self._values))
        except BadBytes as error:
            return says(Status.INTERNAL_SERVER_ERROR, f"the reply cannot leave: {error}")
        return reply(body, self._metadata, content_type, self._headers)


def _chained(chain: OutgoingChain, values: Sequence[bytes]) -> list[bytes]:
    return chain.feed(values) + chain.flush()
