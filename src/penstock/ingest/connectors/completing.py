"""Waiting until every pipeline is done with what is stored of a connector."""

import asyncio
from collections import defaultdict
from heapq import heappop, heappush
from itertools import count

from penstock.ingest.completion import Completion


class Completing:
    """Of one connector. What waits is cancelled with those who wait."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._waiting: defaultdict[int, list[tuple[int, int, asyncio.Future[None]]]] = defaultdict(list)
        self._numbers = count()
        completion.watch(self._moved)

    def close(self) -> None:
        self._completion.unwatch(self._moved)

    async def reached(self, route: int, end: int) -> None:
        """Return when the segment is completed up to this offset."""
        if end > self._completion.completed(route):
            done = asyncio.get_running_loop().create_future()
            heappush(self._waiting[route], (end, next(self._numbers), done))
            await done

    def _moved(self) -> None:
        for route, heap in self._waiting.items():
            passed = self._completion.completed(route)
            while heap and heap[0][0] <= passed:
                done = heappop(heap)[2]
                if not done.done():
                    done.set_result(None)
