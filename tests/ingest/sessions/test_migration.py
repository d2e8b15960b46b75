"""The machines of a migration, and what the sessions of one worker send while its shard leaves."""

import asyncio
from itertools import pairwise, product

import pytest

from penstock.access.file import Open
from penstock.access.refusals import Refusals
from penstock.core.address import Address
from penstock.ingest.known_streams import Standing
from penstock.ingest.sessions.migration import (
    MIGRATING,
    RESTARTING,
    SHARD,
    SHARD_SECONDS_MAX,
    Effect,
    SessionEvent,
    SessionMove,
    SessionStep,
    ShardEvent,
    ShardMove,
    ShardStep,
)
from penstock.ingest.sessions.program_access import ProgramAccess
from penstock.ingest.sessions.session import SourceSession
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    Ack,
    Acked,
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
from tests.ingest.completion_scene import completion, quiet, until_stored
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support.waiting import SECONDS_MAX, eventually

# The machines.


def test_a_program_that_knows_migrate_goes_through_the_addendum_s_steps_in_order() -> None:
    move = SessionMove(can_migrate=True)
    assert move.on(SessionEvent.MOVE) == (Effect.SEND_MIGRATE, Effect.WITHHOLD)
    assert move.on(SessionEvent.STREAMS_ENDED) == ()
    assert move.on(SessionEvent.SEAL) == (Effect.RELEASE_STREAMS,)
    assert move.on(SessionEvent.TAKEN) == (Effect.SEND_ACKS, Effect.INVITE)
    assert move.on(SessionEvent.MIGRATE_ACK) == (Effect.CLOSE,)
    assert move.step is SessionStep.OVER


def test_any_other_program_gets_restart_when_the_successor_has_taken_over() -> None:
    move = SessionMove(can_migrate=False)
    effects = [move.on(event) for event in (SessionEvent.MOVE, SessionEvent.SEAL, SessionEvent.TAKEN)]
    assert effects == [(Effect.WITHHOLD,), (Effect.RELEASE_STREAMS,), (Effect.SEND_ACKS, Effect.SEND_RESTART)]
    assert move.step is SessionStep.OVER


@pytest.mark.parametrize("table", [MIGRATING, RESTARTING], ids=["migrate", "restart"])
def test_every_step_of_a_session_ends_when_the_shard_s_move_ends(
    table: dict[SessionStep, dict[SessionEvent, tuple[SessionStep, tuple[Effect, ...]]]],
) -> None:
    """Nothing is left open, whichever step it is in: a move that is done or abandoned closes all sessions."""
    reached = {SessionStep.STREAMING}
    while more := {to for step in reached for to, _ in table[step].values()} - reached:
        reached |= more
    for step in reached - {SessionStep.OVER}:
        assert table[step][SessionEvent.ABANDONED] == (SessionStep.OVER, (Effect.CLOSE,))


def test_acknowledgements_are_withheld_before_they_are_sent_and_streams_released_in_between() -> None:
    for can_migrate in (True, False):
        for events in product(SessionEvent, repeat=5):
            move = SessionMove(can_migrate=can_migrate)
            effects = [effect for event in events for effect in move.on(event)]
            for before, after in pairwise([Effect.WITHHOLD, Effect.RELEASE_STREAMS, Effect.SEND_ACKS]):
                assert after not in effects or effects.index(before) < effects.index(after)
            assert effects.count(Effect.CLOSE) + effects.count(Effect.SEND_RESTART) <= 1


def test_a_shard_moves_step_by_step_and_its_sessions_learn_of_it() -> None:
    move = ShardMove("b")
    events = [ShardEvent.READY, ShardEvent.STOPPED, ShardEvent.ENDED, ShardEvent.CLOSED, ShardEvent.TAKEN]
    told = [move.on(event) for event in [*events, ShardEvent.LEFT]]
    assert told == [
        None,
        SessionEvent.MOVE,
        None,
        SessionEvent.SEAL,
        SessionEvent.TAKEN,
        SessionEvent.TIMEOUT,
    ]
    assert move.step is ShardStep.DONE


def test_every_step_that_waits_for_others_has_a_time_out_that_leads_on() -> None:
    for step, seconds in SHARD_SECONDS_MAX.items():
        assert 0 < seconds <= 60
        assert ShardEvent.TIMEOUT in SHARD[step]
    for step in (ShardStep.ASKING, ShardStep.ENDING, ShardStep.RELEASED, ShardStep.TAKEN):
        assert step in SHARD_SECONDS_MAX


def test_an_event_out_of_order_changes_nothing() -> None:
    for step, event in product(ShardStep, ShardEvent):
        move = ShardMove()
        move.step = step
        if event not in SHARD[step]:
            assert move.on(event) is None
            assert move.step is step


# One worker: what a session sends while the shard leaves.

SUCCESSOR = Address("successor", 7100)


async def greet(peer: Peer, version: str = MIGRATING_VERSION) -> Peer:
    peer.send(Hello(version, b"", announce_window("test"), "source"))
    assert isinstance(await peer.frame(), Ok)
    return peer


async def frame_of(peer: Peer, kind: type[object]) -> object:
    while not isinstance(frame := await peer.frame(), kind):
        pass
    return frame


async def close_journal(running: RunningServer) -> None:
    await running.programs.seal()
    running.committer.stop()
    running.journal.close()
    running.crashed = True  # the next `serve` need not stop it


async def test_eos_while_migrating_releases_the_stream_which_stays_in_the_watermark(
    serve: Serve, connect: Connect
) -> None:
    running = await serve()
    peer = await greet(await connect(running, hello=False))
    await peer.open(1)
    peer.send(Message(1, 1, 0, b"", b"a"))
    await until_stored(running, 1)
    leaving = asyncio.create_task(running.programs.send_away(SUCCESSOR, SECONDS_MAX))
    assert await frame_of(peer, Migrate) == Migrate("successor", 7100)
    await quiet()
    assert not leaving.done()
    peer.send(Message(1, 2, 0, b"", b"b"), EndOfStream(1))
    await leaving
    await close_journal(running)
    running = await serve()
    stream = running.sources.joined_by_program("source", None).streams[1]
    assert (stream.standing, stream.last_id) == (Standing.ACTIVE, 2)
    assert [event.event_id for event in running.events()] == [1, 2]


async def test_acknowledgements_come_after_the_take_over_and_then_an_empty_one(
    running: RunningServer, connect: Connect
) -> None:
    peer = await greet(await connect(running, hello=False))
    await peer.open(1)
    leaving = asyncio.create_task(running.programs.send_away(SUCCESSOR, SECONDS_MAX))
    await frame_of(peer, Migrate)
    peer.send(Message(1, 1, 0, b"", b"a"), EndOfStream(1))
    await leaving
    await close_journal(running)
    with pytest.raises(TimeoutError):
        await peer.frame(0.1)
    running.programs.tell(SessionEvent.TAKEN)
    assert await peer.frame() == Ack(0, (Acked(1, 1),))
    assert await peer.frame() == Ack(0)
    assert len(running.programs.sessions) == 1
    peer.send(MigrateAck())
    assert await peer.frames_until_closed() == []
    await eventually(lambda: len(running.programs.sessions) == 0)


async def test_what_waits_for_pipelines_is_not_acknowledged(running: RunningServer, connect: Connect) -> None:
    """Nobody waits for pipelines: the program sends it again, and the next worker drops what it has."""
    completion(running).hold({})
    peer = await greet(await connect(running, hello=False))
    await peer.open(1)
    peer.send(Message(1, 1, 0, b"", b"a"))
    await until_stored(running, 1)
    leaving = asyncio.create_task(running.programs.send_away(SUCCESSOR, SECONDS_MAX))
    await frame_of(peer, Migrate)
    peer.send(EndOfStream(1))
    await leaving
    await close_journal(running)
    running.programs.tell(SessionEvent.TAKEN)
    assert await peer.frame() == Ack(0)


async def test_a_program_that_does_not_end_its_streams_is_waited_for_only_so_long(
    running: RunningServer, connect: Connect
) -> None:
    peer = await greet(await connect(running, hello=False))
    await peer.open(1)
    await running.programs.send_away(SUCCESSOR, 0.05)
    peer.send(Message(1, 1, 0, b"", b"a"))
    await until_stored(running, 1)
    await close_journal(running)
    peer.send(Message(1, 2, 0, b"", b"too late"))
    running.programs.tell(SessionEvent.TAKEN)
    await frame_of(peer, Migrate)
    assert await peer.frame() == Ack(0, (Acked(1, 1),))
    assert await peer.frame() == Ack(0)


async def test_a_program_without_migrate_gets_its_acknowledgements_and_restart_after_the_take_over(
    running: RunningServer, connect: Connect
) -> None:
    peer = await greet(await connect(running, hello=False), "0.0.1")
    await peer.open(1)
    await running.programs.send_away(SUCCESSOR, SECONDS_MAX)
    peer.send(Message(1, 1, 0, b"", b"a"))
    await until_stored(running, 1)
    await close_journal(running)
    running.programs.tell(SessionEvent.TAKEN)
    frames = await peer.frames_until_closed()
    assert frames[-2:] == [Ack(0, (Acked(1, 1),)), Restart("successor:7100")]


async def test_programs_that_come_too_late_for_a_notice_are_closed_and_reconnect(
    running: RunningServer, connect: Connect
) -> None:
    """One has not sent its HELLO when the shard begins to move; another one has only begun its TLS handshake."""
    early = await connect(running, hello=False)
    await eventually(lambda: len(running.programs.sessions) == 1)
    await running.programs.send_away(SUCCESSOR, SECONDS_MAX)
    assert await early.frames_until_closed() == []
    late = SourceSession(running.sources, running.programs.sessions, ProgramAccess(Open(), b"", Refusals()), Outlet())
    assert not running.programs.sessions.opened(late, "127.0.0.1")


async def test_a_program_without_migrate_that_ends_its_stream_meanwhile_has_ended_it(
    running: RunningServer, connect: Connect
) -> None:
    """It does not know of the move: its EOS_MESSAGE is no answer to it."""
    peer, slow = (
        await greet(await connect(running, hello=False), "0.0.1"),
        await greet(await connect(running, hello=False)),
    )
    await peer.open(1)
    await slow.open(2)
    leaving = asyncio.create_task(running.programs.send_away(SUCCESSOR, SECONDS_MAX))
    await eventually(lambda: all(one._move.is_moving for one in running.programs.sessions))
    peer.send(Message(1, 1, 0, b"", b"a"), EndOfStream(1))
    await eventually(lambda: standing(running, 1) is not Standing.ACTIVE)
    slow.send(EndOfStream(2))
    await leaving
    await close_journal(running)
    running.programs.tell(SessionEvent.TAKEN)
    assert (await peer.frames_until_closed())[-2:] == [Ack(0, (Acked(1, 1),)), Restart("successor:7100")]
    assert standing(running, 1) is Standing.ENDED
    assert standing(running, 2) is Standing.ACTIVE


async def test_an_end_that_comes_after_the_journal_was_closed_is_not_acknowledged(
    running: RunningServer, connect: Connect
) -> None:
    peer = await greet(await connect(running, hello=False), "0.0.1")
    await peer.open(1)
    await running.programs.send_away(SUCCESSOR, SECONDS_MAX)
    peer.send(Message(1, 1, 0, b"", b"a"))
    await until_stored(running, 1)
    await close_journal(running)
    (session,) = running.programs.sessions
    session.receive(EndOfStream(1))
    running.programs.tell(SessionEvent.TAKEN)
    assert (await peer.frames_until_closed())[-1] == Restart("successor:7100")
    assert not session._withheld


def standing(running: RunningServer, stream: int) -> Standing:
    return running.sources.log("source").streams[stream].standing


class Outlet:
    """Of a program that reads nothing."""

    peer = "late"
    is_blocked = False

    def write(self, data: bytes) -> bool:
        return True

    def set_deadline(self, seconds: float, action: object) -> None:
        pass

    def cancel_deadline(self) -> None:
        pass

    def end(self, *, lingers: bool = False) -> None:
        pass


async def test_a_notify_that_crosses_with_migrate_is_refused(running: RunningServer, connect: Connect) -> None:
    peer = await greet(await connect(running, hello=False))
    await running.programs.send_away(SUCCESSOR, SECONDS_MAX)
    peer.send(Notify(1, "one"))
    assert await frame_of(peer, NotifyAck) == NotifyAck(False, 1, 0)


async def test_a_move_that_is_abandoned_closes_connections_without_an_error(
    running: RunningServer, connect: Connect
) -> None:
    peer = await greet(await connect(running, hello=False))
    await running.programs.send_away(SUCCESSOR, SECONDS_MAX)
    await close_journal(running)
    running.programs.tell(SessionEvent.ABANDONED)
    assert await peer.frames_until_closed() == [Migrate("successor", 7100)]
