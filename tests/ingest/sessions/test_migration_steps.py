"""Each of the addendum's eleven steps, interrupted on either side.

The program is written after the addendum, with a socket and the codec. Workers are servers on one data directory, one
after the other; a worker that is not the owner redirects.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from enum import Enum

import pytest

from penstock.core.address import Address
from penstock.ingest.known_streams import Standing
from penstock.ingest.sessions.migration import SessionEvent
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    NOTHING_YET,
    Ack,
    EndOfStream,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    announce_window,
)
from penstock.worker.redirects import RedirectPort, Route
from penstock.worker.settings import Redirect
from tests.ingest.conftest import Peer, Serve
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, eventually

STREAMS = range(1, 6)
MESSAGES = range(1, 41)
HALF = 20


class Cut(Enum):
    CONNECTION = "the program's connections are cut"
    OLD = "the old worker is gone"
    NEW = "the new worker is gone"


class Cluster:
    """Two addresses, and one data directory."""

    def __init__(self, serve: Serve, cleanup: AsyncExitStack) -> None:
        self._serve = serve
        self._cleanup = cleanup
        self.ports = {"old": free_port(), "new": free_port()}
        self.dead: set[str] = set()
        self._redirecting: dict[str, asyncio.Server] = {}

    async def begin(self) -> None:
        self.old = self.owner = await self._serve(port=self.ports["old"])

    async def close_journal(self) -> None:
        """Steps 4 and the first half of 5."""
        await self.old.programs.seal()
        self.old.committer.stop()
        self.old.journal.close()
        self.old.crashed = True

    async def take_over(self, name: str) -> None:
        """The worker at this address opens the journal; the other one redirects, if it lives."""
        if not self.old.crashed:
            await self.old.crash()
        other = "new" if name == "old" else "old"
        if name in self._redirecting:
            self._redirecting.pop(name).close()
        self.owner = await self._serve(port=self.ports[name])
        if other not in self.dead:
            await self.redirect(other, name)

    async def redirect(self, name: str, to: str) -> None:
        owner = Address("127.0.0.1", self.ports[to])

        async def route(_: str) -> Route:
            return owner

        shared = RedirectPort(ProgramServerSettings(), Redirect.AUTO, route)
        loop = asyncio.get_running_loop()
        self._redirecting[name] = server = await loop.create_server(
            shared.connection, "127.0.0.1", self.ports[name], reuse_address=True
        )
        self._cleanup.callback(server.close)
        self._cleanup.callback(shared.close)

    async def kill(self, name: str) -> None:
        """Its connections are reset, and what it had not stored is gone."""
        self.dead.add(name)
        if name in self._redirecting:
            self._redirecting.pop(name).close()
        running = self.old if name == "old" else self.owner if self.owner is not self.old else None
        if running is None:
            return
        for connection in running.connections:
            connection._transport.abort()
        if not running.crashed:
            await running.crash()


class Program:
    """As the addendum says. After an interruption it tries both addresses, and follows MIGRATE."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._all: list[Peer] = []
        self.acked: dict[int, int] = {}
        self.peers: dict[str, Peer] = {}

    async def connect(self, name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._cluster.ports[name])
        self.peers[name] = Peer(reader, writer)
        self._all.append(self.peers[name])

    async def read(self, name: str, kind: type[object]) -> object:
        peer = self.peers[name]
        while True:
            frame = await peer.frame()
            if isinstance(frame, Ack):
                for stream_id, last_id in frame.acked:
                    assert last_id >= self.acked.get(stream_id, 0)
                    self.acked[stream_id] = last_id
            if isinstance(frame, kind):
                return frame

    async def hello(self, name: str) -> object:
        self.peers[name].send(Hello(MIGRATING_VERSION, b"", announce_window("test"), "source"))
        return await self.read(name, (Ok, Migrate))  # type: ignore[arg-type]

    async def notify(self, name: str) -> dict[int, int]:
        for stream_id in STREAMS:
            self.peers[name].send(Notify(stream_id, f"stream {stream_id}"))
        points: dict[int, int] = {}
        while len(points) < len(STREAMS):
            answer = await self.read(name, NotifyAck)
            assert isinstance(answer, NotifyAck)
            if answer.success:
                points[answer.stream_id] = answer.point_of_reference
            else:  # the old session is not quite gone
                await asyncio.sleep(0.01)
                self.peers[name].send(Notify(answer.stream_id, f"stream {answer.stream_id}"))
        for stream_id, point in points.items():
            assert self.acked.get(stream_id, 0) <= (0 if point == NOTHING_YET else point), "what was acked is stored"
        return {stream_id: 0 if point == NOTHING_YET else point for stream_id, point in points.items()}

    def send(self, name: str, after: dict[int, int], upto: int) -> None:
        for stream_id in STREAMS:
            for number in MESSAGES:
                if after[stream_id] < number <= upto:
                    self.peers[name].send(Message(stream_id, number, 0, b"", b"%d" % number))

    def cut(self) -> None:
        for peer in self.peers.values():
            peer.writer.transport.abort()
        self.peers.clear()

    async def close(self) -> None:
        for peer in self._all:
            await peer.close()

    async def finish(self) -> None:
        """From anywhere: connect, resume, send everything, and end the streams."""
        name = "new"
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                with suppress(OSError, EOFError):
                    await self.connect(name)
                    answer = await self.hello(name)
                    if isinstance(answer, Ok):
                        break
                    self.peers[name].send(MigrateAck())
                name = "new" if name == "old" else "old"
                await asyncio.sleep(0.01)
        await self._send_all(name)

    async def _send_all(self, name: str) -> None:
        self.send(name, await self.notify(name), MESSAGES[-1])
        log = self._cluster.owner.sources.log("source")
        assert {log.streams[stream_id].standing for stream_id in STREAMS} == {Standing.ACTIVE}
        while any(self.acked.get(stream_id) != MESSAGES[-1] for stream_id in STREAMS):
            await self.read(name, Ack)


class Migration:
    """The steps of the addendum's table, by their numbers."""

    def __init__(self, cluster: Cluster, program: Program) -> None:
        self._cluster = cluster
        self._program = program
        self._leaving: asyncio.Task[None] | None = None
        self._steps = {
            1: self._migrate_is_sent,
            3: self._streams_are_ended,
            4: cluster.close_journal,
            5: lambda: cluster.take_over("new"),
            6: self._streams_are_acknowledged,
            7: lambda: program.connect("new"),
            8: self._handshake,
            9: self._migrate_ack,
            10: self._old_worker_closes,
            11: self._program_resumes,
        }

    async def run(self, upto: int) -> None:
        """The steps up to and including this one. In step 0 the program is connected, and has sent half of it."""
        cluster, program = self._cluster, self._program
        await cluster.begin()
        await program.connect("old")
        await program.hello("old")
        program.send("old", await program.notify("old"), HALF)
        for number, step in self._steps.items():
            if number <= upto:
                await step()

    async def _migrate_is_sent(self) -> None:
        successor = Address("127.0.0.1", self._cluster.ports["new"])
        self._leaving = asyncio.create_task(self._cluster.old.programs.send_away(successor, SECONDS_MAX))
        assert await self._program.read("old", Migrate) == Migrate(successor.host, successor.port)

    async def _streams_are_ended(self) -> None:
        self._program.peers["old"].send(*map(EndOfStream, STREAMS))
        assert self._leaving is not None
        await self._leaving

    async def _streams_are_acknowledged(self) -> None:
        self._cluster.old.programs.tell(SessionEvent.TAKEN)
        while await self._program.read("old", Ack) != Ack(0):
            pass
        assert self._program.acked == dict.fromkeys(STREAMS, HALF)

    async def _handshake(self) -> None:
        assert isinstance(await self._program.hello("new"), Ok)

    async def _migrate_ack(self) -> None:
        self._program.peers["old"].send(MigrateAck())

    async def _old_worker_closes(self) -> None:
        with pytest.raises((EOFError, ConnectionError)):
            await self._program.read("old", Restart)
        await eventually(lambda: len(self._cluster.old.programs.sessions) == 0)

    async def _program_resumes(self) -> None:
        after = await self._program.notify("new")
        assert set(after.values()) == {HALF}, "nothing is sent twice"
        self._program.send("new", after, MESSAGES[-5])

    def end(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()


LAST_STEP = 11
MOVED = 5
"""From this step on, the new worker owns the shard."""


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("step", range(LAST_STEP + 1))
async def test_after_an_interruption_every_message_is_stored_once_in_order_and_no_stream_has_ended(
    serve: Serve, step: int, cut: Cut
) -> None:
    async with AsyncExitStack() as cleanup:
        cluster = Cluster(serve, cleanup)
        program = Program(cluster)
        cleanup.push_async_callback(program.close)
        migration = Migration(cluster, program)
        await migration.run(step)
        migration.end()
        if cut is Cut.CONNECTION:
            program.cut()
        else:
            await cluster.kill(cut.name.lower())
        if cut is Cut.NEW:
            await cluster.take_over("old")
        elif step < MOVED:  # the move goes on, or the lease of the old worker ends
            await cluster.take_over("new")
        program.cut()
        await program.finish()
        stored = cluster.owner.events()
        for stream_id in STREAMS:
            assert [event.event_id for event in stored if event.stream_id == stream_id] == [*MESSAGES]


async def test_without_an_interruption_nothing_is_sent_twice(serve: Serve) -> None:
    async with AsyncExitStack() as cleanup:
        cluster = Cluster(serve, cleanup)
        program = Program(cluster)
        cleanup.push_async_callback(program.close)
        await Migration(cluster, program).run(LAST_STEP)
        assert cluster.owner.sources.counters.duplicates == cluster.old.sources.counters.duplicates == 0
