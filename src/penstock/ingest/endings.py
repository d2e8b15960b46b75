"""Streams that have ended, until every pipeline is done with them: then they are complete, and some are forgotten."""

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.connectors.api import StreamRef
from penstock.core.types import Offset
from penstock.ingest.connector import Connector, ended
from penstock.ingest.registry import StreamKey, Use
from penstock.ingest.stream_log import Standing

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway

ENDED_PER_TURN = 1000
"""Streams that are completed before the loop gets its turn: some milliseconds."""


class Endings:
    """Of all connectors. What waits is lost with the process: `recover` finds it again."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._waiting: dict[str, defaultdict[int, list[tuple[int, int]]]] = {}
        """By connector and route: where the last events of each stream end, and its id."""
        self._streams: set[StreamRef] = set()
        self._called: set[str] = set()

    def has(self, stream: StreamRef) -> bool:
        """Whether it waits."""
        return stream in self._streams

    def add(self, connector: Connector, stream_id: int, before: Offset) -> None:
        """It is durable that the stream has ended; its events end at `before` or earlier."""
        name = connector.name
        if name not in self._waiting:
            self._waiting[name] = defaultdict(list)
            self._gateway.completion(name).watch(lambda: self._moved(name))
        self._streams.add(StreamRef(name, stream_id))
        self._gateway.keep_back(StreamRef(name, stream_id), is_kept=False)
        heappush(self._waiting[name][connector.streams[stream_id].route], (before, stream_id))
        self._moved(name)

    def recover(self, connector: Connector) -> None:
        """End the streams that cannot resume and that nobody has: their peers have gone with an earlier process, or
        connection. They are complete when all that is stored now is. As `Connector.append`.
        """
        left = [i for i in connector.fleeting() if self._is_abandoned(connector.name, i)]
        if not left:
            return
        connector.mark(ended(i) for i in left if connector.streams[i].standing is not Standing.ENDED)
        self._streams |= {StreamRef(connector.name, i) for i in left}
        store = self._gateway.store
        ends = [store.length(segment) for segment in connector.segments]
        self._gateway.durability.after(store.journal.end, lambda: self._recovered(connector, left, ends))

    def _is_abandoned(self, connector: str, stream_id: int) -> bool:
        is_free = self._gateway.registry.use(StreamKey(connector, stream_id)) is Use.INACTIVE
        return is_free and not self.has(StreamRef(connector, stream_id))

    def recover_ended(self, connector: Connector) -> None:
        """The streams that have ended before this process began, and that pipelines are not done with."""
        completion, store = self._gateway.completion(connector.name), self._gateway.store
        ends = [store.length(segment) for segment in connector.segments]
        behind = {route for route, end in enumerate(ends) if completion.completed(route) < end}
        for stream_id, stream in connector.streams.items() if behind else ():
            if stream.route in behind and stream.standing is Standing.ENDED:
                self.add(connector, stream_id, ends[stream.route])

    def _recovered(self, connector: Connector, left: list[int], ends: list[Offset]) -> None:
        for stream_id in left:
            if stream_id in connector.streams:
                self._gateway.gate.ended(StreamRef(connector.name, stream_id))
                self.add(connector, stream_id, ends[connector.streams[stream_id].route])

    def _moved(self, name: str) -> None:
        """Some of them may be complete."""
        if name not in self._called:
            self._called.add(name)
            self._gateway.loop.call_soon(self._work, name)

    def _work(self, name: str) -> None:
        self._called.discard(name)
        completion, connector = self._gateway.completion(name), self._gateway.known(name)
        left = ENDED_PER_TURN
        for route, heap in self._waiting[name].items():
            passed = completion.completed(route)
            while heap and heap[0][0] <= passed and left:
                left -= 1
                self._complete(connector, heappop(heap)[1])
        if not left:
            self._moved(name)

    def _complete(self, connector: Connector, stream_id: int) -> None:
        """Unless it has been opened again meanwhile."""
        self._streams.discard(StreamRef(connector.name, stream_id))
        stream = connector.streams.get(stream_id)
        if stream is None or stream.standing is not Standing.ENDED:
            return
        self._gateway.gate.completed(StreamRef(connector.name, stream_id))
        if connector.is_fleeting(stream_id):
            connector.forget(stream_id)
