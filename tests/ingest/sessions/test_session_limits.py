"""Limits on sessions: in total, per address and per principal; and which sessions make room."""

from penstock.access.principals import Access, Grant, Principal, Role, digest
from penstock.protocol.connector import Ack, EndOfStream, Hello, Message, Ok
from tests.ingest.completion_scene import completion
from tests.ingest.conftest import Connect, Peer, Serve
from tests.support.waiting import eventually

ELSEWHERE = "127.0.0.2"
TENANT, OTHER = b"token-of-a-tenant-here", b"token-of-another-one-"


async def is_let_in(peer: Peer, cookie: bytes = b"") -> bool:
    peer.send(Hello("0.0.1", cookie, "test", "source"))
    return isinstance(await peer.frame(), Ok)


async def test_the_session_that_has_been_idle_longest_makes_room(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=3, address_sessions_max=3)
    busy, first, second = [await connect(running) for _ in range(3)]
    await busy.open(1)
    third = await connect(running)
    assert await first.frames_until_closed() == [], "without an ERROR: the program connects again"
    await connect(running)
    assert await second.frames_until_closed() == []
    assert await third.open(3)
    assert len(running.sessions) == 3
    assert running.sources.counters.closed_for_room == 2
    assert running.sources.counters.sessions_refused == 0


async def test_a_session_with_an_open_stream_or_a_pending_ack_is_not_evicted(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=2, address_sessions_max=2)
    completion(running).hold({})
    streaming, waiting = await connect(running), await connect(running)
    await streaming.open(1)
    await waiting.open(2)
    waiting.send(Message(2, 1, 0, b"", b"event"), EndOfStream(2))
    await eventually(lambda: running.events())
    refused = await connect(running, hello=False)
    assert await refused.frames_until_closed() == []
    assert running.sources.counters.sessions_refused == 1
    assert len(running.sessions) == 2


async def test_a_session_whose_streams_have_ended_makes_room(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=1)
    done = await connect(running)
    await done.open(1)
    done.send(Message(1, 1, 0, b"", b"event"), EndOfStream(1))
    await eventually(lambda: running.sources.counters.streams_ended == 1)
    await connect(running)
    assert all(isinstance(frame, Ack) for frame in await done.frames_until_closed())


async def test_an_address_gets_at_most_four_fifths_of_the_sessions(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=5)
    peers = [await connect(running) for _ in range(4)]
    for number, peer in enumerate(peers):
        await peer.open(number)
    fifth = await connect(running, hello=False)
    assert await fifth.frames_until_closed() == []
    elsewhere = await connect(running, hello=False, address=ELSEWHERE)
    assert await is_let_in(elsewhere)
    assert len(running.sessions) == 5


async def test_a_principal_gets_at_most_four_fifths_of_the_sessions_from_any_address(
    serve: Serve, connect: Connect
) -> None:
    grants = [
        Grant(Principal(name, Role.WRITE), digest(token.decode())) for name, token in (("a", TENANT), ("b", OTHER))
    ]
    running = await serve(sessions_max=5, access=Access.of(grants))
    peers = []
    for number in range(4):
        peers.append(await connect(running, hello=False, address=f"127.0.0.{2 + number}"))
        assert await is_let_in(peers[-1], TENANT)
        await peers[-1].open(number)
    fifth = await connect(running, hello=False, address="127.0.0.9")
    fifth.send(Hello("0.0.1", TENANT, "test", "new"))
    assert await fifth.frames_until_closed() == []
    assert running.sources.get("new") is None
    other = await connect(running, hello=False, address="127.0.0.9")
    assert await is_let_in(other, OTHER)
    peers[0].send(EndOfStream(0))
    await eventually(lambda: running.sources.counters.streams_ended == 1)
    again = await connect(running, hello=False, address="127.0.0.9")
    assert await is_let_in(again, TENANT), "one of its own made room"
    assert not any(isinstance(frame, Ok) for frame in await peers[0].frames_until_closed())


async def test_sessions_of_one_address_that_have_not_sent_hello_are_limited(serve: Serve, connect: Connect) -> None:
    running = await serve(address_joining_max=2)
    first, second = [await connect(running, hello=False) for _ in range(2)]
    await eventually(lambda: len(running.sessions) == 2)
    elsewhere = await connect(running, hello=False, address=ELSEWHERE)
    await eventually(lambda: len(running.sessions) == 3)
    third = await connect(running, hello=False)
    assert await first.frames_until_closed() == [], "the oldest of the same address"
    assert [await is_let_in(peer) for peer in (second, third, elsewhere)] == [True, True, True]
