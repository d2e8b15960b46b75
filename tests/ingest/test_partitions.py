"""Partitions of a source in two shards, in one event loop: real journals and sockets, and requests that can fail."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.address import Address
from penstock.core.errors import Unavailable
from penstock.ingest import partitions
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.owners import StreamKey
from penstock.ingest.partitions import PartitionedSources
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.ingest.settings import DeclaredSource, ProgramServerSettings, SourceSettings
from penstock.protocol.api.shards import Claims, Declared, HeldBy
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    NOTHING_YET,
    Ack,
    EndOfStream,
    Error,
    Frame,
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
from penstock.store.file_journal import Committer
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore
from tests.ingest.conftest import SMALL, CrashingJournal, Peer, RunningServer
from tests.ingest.stored_events import parse
from tests.support.waiting import SECONDS_MAX, eventually

SOURCE = "orders"
WHOLE = "plain"


@dataclass
class Shard:
    """One that can be killed; the next one finds what it has stored."""

    running: RunningServer
    partitions: PartitionedSources

    async def kill(self) -> None:
        await self.partitions.stop()
        await self.running.crash()

    async def stop(self) -> None:
        await self.partitions.stop()
        await self.running.stop()


@dataclass
class Cluster:
    """Partition 0 is in shard 0, partition 1 in shard 1. Implements the wire, too."""

    folder: Path
    shards: dict[int, Shard] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    declared: dict[str, DeclaredSource] = field(default_factory=dict)
    """By an application in another shard."""
    _terms: Counter[int] = field(default_factory=Counter)

    async def start(self, number: int, *, holds: bool = False) -> Shard:
        """`holds`: a pipeline reads the partition, and has completed nothing of it."""
        journal = CrashingJournal(RealFiles(self.folder / str(number)), SMALL)
        store, committer = SegmentStore(journal, SMALL), Committer(journal, SMALL.idle_proof_seconds)
        committer.start()
        durability = Durability(journal, asyncio.get_running_loop(), lambda: None)
        sources = SourceCatalog(store, durability, ProgramServerSettings(port=0))
        if holds:
            sources.completion(SOURCE if not number else f"{SOURCE}#{number}").hold({})
        programs = ProgramServer(sources)
        self._terms[number] += 1
        found = PartitionedSources(sources, Directory(self, number), self, self._terms[number])
        running = RunningServer(programs, sources, store, await programs.start(), committer, journal)
        self.shards[number] = Shard(running, found)
        await found.serve(SOURCE)
        found.start()
        return self.shards[number]

    async def kill(self, number: int) -> None:
        await self.shards.pop(number).kill()

    async def ask(self, shard: int, path: str, request: Any, reply: Any, wait_seconds: float = 0.0) -> Any:
        self.asked[path] += 1
        if shard not in self.shards:
            raise Unavailable(f"no worker serves shard {shard}")
        target, body = self.shards[shard].partitions, msgspec.json.encode(request)
        if path == "/shard/claims":
            answer: Any = await target.claims(msgspec.json.decode(body, type=Claims))
        else:
            answer = await target.held(msgspec.json.decode(body, type=HeldBy))
        return msgspec.json.decode(msgspec.json.encode(answer), type=reply)

    async def close(self) -> None:
        for shard in self.shards.values():
            await shard.stop()

    def stored(self) -> list[list[tuple[int, int]]]:
        """By partition: streams and ids, in order."""
        found = []
        for number, shard in sorted(self.shards.items()):
            name = SOURCE if not number else f"{SOURCE}#{number}"
            found.append([(one.stream_id, one.event_id) for one in parse(shard.running.stored(name)) if one.payload])
        return found


@dataclass
class Directory:
    cluster: Cluster
    shard: int

    async def placed_partitions(self, source: str) -> list[int]:
        return [0, 1] if source == SOURCE else [1] if source == WHOLE else []

    async def published_sources(self) -> list[str]:
        return [*self.cluster.declared]

    async def declared_source(self, source: str, quota_bytes: int | None) -> DeclaredSource | None:
        self.cluster.asked[source] += 1
        return self.cluster.declared.get(source)

    async def connector_of(self, shard: int) -> str:
        found = self.cluster.shards.get(shard)
        return "" if found is None else f"127.0.0.1:{found.running.port}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    for number in (0, 1):
        await made.start(number)
    yield made
    await made.close()


@pytest.fixture
async def peers() -> AsyncIterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for one in made:
        await one.close()


async def connect(shard: Shard, peers: list[Peer], version: str = "0.0.1") -> Peer:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", shard.running.port))
    peers.append(peer)
    peer.send(Hello(version, b"", announce_window("test"), SOURCE))
    assert isinstance(await peer.frame(), Ok)
    return peer


async def next_of(peer: Peer, *kinds: type[Frame]) -> Frame:
    while not isinstance(frame := await peer.frame(), kinds):
        pass
    return frame


async def notify(peer: Peer, stream_id: int) -> NotifyAck:
    peer.send(Notify(stream_id, f"stream {stream_id}"))
    answer = await next_of(peer, NotifyAck)
    assert isinstance(answer, NotifyAck)
    return answer


async def opened(peer: Peer, stream_id: int) -> int:
    """Asks until the stream is opened; returns the point of reference."""
    while not (answer := await notify(peer, stream_id)).success:
        await next_of(peer, Ack)
    return answer.point_of_reference


async def send(peer: Peer, stream_id: int, *ids: int) -> None:
    """Returns when they are acknowledged."""
    peer.send(*(Message(stream_id, id_, 1, b"", b"%d" % id_) for id_ in ids))
    await acknowledged(peer, stream_id, ids[-1])


async def acknowledged(peer: Peer, stream_id: int, last_id: int) -> None:
    while not (isinstance(frame := await peer.frame(), Ack) and (stream_id, last_id) in frame.acked):
        pass


def completed(shard: Shard, number: int) -> None:
    """Every pipeline has completed what is stored."""
    name = SOURCE if not number else f"{SOURCE}#{number}"
    log, completion = shard.running.sources.log(name), shard.running.sources.completion(name)
    completion.advance({segment: shard.running.store.length(segment) for segment in log.segments})


async def test_each_partition_stores_its_own_streams(cluster: Cluster, peers: list[Peer]) -> None:
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    assert await opened(first, 1) == await opened(second, 2) == NOTHING_YET
    await send(first, 1, 1, 2)
    await send(second, 2, 1, 2)
    assert cluster.stored() == [[(1, 1), (1, 2)], [(2, 1), (2, 2)]]


async def test_a_stream_that_is_active_in_another_partition_is_refused(cluster: Cluster, peers: list[Peer]) -> None:
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    await opened(first, 1)
    await send(first, 1, 1)
    for _ in range(3):
        assert not (await notify(second, 1)).success
    await send(first, 1, 2)
    assert await opened(second, 2) == NOTHING_YET


async def test_an_ended_stream_is_taken_over_with_the_point_of_reference(cluster: Cluster, peers: list[Peer]) -> None:
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    for rounds in range(3):  # there and back
        assert await opened(first, 1) == (20 * rounds or NOTHING_YET)
        await send(first, 1, 20 * rounds + 10)
        first.send(EndOfStream(1))
        assert await opened(second, 1) == 20 * rounds + 10
        await send(second, 1, 20 * rounds + 20)
        second.send(EndOfStream(1))
    assert cluster.stored() == [[(1, 10), (1, 30), (1, 50)], [(1, 20), (1, 40), (1, 60)]]


async def test_an_ended_stream_stays_until_all_pipelines_have_completed_it(cluster: Cluster, peers: list[Peer]) -> None:
    cluster.shards[0].running.sources.completion(SOURCE).hold({})
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    await opened(first, 1)
    first.send(Message(1, 7, 1, b"", b"x"), EndOfStream(1))
    await eventually(lambda: cluster.stored()[0] == [(1, 7)])
    assert not (await notify(second, 1)).success
    completed(cluster.shards[0], 0)
    await acknowledged(first, 1, 7)
    assert await opened(second, 1) == 7


async def test_a_stream_whose_session_has_gone_stays_in_its_partition(cluster: Cluster, peers: list[Peer]) -> None:
    first = await connect(cluster.shards[0], peers)
    await opened(first, 1)
    await send(first, 1, 1, 2)
    await first.close()
    here = cluster.shards[0].running.port
    while True:  # until the registry knows that it is free
        old = await connect(cluster.shards[1], peers)
        old.send(Notify(1, "one"))
        frames = [await next_of(old, NotifyAck), await next_of(old, Restart, Ack)]
        if isinstance(frames[1], Restart):
            break
    assert frames == [NotifyAck(False, 1, 0), Restart(f"127.0.0.1:{here}")]
    new = await connect(cluster.shards[1], peers, MIGRATING_VERSION)
    new.send(Notify(1, "one"))
    assert await next_of(new, Migrate) == Migrate("127.0.0.1", here)
    again = await connect(cluster.shards[0], peers)
    assert await opened(again, 1) == 2
    new.send(MigrateAck())
    assert not [one for one in await new.frames_until_closed() if not isinstance(one, NotifyAck | Ack)]


async def test_a_program_with_streams_here_is_not_sent_away(cluster: Cluster, peers: list[Peer]) -> None:
    first = await connect(cluster.shards[0], peers)
    await opened(first, 1)
    await send(first, 1, 1)
    await first.close()
    second = await connect(cluster.shards[1], peers, MIGRATING_VERSION)
    await opened(second, 2)
    for _ in range(3):
        assert not (await notify(second, 1)).success
    await send(second, 2, 1)


@pytest.mark.parametrize("version", [MIGRATING_VERSION, "0.0.1"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["old first", "new first"])
async def test_a_new_stream_goes_with_the_program_to_the_partition_of_its_old_one(
    cluster: Cluster, peers: list[Peer], order: tuple[int, int], version: str
) -> None:
    there = await connect(cluster.shards[1], peers)
    await opened(there, 1)
    await send(there, 1, 1)
    await there.close()
    registry = cluster.shards[0].partitions._registries[SOURCE]._claims
    await eventually(lambda: registry.holder(1) is None)
    astray = await connect(cluster.shards[0], peers, version)
    astray.send(*(Notify(number, "") for number in order))
    assert isinstance(await next_of(astray, Migrate, Restart), Migrate | Restart)
    await astray.close()
    again = await connect(cluster.shards[1], peers)
    assert (await opened(again, 1), await opened(again, 2)) == (1, NOTHING_YET)
    assert not cluster.shards[0].running.sources.log(SOURCE).streams


async def test_streams_of_a_killed_shard_are_free_when_it_is_back(cluster: Cluster, peers: list[Peer]) -> None:
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    await opened(second, 1)
    await send(second, 1, 1)
    await cluster.kill(1)
    assert not (await notify(first, 1)).success  # nobody knows what the shard has stored
    await cluster.start(1)
    again = await connect(cluster.shards[1], peers)
    assert await opened(again, 1) == 1
    await send(again, 1, 2)
    again.send(EndOfStream(1))
    assert await opened(first, 1) == 2


async def test_an_ended_stream_of_a_killed_shard_is_free_for_all(cluster: Cluster, peers: list[Peer]) -> None:
    """Also without any program that connects to the shard."""
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    cluster.shards[1].running.sources.completion(f"{SOURCE}#1").hold({})
    await opened(second, 1)
    second.send(Message(1, 5, 1, b"", b"x"), EndOfStream(1))
    await eventually(lambda: cluster.stored()[1] == [(1, 5)])
    await cluster.kill(1)
    await cluster.start(1)
    assert await opened(first, 1) == 5


async def test_an_ended_stream_of_a_killed_shard_stays_until_all_pipelines_have_completed_it(
    cluster: Cluster, peers: list[Peer]
) -> None:
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    cluster.shards[1].running.sources.completion(f"{SOURCE}#1").hold({})
    for stream_id in (1, 2):
        await opened(second, stream_id)
        second.send(Message(stream_id, 5, 1, b"", b"x"), EndOfStream(stream_id))
    await eventually(lambda: len(cluster.stored()[1]) == 2)
    await cluster.kill(1)
    registry = cluster.shards[0].partitions._registries[SOURCE]._claims
    holders = [registry.holder(1), registry.holder(2)]
    shard = await cluster.start(1, holds=True)
    await eventually(lambda: registry.holder(1) not in (None, holders[0]) and registry.holder(2) != holders[1])
    assert not (await notify(first, 1)).success
    again = await connect(shard, peers)
    assert await opened(again, 2) == 5  # where it was
    completed(shard, 1)
    assert await opened(first, 1) == 5
    assert not (await notify(first, 2)).success


async def test_a_program_with_too_many_streams_gets_the_reason(
    cluster: Cluster, peers: list[Peer], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.shards[0].partitions._registries[SOURCE]._streams_max = 2
    first, second = [await connect(cluster.shards[number], peers) for number in (0, 1)]
    await opened(first, 1)
    await opened(second, 2)
    for _ in range(2):
        second = await connect(cluster.shards[1], peers)
        second.send(Notify(3, ""))
        error = await next_of(second, Error)
        assert isinstance(error, Error)
        assert "this source has had 2 streams already (streams_per_source_max)" in error.text
    assert caplog.text.count("source 'orders' has 2 streams already") == 1
    await send(first, 1, 1)


async def test_streams_wait_for_the_registry_and_are_refused_in_the_end(
    cluster: Cluster, peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = await connect(cluster.shards[1], peers)
    await opened(second, 1)
    await cluster.kill(0)
    await send(second, 1, 1)  # what is open stays open
    second.send(Notify(2, "two"))
    await eventually(lambda: cluster.shards[1].partitions.problems)
    assert "streams of source 'orders' wait for its registry" in cluster.shards[1].partitions.problems[0]
    monkeypatch.setattr(partitions, "WAIT_SECONDS_MAX", 0.0)
    assert await next_of(second, NotifyAck) == NotifyAck(False, 2, 0)
    await cluster.start(0)
    assert await opened(second, 2) == NOTHING_YET
    await eventually(lambda: not cluster.shards[1].partitions.problems)
    other = await connect(cluster.shards[0], peers)
    assert not (await notify(other, 1)).success  # the registry has not forgotten
    assert not (await notify(other, 2)).success


@pytest.mark.parametrize("version", [MIGRATING_VERSION, "0.0.1"])
async def test_a_move_does_not_wait_for_streams_that_nobody_opens_any_more(
    cluster: Cluster, peers: list[Peer], version: str
) -> None:
    """As in a worker: what asks the registry stops before sources are sent away."""
    shard = cluster.shards[1]
    peer = await connect(shard, peers, version)
    await opened(peer, 1)
    await cluster.kill(0)
    await shard.partitions.stop()
    peer.send(Notify(2, "two"), Notify(3, "three"))
    (session,) = shard.running.sessions
    await eventually(lambda: len(session._streams) == 3)
    moving = asyncio.create_task(shard.running.programs.send_away(Address("127.0.0.1", 1), 1e6))
    refused = {(await next_of(peer, NotifyAck)) for _ in range(2)}
    assert refused == {NotifyAck(False, 2, 0), NotifyAck(False, 3, 0)}
    peer.send(EndOfStream(1))
    await asyncio.wait_for(moving, SECONDS_MAX)
    owners = shard.running.sources.registry
    assert [owners.owner(StreamKey(f"{SOURCE}#1", number)) for number in (2, 3)] == [None, None]
    assert not shard.partitions._partitions[SOURCE]._asking


def declared(disorder_us: int) -> DeclaredSource:
    return DeclaredSource(SourceSettings(max_disorder_us=disorder_us))


async def test_a_whole_source_has_the_settings_of_an_application_in_another_shard(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disorder(source: str = WHOLE) -> int:
        return cluster.shards[1].running.sources.settings_of(source).max_disorder_us

    cluster.declared = {WHOLE: declared(1)}
    partitions_ = cluster.shards[1].partitions
    for _ in range(3):
        await partitions_.know(WHOLE)  # as before each program joins
    assert (disorder(), cluster.asked[WHOLE]) == (1, 1)
    cluster.declared = {WHOLE: declared(2)}
    await partitions_.declared(Declared(source=WHOLE))
    assert disorder() == 2
    cluster.shards[1].running.sources.log(WHOLE)
    await cluster.shards[1].running.sources.durability.caught_up()
    await cluster.kill(1)
    cluster.declared = {WHOLE: declared(3)}
    await cluster.start(1)
    await eventually(lambda: disorder() == 3)  # without any program
    monkeypatch.setattr(partitions, "LOOK_SECONDS", 0.01)
    await cluster.kill(1)
    await cluster.start(1)
    await eventually(lambda: disorder() == 3)
    cluster.declared = {WHOLE: declared(4)}
    await eventually(lambda: disorder() == 4)
    with pytest.raises(Unavailable):
        await cluster.shards[0].partitions.declared(Declared(source=WHOLE))


async def test_the_first_partition_has_the_settings_of_an_application_in_another_shard(cluster: Cluster) -> None:
    sources, found = cluster.shards[0].running.sources, cluster.shards[0].partitions
    cluster.declared = {SOURCE: declared(1)}
    await found.declared(Declared(source=SOURCE))
    assert sources.settings_of(SOURCE).max_disorder_us == 1
    cluster.declared = {SOURCE: declared(2)}
    found.is_configured_here = lambda name: name == SOURCE
    await found.declared(Declared(source=SOURCE))
    assert sources.settings_of(SOURCE).max_disorder_us == 1


async def test_many_streams_at_once_need_few_requests(cluster: Cluster, peers: list[Peer]) -> None:
    second = await connect(cluster.shards[1], peers)
    second.send(*(Notify(number, "") for number in range(1, 501)))
    answers = [await next_of(second, NotifyAck) for _ in range(500)]
    assert all(isinstance(one, NotifyAck) and one.success for one in answers)
    assert cluster.asked["/shard/claims"] < 50
