"""The registry of a source's streams in the journal."""

import asyncio

import pytest

from penstock.core.errors import Damaged
from penstock.ingest import stored_claims, stream_claims
from penstock.ingest.stored_claims import StoredClaims, claims_segment
from penstock.ingest.stream_claims import (
    Begin,
    Claim,
    ClaimId,
    Done,
    Full,
    Granted,
    Outdated,
    Refused,
    Relinquish,
    Replaced,
)
from penstock.protocol.connector.frames import NOTHING_YET
from tests.ingest.conftest import RunningServer, Serve


async def registry(running: RunningServer, streams_max: int = 1000) -> StoredClaims:
    return await StoredClaims("orders", running.store, running.sources.durability, streams_max).open()


def claim(stream_id: int, partition: int, number: int, term: int = 1) -> Claim:
    return Claim(stream_id, ClaimId(partition, term, number))


@pytest.mark.parametrize("snapshot_bytes", [1 << 20, 0], ids=["commands", "snapshots"])
async def test_a_restart_forgets_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch, snapshot_bytes: int) -> None:
    monkeypatch.setattr(stored_claims, "SNAPSHOT_BYTES", snapshot_bytes)
    monkeypatch.setattr(stored_claims, "SNAPSHOT_BYTES_PER_STREAM", 0 if not snapshot_bytes else 256)
    running = await serve()
    claims = await registry(running)
    for number in range(1, 30):
        assert await claims.apply([claim(number, 0, number)]) == [Granted(NOTHING_YET)]
    assert await claims.apply([Relinquish(7, ClaimId(0, 1, 7), 1, 70, True)]) == [Done()]
    segment = running.store.info(claims_segment("orders"))
    assert (segment.start > 0) == (not snapshot_bytes)
    await running.crash()
    claims = await registry(await serve())
    assert len(claims) == 29
    assert await claims.apply([claim(7, 1, 1), claim(8, 1, 2), claim(30, 0, 29)]) == [
        Granted(70),
        Refused(ClaimId(0, 1, 8)),
        Outdated(29),
    ]


async def test_a_snapshot_is_also_due_if_every_process_writes_little(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_claims, "SNAPSHOT_BYTES", 200)
    monkeypatch.setattr(stored_claims, "SNAPSHOT_BYTES_PER_STREAM", 0)
    starts = []
    for number in range(1, 31):  # each of them opens it again, and claims the same stream once
        await (await registry(running)).apply([claim(1, 0, number)])
        starts.append(running.store.info(claims_segment("orders")).start)
    assert 1 < len({*starts}) < 10


async def test_a_successor_gets_what_its_predecessors_had(running: RunningServer) -> None:
    claims = await registry(running)
    await claims.apply([claim(1, 1, 1), claim(2, 1, 2), claim(3, 0, 1), Begin(1, 2)])
    assert await claims.held(1, 2) == {1: ClaimId(1, 1, 1), 2: ClaimId(1, 1, 2)}
    assert await claims.held(1, 1) == Replaced(2)


async def test_what_predecessors_had_is_reported_only_by_a_process_that_can_write(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was replaced as the registry would miss streams."""
    claims = await registry(running)
    for _ in range(2):
        written = running.store.length(claims_segment("orders"))
        await claims.held(1, 2)
        assert running.store.length(claims_segment("orders")) > written
    never = asyncio.Event()
    monkeypatch.setattr(claims, "_durable", never.wait)
    asking = asyncio.create_task(claims.held(1, 2))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    never.set()
    await asking


async def test_other_tasks_run_while_all_streams_are_looked_at_for_a_successor(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_claims, "LOOKS", 1)
    claims = await registry(running)
    await claims.apply([claim(number, 1, number) for number in range(1, 201)])
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    monkeypatch.setattr(claims, "_durable", durable_at_once)
    assert {*await claims.held(1, 2)} == {*range(1, 201)}
    other.cancel()
    assert turns >= 200


async def test_an_owner_that_is_replaced_while_its_streams_are_looked_for_is_refused(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the rest of its look."""
    monkeypatch.setattr(stream_claims, "LOOKS", 1)
    claims = await registry(running)
    await claims.apply([claim(number, 1, number) for number in range(1, 201)])
    monkeypatch.setattr(claims, "_durable", durable_at_once)
    replaced = asyncio.create_task(claims.held(1, 2))
    await asyncio.sleep(0)
    successor = asyncio.create_task(claims.held(1, 3))
    assert await replaced == Replaced(3)
    assert not successor.done()
    assert {*await successor} == {*range(1, 201)}


async def durable_at_once() -> None:
    pass


async def test_the_number_of_streams_is_limited(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    claims = await registry(running, streams_max=1)
    assert await claims.apply([claim(1, 0, 1), claim(2, 0, 2)]) == [Granted(NOTHING_YET), Full(1)]
    await claims.apply([claim(3, 0, 2)])
    assert caplog.text.count("source 'orders' has 1 streams already") == 1
    assert await claims.apply([claim(1, 0, 3)]) == [Granted(NOTHING_YET)]


async def test_a_registry_that_ends_inside_an_entry_is_damaged(running: RunningServer) -> None:
    await (await registry(running)).apply([claim(1, 0, 1)])
    running.store.append(claims_segment("orders"), [b"\0\0\0\x09x"])
    await running.sources.durability.caught_up()
    with pytest.raises(Damaged, match="ends inside an entry"):
        await registry(running)


async def test_others_continue_while_a_large_registry_is_read(running: RunningServer) -> None:
    await (await registry(running)).apply([claim(number, 0, number) for number in range(1, 1001)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    assert len(await registry(running)) == 1000
    other.cancel()
    assert turns > 1
