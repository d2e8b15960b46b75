"""Messages that trickle in while their acknowledgements wait for pipelines are stored together, some milliseconds
later, or when a pipeline asks for its next epoch; nobody else waits.
"""

import asyncio

import pytest

from penstock.ingest.sessions import connection
from penstock.ingest.sessions.connection import Connection
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import encode
from tests.ingest.completion_scene import (
    Listener,
    blocked_source,
    completion,
    message,
    record_ends,
    release,
    until_stored,
)
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.support.waiting import eventually

ONE_SEGMENT = SourceSettings(segments=1)
SEGMENT = "connector/source/0"


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is gathered is stored because time has passed."""
    monkeypatch.setattr(connection, "_GATHER_SECONDS", 1000.0)


async def trickle(running: RunningServer, source: Listener, numbers: range) -> Connection:
    """One by one, each after the one before has arrived."""
    (arriving,) = running.connections
    for number in numbers:
        before = arriving._gathered_bytes
        source.send([(1, number)])
        await eventually(lambda before=before: arriving._gathered_bytes > before)  # type: ignore[misc]
    return arriving


@pytest.mark.usefixtures("for_long")
async def test_what_trickles_in_after_a_message_is_stored_with_one_record(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 0)])
    await until_stored(running, 1)
    arriving = await trickle(running, source, range(1, 10))
    assert len(running.events()) == 1
    arriving._end_gathering()  # as its timer does
    await until_stored(running, 10)
    assert len(record_ends(running, SEGMENT)) == 3, "that of the mark that the stream has started is the first"
    await release(running, source, {1: 9})


@pytest.mark.usefixtures("for_long")
async def test_what_was_gathered_is_stored_before_an_epoch_is_decided(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 0)])
    await until_stored(running, 1)
    sessions = running.programs.sessions
    assert not sessions.store_gathered(), "nothing has come since"
    await trickle(running, source, range(1, 5))
    assert sessions.store_gathered()
    await until_stored(running, 5)
    assert len(record_ends(running, SEGMENT)) == 3, "one for the mark, one for the first, and one for all others"
    await trickle(running, source, range(5, 7))
    assert len(running.events()) == 5, "gathering has gone on"
    (arriving,) = running.connections
    source.peer.writer.transport.abort()
    await until_stored(running, 7)
    await eventually(lambda: arriving not in sessions.gathering)


async def test_it_takes_no_longer_than_it_should(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    for number in range(100):
        source.send([(1, number)])
        await asyncio.sleep(0)
    await until_stored(running, 100)
    assert [event.event_id for event in running.events()] == [*range(100)]


@pytest.mark.usefixtures("for_long")
async def test_without_pipelines_each_message_is_stored_at_once(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = Listener(await connect(running))
    await source.open(1)
    for number in range(5):
        source.send([(1, number)])
        await source.until(lambda number=number: source.acked == {1: number})  # type: ignore[misc]


@pytest.mark.usefixtures("for_long")
async def test_a_program_that_has_spent_half_of_its_credits_is_not_delayed(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 0)])
    await until_stored(running, 1)
    (session,) = running.sessions
    count = session.credits // 2 + 1
    source.send([(1, number) for number in range(1, count + 1)])
    await until_stored(running, count + 1)


@pytest.mark.usefixtures("for_long")
async def test_what_does_not_fit_into_the_receive_buffer_is_not_gathered(serve: Serve, connect: Connect) -> None:
    """The last bytes of a frame that is as large as the buffer."""
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 0)])
    await until_stored(running, 1)
    (arriving,) = running.connections
    arriving._gather_bytes_max = 1 << 30
    large = encode(message(1, 1, size=3 << 20))
    for part in (large[:-7], large[-7:]):
        source.peer.writer.write(part)
        await source.peer.writer.drain()
    await until_stored(running, 2)


@pytest.mark.usefixtures("for_long")
@pytest.mark.parametrize("ending", ["half-closed", "closed", "reset"])
async def test_what_was_gathered_is_stored_when_the_connection_ends(
    serve: Serve, connect: Connect, ending: str
) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 0)])
    await until_stored(running, 1)
    await trickle(running, source, range(1, 5))
    match ending:
        case "half-closed":
            source.peer.writer.write_eof()
        case "closed":
            source.peer.writer.close()
        case "reset":
            source.peer.writer.transport.abort()
    await until_stored(running, 5)
    assert completion(running).waits
