"""A sink that sends RESTART with an address has moved there, and is followed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.connectors.sink_api import SinkLost
from penstock.protocol.connector import Restart
from tests.connectors.connector_protocol.scripted_sink import Peer, ScriptedSink, scripted_sink, soon
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.waiting import eventually


@pytest.fixture
async def elsewhere() -> AsyncIterator[ScriptedSink]:
    async with scripted_sink() as sink:
        yield sink


async def send_away(peer: Peer, to: str) -> None:
    await peer.send(Restart(to))
    peer.writer.close()


async def test_the_next_session_is_at_the_address_of_the_restart(
    scripted: ScriptedSink, elsewhere: ScriptedSink
) -> None:
    sink, peer = await scripted.opened()
    await send_away(peer, f"127.0.0.1:{elsewhere.port}")
    await eventually(lambda: sink.lost is not None)
    assert f"asks the worker to connect again, at '127.0.0.1:{elsewhere.port}'" in str(sink.lost)
    opening = asyncio.create_task(sink.open(b""))
    moved = await elsewhere.accept()
    await moved.greet()
    await soon(opening)
    epoch = FakeEpoch([b"a"], start=0, number=1, attempt=1)
    preparing = asyncio.create_task(sink.prepare(epoch))
    await moved.messages(1)
    await moved.vote()
    assert (await soon(preparing)).yes
    assert scripted.connections == 1
    await sink.close()


async def test_a_restart_in_the_middle_of_a_round_aborts_it_and_the_sink_is_followed(
    scripted: ScriptedSink, elsewhere: ScriptedSink
) -> None:
    """The vote is not known: what the sink lists at the new address is decided there, as after any lost connection."""
    sink, peer = await scripted.opened()
    epoch = FakeEpoch([b"a"], start=0, number=1, attempt=1)
    preparing = asyncio.create_task(sink.prepare(epoch))
    await peer.messages(1)
    await send_away(peer, f"127.0.0.1:{elsewhere.port}")
    with pytest.raises(SinkLost, match="asks the worker to connect again"):
        await soon(preparing)
    opening = asyncio.create_task(sink.open(b""))
    moved = await elsewhere.accept()
    await moved.greet(epoch.transaction_id)
    await soon(opening)
    assert await moved.decision() == (epoch.transaction_id, False)
    await sink.close()


async def test_if_nobody_answers_there_the_configured_address_is_used_again(
    scripted: ScriptedSink, elsewhere: ScriptedSink
) -> None:
    sink, peer = await scripted.opened()
    elsewhere.stop_listening()
    await send_away(peer, f"127.0.0.1:{elsewhere.port}")
    await eventually(lambda: sink.lost is not None)
    with pytest.raises(SinkLost, match=f"the sink at 127.0.0.1:{elsewhere.port} cannot be reached"):
        await sink.open(b"")
    opening = asyncio.create_task(sink.open(b""))
    back = await scripted.accept()
    await back.greet()
    await soon(opening)
    await sink.close()


@pytest.mark.parametrize("to", ["", "not an address:x"])
async def test_without_a_valid_address_it_is_where_it_was(scripted: ScriptedSink, to: str) -> None:
    sink, peer = await scripted.opened()
    await send_away(peer, to)
    await eventually(lambda: sink.lost is not None)
    opening = asyncio.create_task(sink.open(b""))
    again = await scripted.accept()
    await again.greet()
    await soon(opening)
    await sink.close()
