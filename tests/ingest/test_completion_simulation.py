"""Sources, pipelines and restarts at random: only what was released is acknowledged, and eventually all of it."""

import asyncio
import random

import pytest

from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import NOTHING_YET
from tests.ingest.completion_scene import Listener, completion, ends, last_ids, record_ends
from tests.ingest.conftest import Connect, RunningServer, Serve

STEPS = 60
STREAMS = range(8)


class Pipelines:
    """Does what a coordinator does: it holds, releases at the ends of records and between them, and lets go."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.released: dict[str, int] | None = None
        self._before: dict[int, int] = {}
        """What may have been acknowledged before the last hold."""

    def step(self, running: RunningServer) -> None:
        if self.released is None:
            self.hold(running)
        elif self._rng.random() < 0.1:
            completion(running).let_go()
            self.released = None
        else:
            self._advance(running, {name: self._offset(running, name) for name in self.released})

    def hold(self, running: RunningServer) -> None:
        self._before = last_ids(running, ends(running))
        self.released = {name: self._rng.choice([0, end]) for name, end in ends(running).items()}
        completion(running).hold(self.released)

    def restarted(self, running: RunningServer) -> None:
        """As after a crash: the coordinator repeats its last hold."""
        if self.released is not None:
            completion(running).hold(self.released)

    def finish(self, running: RunningServer) -> None:
        self._advance(running, ends(running))

    def _offset(self, running: RunningServer, name: str) -> int:
        return self._rng.choice([*record_ends(running, name), 0]) + self._rng.choice([0, 0, 0, 3])

    def _advance(self, running: RunningServer, offsets: dict[str, int]) -> None:
        assert self.released is not None
        self.released = {name: max(offset, offsets[name]) for name, offset in self.released.items()}
        completion(running).advance(offsets)

    def check(self, running: RunningServer, stream_id: int, last_id: int) -> None:
        if self.released is not None:
            allowed = last_ids(running, self.released).get(stream_id, -1)
            assert last_id <= max(allowed, self._before.get(stream_id, -1)), "acknowledged, and not complete"


class Sources:
    """Two sessions at a time, which open, send, end, disconnect and half-close."""

    def __init__(self, rng: random.Random, connect: Connect, pipelines: Pipelines) -> None:
        self._rng = rng
        self._connect = connect
        self._pipelines = pipelines
        self._sessions: dict[int, Listener] = {}
        self.sent: dict[int, int] = {}

    async def step(self, running: RunningServer) -> None:
        number = self._rng.randrange(2)
        own = [*STREAMS][number::2]
        if number not in self._sessions:
            self._sessions[number] = await self.connect(running, own)
        session = self._sessions[number]
        for _ in range(self._rng.randrange(4)):
            session.send([self._next(self._rng.choice(own)) for _ in range(self._rng.randrange(1, 5))])
            await asyncio.sleep(self._rng.choice([0, 0.001]))
        if self._rng.random() < 0.3:
            await self._leave(session, own)
            del self._sessions[number]

    async def connect(self, running: RunningServer, streams: list[int]) -> Listener:
        peer = await self._connect(running)
        session = Listener(peer, lambda stream_id, last_id: self._pipelines.check(running, stream_id, last_id))
        await session.open(*streams)
        for stream_id in streams:
            point = session.opened[stream_id]
            assert point == NOTHING_YET or point <= self.sent[stream_id]
            self.sent[stream_id] = -1 if point == NOTHING_YET else point
        return session

    def _next(self, stream_id: int) -> tuple[int, int]:
        self.sent[stream_id] += self._rng.choice([0, 1, 1, 3]) if self.sent[stream_id] >= 0 else 1
        return stream_id, self.sent[stream_id]

    async def _leave(self, session: Listener, own: list[int]) -> None:
        for stream_id in self._rng.sample(own, self._rng.randrange(3)):
            session.end(stream_id)
        match self._rng.randrange(3):
            case 0:
                session.peer.writer.transport.abort()
            case 1:
                session.peer.writer.write_eof()
            case 2:
                await session.peer.close()
        session.check()

    def vanish(self) -> None:
        for session in self._sessions.values():
            session.check()
            session.peer.writer.transport.abort()
        self._sessions.clear()


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_only_released_messages_are_acknowledged_and_eventually_all_are(
    serve: Serve, connect: Connect, seed: int
) -> None:
    rng = random.Random(seed)
    settings = SourceSettings(segments=rng.randint(1, 3))
    running = await serve(source=settings)
    running.sources.log("source")
    pipelines = Pipelines(rng)
    sources = Sources(rng, connect, pipelines)
    for _ in range(STEPS):
        await sources.step(running)
        if rng.random() < 0.5:
            pipelines.step(running)
        if rng.random() < 0.05:
            sources.vanish()
            running = await serve(source=settings)
            pipelines.restarted(running)
    sources.vanish()
    if pipelines.released is None:
        pipelines.hold(running)
    last = await sources.connect(running, [*STREAMS])
    pipelines.finish(running)
    stored = last_ids(running, ends(running))
    await last.until(lambda: last.acked == stored)
    assert set(stored) == {stream_id for stream_id, sent in sources.sent.items() if sent >= 0}
