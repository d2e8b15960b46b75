"""After a crash the stream table is exactly what is stored: no less, no more."""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress

import pytest

from penstock.ingest import source_log
from penstock.ingest.known_streams import next_incarnation
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import NOTHING_YET, Ack, EndOfStream, Frame, Message
from penstock.store.compaction import Compactor
from penstock.store.settings import StoreSettings
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.ingest.stored_events import parse
from tests.store.small import compact_step

LIVES = 12
STEPS = 12
STREAMS = [0, 1, 2, 7, 2**32, 2**63, 2**64 - 2, 2**64 - 1]
TINY = StoreSettings(chapter_bytes=64 * 1024, reserve_bytes=64 * 1024)


class Truth:
    """The last id of each stream, read from the stored events: what a NOTIFY_ACK must contain."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.routes: dict[int, int] = {}
        self._ends: defaultdict[str, int] = defaultdict(int)

    def read(self, running: RunningServer) -> None:
        for route, name in enumerate(running.sources.log("source").segments):
            info = running.store.info(name)
            self._ends[name] = max(self._ends[name], info.start)
            while data := running.store.read(name, self._ends[name], 1 << 20):
                self._ends[name] += len(data)
                self._take(route, data)

    def _take(self, route: int, data: bytes) -> None:
        for event in parse(data):
            assert event.event_id > self.last.get(event.stream_id, -1), "each message once, and in order"
            assert event.payload == b"%d of %d" % (event.event_id, event.stream_id)
            assert self.routes.setdefault(event.stream_id, route) == route, "a stream stays in its segment"
            self.last[event.stream_id] = event.event_id

    def point(self, stream_id: int) -> int:
        return self.last.get(stream_id, NOTHING_YET)

    def truncate(self, running: RunningServer, rng: random.Random) -> None:
        """Truncate what was read, or a part of it, even in the middle of a record."""
        for name, end in self._ends.items():
            start = running.store.info(name).start
            running.store.truncate(name, rng.choice([end, rng.randint(start, end)]))


class Source:
    """A session that sends at random, and knows the replies it got."""

    def __init__(self, peer: Peer, rng: random.Random, acked: dict[int, int] | None = None) -> None:
        self._peer = peer
        self._rng = rng
        self.sent: dict[int, int] = {}
        self.acked = acked or {}

    async def open(self, stream_id: int, running: RunningServer, truth: Truth) -> None:
        point = await open_when_free(self._peer, stream_id)
        truth.read(running)
        assert point == truth.point(stream_id)
        self.sent[stream_id] = point

    def send(self) -> None:
        """A run of messages on all streams, some of them sent before."""
        frames: list[Frame] = []
        for _ in range(self._rng.randrange(30)):
            stream_id = self._rng.choice([*self.sent])
            last_id = self.sent[stream_id]
            number = self._rng.randrange(3) if last_id == NOTHING_YET else last_id + self._rng.randint(-2, 3)
            if not 0 <= number < NOTHING_YET:
                continue
            frames.append(Message(stream_id, number, 0, b"", b"%d of %d" % (number, stream_id)))
            if last_id == NOTHING_YET or number > last_id:
                self.sent[stream_id] = number
        self._peer.send(*frames)

    def vanish(self) -> None:
        """Disconnect in the middle of whatever was sent last."""
        self._peer.writer.transport.abort()

    def end_one(self) -> None:
        stream_id = self._rng.choice([*self.sent])
        del self.sent[stream_id]
        self._peer.send(EndOfStream(stream_id))

    async def listen(self, seconds: float) -> None:
        with suppress(TimeoutError, EOFError, ConnectionError):
            while True:
                frame = await self._peer.frame(seconds)
                assert isinstance(frame, Ack), frame
                assert all(last_id != NOTHING_YET for _, last_id in frame.acked)
                self.acked |= dict(frame.acked)


async def open_when_free(peer: Peer, stream_id: int) -> int:
    """Retries: it may be closing, or its last session may not have ended yet."""
    while True:
        with suppress(AssertionError):
            return await peer.open(stream_id)
        await asyncio.sleep(0.001)


class Life:
    """One run of a program server, with three sessions."""

    def __init__(self, running: RunningServer, connect: Connect, rng: random.Random, truth: Truth) -> None:
        self._running = running
        self._connect = connect
        self._rng = rng
        self._truth = truth
        self._compactor = Compactor(running.store)
        self._sources: list[Source] = []

    async def live(self) -> dict[int, int]:
        """Run until it crashes. Returns what was acknowledged."""
        streams = self._rng.sample(STREAMS, len(STREAMS))
        for number in range(3):
            self._sources.append(await self._source(streams[number::3], {}))
        crash_at = self._rng.randrange(STEPS)
        for step in range(STEPS):
            if step == crash_at:
                self._running.journal.crash_after(self._rng.randrange(1, 12))
            number = self._rng.randrange(3)
            if step < crash_at:
                await self._disturb(number)
            await self._send(self._sources[number])
        for source in self._sources:
            await source.listen(0.01)
        return {stream_id: last_id for source in self._sources for stream_id, last_id in source.acked.items()}

    async def _source(self, streams: list[int], acked: dict[int, int]) -> Source:
        source = Source(await self._connect(self._running), self._rng, acked)
        for stream_id in streams:
            await source.open(stream_id, self._running, self._truth)
        return source

    async def _disturb(self, number: int) -> None:
        self._truth.read(self._running)
        if self._rng.random() < 0.2:
            self._truth.truncate(self._running, self._rng)
        if self._rng.random() < 0.3:
            compact_step(self._compactor)
        if self._rng.random() < 0.1:
            old = self._sources[number]
            old.vanish()
            self._sources[number] = await self._source([*old.sent], old.acked)

    async def _send(self, source: Source) -> None:
        if len(source.sent) > 1 and self._rng.random() < 0.1:
            source.end_one()
        if source.sent:
            source.send()
        await source.listen(self._rng.choice([0.001, 0.01]))


@pytest.mark.parametrize("seed", range(6))
async def test_after_a_crash_at_any_moment_notify_ack_has_the_last_stored_id_and_every_acked_message_is_stored(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(source_log, "_SNAPSHOT_BYTES_PER_STREAM", 0)
    rng = random.Random(seed)
    truth = Truth()
    for _ in range(LIVES):
        settings = SourceSettings(segments=rng.randint(1, 4))
        running = await serve(TINY, source=settings, snapshot_bytes=rng.choice([1, 300, 3000, 1 << 20]))
        acked = await Life(running, connect, rng, truth).live()
        await running.crash()
        running = await serve(TINY, source=settings)
        truth.read(running)
        for stream_id, last_id in acked.items():
            assert truth.last[stream_id] >= last_id, "acknowledged, and not there"
        peer = await connect(running)
        for stream_id in STREAMS:
            assert await peer.open(stream_id) == truth.point(stream_id)
        await peer.close()


def test_partitions_of_a_source_never_have_the_same_ephemeral_ids() -> None:
    assert [next_incarnation(now, 0, 1) for now in (0, 1, 7)] == [1, 2, 8]
    found: list[int] = []
    for partition in (0, 1, 249):
        now = 0
        for _ in range(5):
            before, now = now, next_incarnation(now, partition, 250)
            assert now > before
            found.append(now)
    assert len({*found}) == 15
