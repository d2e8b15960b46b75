"""Ended streams of a source, until every pipeline has completed them; then ephemeral ones are forgotten."""

import asyncio
from collections import defaultdict
from heapq import heappop, heappush

from penstock.connectors.api import StreamRef
from penstock.core.types import Offset
from penstock.ingest.completion import Completion
from penstock.ingest.gate import GuardedStreams
from penstock.ingest.known_streams import Standing, ended
from penstock.ingest.owners import StreamKey, StreamRegistry, Use
from penstock.ingest.source_log import SourceLog
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

ENDED_PER_TURN = 1000
"""Streams to complete before yielding to the loop: a few milliseconds."""


class EndedStreams:
    """The ended streams of one source. In memory only: `recover` and `recover_ended` find them after a restart."""

    def __init__(
        self,
        log: SourceLog,
        completion: Completion,
        guarded: GuardedStreams,
        registry: StreamRegistry,
        store: SegmentStore,
        durability: Durability,
    ) -> None:
        self._log = log
        self._completion = completion
        self._guarded = guarded
        self._registry = registry
        self._store = store
        self._durability = durability
        self._waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """By route: where the last events of each stream end, and its id."""
        self._streams: set[int] = set()
        self._is_called = self._is_watching = False

    def __contains__(self, stream_id: int) -> bool:
        """Whether the stream has ended, but some pipeline has not completed it."""
        return stream_id in self._streams

    def add(self, stream_id: int, before: Offset) -> None:
        """The stream has ended, durably; its events end at `before` or earlier."""
        if not self._is_watching:
            self._is_watching = True
            self._completion.watch(self._moved)
        self._streams.add(stream_id)
        self._guarded.remember(self._ref(stream_id), may_send=True)
        heappush(self._waiting[self._log.streams[stream_id].route], (before, stream_id))
        self._moved()

    def _ref(self, stream_id: int) -> StreamRef:
        return StreamRef(self._log.name, stream_id)

    def recover(self) -> None:
        """End the ephemeral streams that are not open: their peers went away with an earlier process or connection.
        They are complete when everything stored now is. Raises like `SourceLog.append`.
        """
        streams = self._log.streams
        left = [i for i in streams.ephemeral() if self._is_abandoned(i)]
        if not left:
            return
        self._log.mark(ended(i) for i in left if streams[i].standing is not Standing.ENDED)
        self._streams.update(left)
        ends = self._ends()
        self._durability.after(self._store.journal.end, lambda: self._recovered(left, ends))

    def _is_abandoned(self, stream_id: int) -> bool:
        is_free = self._registry.use(StreamKey(self._log.name, stream_id)) is Use.INACTIVE
        return is_free and stream_id not in self

    def _ends(self) -> list[Offset]:
        return [self._store.length(segment) for segment in self._log.segments]

    def _recovered(self, left: list[int], ends: list[Offset]) -> None:
        for stream_id in left:
            if stream_id in self._log.streams:
                self._guarded.gate.ended(self._ref(stream_id))
                self.add(stream_id, ends[self._log.streams[stream_id].route])

    def recover_ended(self) -> None:
        """Find the streams that ended before this process started and that some pipeline has not completed."""
        ends = self._ends()
        incomplete = {route for route, end in enumerate(ends) if self._completion.completed(route) < end}
        for stream_id, stream in self._log.streams.items() if incomplete else ():
            if stream.route in incomplete and stream.standing is Standing.ENDED:
                self.add(stream_id, ends[stream.route])

    def _moved(self) -> None:
        """Complete the streams whose last events every pipeline has completed."""
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._is_called = False
        left = ENDED_PER_TURN
        for route, heap in self._waiting.items():
            passed = self._completion.completed(route)
            while heap and heap[0][0] <= passed and left:
                left -= 1
                self._complete(heappop(heap)[1])
        if not left:
            self._moved()

    def _complete(self, stream_id: int) -> None:
        """Complete the stream, unless it was reopened in the meantime."""
        self._streams.discard(stream_id)
        stream = self._log.streams.get(stream_id)
        if stream is None or stream.standing is not Standing.ENDED:
            return
        self._guarded.gate.completed(self._ref(stream_id))
        if self._log.streams.is_ephemeral(stream_id):
            self._log.forget(stream_id)
