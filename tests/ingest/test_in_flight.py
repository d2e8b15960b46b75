"""All ingest shares one budget for what is received and not durable yet; no source starves in it."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from penstock.core.errors import NoRoom
from penstock.ingest.in_flight import InFlightBudget
from penstock.protocol.connector import Ack, Acked, Hello, Message, Notify, NotifyAck, Ok
from penstock.store.settings import StoreSettings
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support.gated_files import GatedFile, GatedFiles
from tests.support.waiting import eventually

MIB = 1 << 20
STORE = StoreSettings(chapter_bytes=16 * MIB, reserve_bytes=MIB)
SESSIONS = 60
BUDGET = 16 * MIB
FRAME = 4000
SMALL_BUDGET = 8 * MIB
"""Half of what the windows of all sessions allow, 64 messages each: the budget has to keep them from filling these."""
MESSAGES = 300
LIMITS = {"sessions_max": SESSIONS, "address_sessions_max": SESSIONS}


@pytest.fixture
def disk() -> Iterator["type[GatedFile]"]:
    GatedFile.gate.set()
    yield GatedFile
    GatedFile.gate.set()


class Program:
    """Sends whatever it has credits for, up to a number of messages."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.credits = self.sent = self.acked = 0

    async def join(self, source: str) -> None:
        self.peer.send(Hello("0.0.1", b"", "test", source), Notify(1, "stream"))
        self.credits -= 1
        while not isinstance(frame := await self.peer.frame(), NotifyAck):
            assert isinstance(frame, Ok | Ack)
            self.credits += frame.credits

    async def run(self, messages: int) -> None:
        while self.acked < messages:
            count = max(min(self.credits, messages - self.sent), 0)
            self.peer.send(*(Message(1, self.sent + n, 0, b"", bytes(FRAME)) for n in range(1, count + 1)))
            self.sent, self.credits = self.sent + count, self.credits - count
            frame = await self.peer.frame(120)
            assert isinstance(frame, Ack)
            self.credits += frame.credits
            self.acked = max([self.acked, *(acked.point_of_reference for acked in frame.acked)])


async def joined(running: RunningServer, connect: Connect, source: str) -> Program:
    program = Program(await connect(running, hello=False))
    await program.join(source)
    return program


@pytest.mark.slow
async def test_sixty_sessions_before_a_stalled_disk_stay_within_the_budget_and_all_finish(
    serve: Serve, connect: Connect, disk: type[GatedFile]
) -> None:
    running = await serve(STORE, files=GatedFiles, in_flight_bytes_max=SMALL_BUDGET, window_bytes=MIB, **LIMITS)
    budget = running.sources.in_flight
    sources = [await joined(running, connect, f"source-{number}") for number in range(SESSIONS)]
    disk.gate.clear()
    tasks = [asyncio.create_task(source.run(MESSAGES)) for source in sources]
    highest = 0
    for _ in range(40):
        await asyncio.sleep(0.05)
        highest = max(highest, budget.in_flight_bytes)
    assert SMALL_BUDGET // 8 < highest <= SMALL_BUDGET
    assert all(source.sent > 0 for source in sources), "every one had credits"
    disk.gate.set()
    await asyncio.gather(*tasks)
    assert running.sources.counters.closed_for_room == 0, "credits were withheld, and that was enough"
    await eventually(lambda: budget.in_flight_bytes == 0)


async def test_a_session_that_joins_a_full_worker_gets_its_turn(
    serve: Serve, connect: Connect, disk: type[GatedFile]
) -> None:
    """The others never use the credits they were granted."""
    running = await serve(STORE, files=GatedFiles, in_flight_bytes_max=BUDGET, window_bytes=MIB, **LIMITS)
    for number in range(SESSIONS - 1):
        await connect(running, f"idle-{number}")
    await (await joined(running, connect, "late")).run(MESSAGES)
    assert disk.gate.is_set()


async def test_bytes_of_a_lost_session_count_until_they_are_durable(
    serve: Serve, connect: Connect, disk: type[GatedFile]
) -> None:
    running = await serve(STORE, files=GatedFiles, in_flight_bytes_max=BUDGET, half_closed_seconds=0.2)
    peer = await connect(running)
    await peer.open(1)
    disk.gate.clear()
    peer.send(*(Message(1, number, 0, b"", bytes(FRAME)) for number in range(1, 101)))
    await eventually(lambda: running.sources.in_flight.in_flight_bytes > 100 * FRAME)
    peer.writer.transport.abort()
    await eventually(lambda: not running.sessions)
    assert running.sources.in_flight.in_flight_bytes > 100 * FRAME
    disk.gate.set()
    await eventually(lambda: running.sources.in_flight.in_flight_bytes == 0)
    assert running.sources.in_flight.lendable_bytes == BUDGET // 2


async def test_frames_larger_than_a_share_pass_one_by_one(serve: Serve, connect: Connect) -> None:
    running = await serve(STORE, in_flight_bytes_max=8 * MIB, window_bytes=4 * MIB, **LIMITS)
    peers = [await connect(running, f"large-{number}") for number in range(4)]
    for peer in peers:
        await peer.open(1)
    for number in range(1, 4):
        for peer in peers:
            peer.send(Message(1, number, 0, b"", bytes(3 * MIB)))
            while True:
                frame = await peer.frame()
                if isinstance(frame, Ack) and Acked(1, number) in frame.acked:
                    break
        await eventually(lambda: all(s.status().credits > 0 for s in running.sessions))


def test_no_session_can_take_the_share_of_another() -> None:
    budget = InFlightBudget(BUDGET, SESSIONS)
    for _ in range(SESSIONS):
        greedy = budget.share()
        greedy.promise(greedy.limit_bytes)
    promised = BUDGET // 2 - budget.lendable_bytes
    assert BUDGET // 4 < promised < BUDGET // 2, "most of what can be lent, and never all of it"
    newcomer = budget.share()
    assert budget.own_bytes < newcomer.limit_bytes < BUDGET // 8
    assert newcomer.has_room


def test_no_session_has_room_while_the_budget_is_full() -> None:
    budget = InFlightBudget(BUDGET, SESSIONS)
    busy, other = budget.share(), budget.share()
    had_room = [other.has_room]
    for step in (partial(busy.received, BUDGET), partial(busy.settled, 1)):
        step()
        had_room.append(other.has_room)
    assert had_room == [True, False, True]
    assert budget.is_short
    assert budget.lendable_bytes == 0


def test_the_budget_is_never_exceeded() -> None:
    budget = InFlightBudget(100, 1)
    share = budget.share()
    share.received(90)
    with pytest.raises(NoRoom, match="90 bytes of all sources wait for the disk"):
        share.check(11)
    share.check(10)
