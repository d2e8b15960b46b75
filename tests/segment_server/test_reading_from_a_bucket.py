"""Readers of a journal in an object store that accepts connections and does not answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from penstock.bucket.stores import open_bucket
from penstock.protocol.segment import VERSIONED, Hello, ReadSegment, SegmentRead
from penstock.store.bucket_files import BucketFiles
from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_bucket import FaultyBucket, Objects
from penstock.testing.memory_files import MemoryFiles
from penstock.testing.seaweedfs import SeaweedFS
from tests.segment_server.conftest import Peer, Serve
from tests.store.small import commit, next_chapter, open_store
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.waiting import SECONDS_MAX, until

pytestmark = pytest.mark.process

CHAPTER_BYTES = 4 << 20
"""The index, at its end, is in another block of the cache than the first bytes."""
SETTINGS = StoreSettings(chapter_bytes=CHAPTER_BYTES, reserve_bytes=CHAPTER_BYTES)
COLD = [f"cold-{number}" for number in range(4)]


@pytest.fixture
def proxy(s3_url: str, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    with store_proxy(seaweedfs.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
        yield between
        between.reconnect()


def fill(files: BucketFiles) -> None:
    """Each segment in a chapter of its own."""
    store = SegmentStore(FileJournal(files, SETTINGS), SETTINGS)
    for name in ["warm", *COLD]:
        store.create(name)
        for _ in range(3):
            store.append(name, [name.encode().ljust(1 << 20)])
        commit(store)
        next_chapter(store)
    while files.maintain():
        pass
    store.journal.close()


async def connected(port: int) -> Peer:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port), VERSIONED)
    peer.send(Hello(17, 5))
    assert isinstance(await peer.reply(), Hello)
    return peer


@pytest.mark.parametrize("is_index_loaded", [True, False])
async def test_reads_from_the_cache_continue_while_others_wait_for_the_store(
    tmp_path: Path,
    s3_url: str,
    proxy: StoreProxy,
    serve: Serve,
    *,
    is_index_loaded: bool,
) -> None:
    fill(BucketFiles(open_bucket(s3_url), RealFiles(tmp_path / "another machine")))
    running = await serve(SETTINGS, files=lambda cache: BucketFiles(open_bucket(s3_url), RealFiles(cache)))
    running.store.read("warm", 0, 1)
    for name in COLD if is_index_loaded else ():
        running.store.locate(name, 0, 1)
    proxy.cut()
    before, waiting = proxy.requests["GET"], [await connected(running.port) for _ in range(2)]
    for number, name in enumerate(COLD):
        waiting[number // 2].send(ReadSegment(name, 0, 6, request_id=number))
    await asyncio.to_thread(until, lambda: proxy.requests["GET"] == before + len(COLD))
    reader = await connected(running.port)
    for request in range(10):
        reader.send(ReadSegment("warm", 0, 4, request_id=request))
        assert await reader.reply() == SegmentRead("warm", 0, False, False, b"warm", request)
    proxy.reconnect()
    for number, name in enumerate(COLD):
        reply = await waiting[number // 2].reply()
        assert reply == SegmentRead(name, 0, False, False, name.encode(), number)
    for peer in (reader, *waiting):
        await peer.close()


def fill_small(objects: Objects) -> None:
    """Each cold segment in a chapter of its own, and each chapter in one block of the cache."""
    files = BucketFiles(FaultyBucket(objects), MemoryFiles())
    store = open_store(files)
    for name in COLD:
        store.create(name)
        store.append(name, [name.encode()])
        commit(store)
        next_chapter(store)
    while files.maintain():
        pass
    store.journal.close()


@dataclass
class StuckBucket:
    """While `gate` is not set, nothing can be read."""

    objects: Objects
    gets: list[str] = field(default_factory=list)
    gate: Event = field(default_factory=Event)

    def open(self, cache: Path) -> BucketFiles:
        self.gate.set()
        client = FaultyBucket(self.objects)
        files = BucketFiles(client, RealFiles(cache))
        client.before_each = self._wait
        return files

    def _wait(self, request: str) -> None:
        if request.startswith("get"):
            self.gets.append(request)
            assert self.gate.wait(SECONDS_MAX)


@pytest.fixture
def stuck() -> Iterator[StuckBucket]:
    objects = Objects()
    fill_small(objects)
    stuck = StuckBucket(objects)
    yield stuck
    stuck.gate.set()


async def test_the_index_of_a_local_chapter_is_read_while_others_wait_for_the_store(
    stuck: StuckBucket, serve: Serve
) -> None:
    running = await serve(SETTINGS, files=stuck.open)
    store, chapter = running.store, running.store.journal.chapter
    store.create("local")
    store.append("local", [b"local"])
    store._turn(0, draining=True)
    await asyncio.to_thread(store.journal.wait, store.journal.end)
    store.indexes.forget(chapter)
    stuck.gate.clear()
    peers = [await connected(running.port) for _ in range(3)]
    for number, name in enumerate(COLD):
        peers[number // 2].send(ReadSegment(name, 0, 6, request_id=number))
    await asyncio.to_thread(until, lambda: len(stuck.gets) == len(COLD))
    peers[2].send(ReadSegment("local", 0, 5, request_id=9))
    assert await peers[2].reply() == SegmentRead("local", 0, True, False, b"local", 9)
    stuck.gate.set()
    for number, name in enumerate(COLD):
        assert await peers[number // 2].reply() == SegmentRead(name, 0, True, False, name.encode(), number)
    for peer in peers:
        await peer.close()


async def test_readers_that_need_the_same_index_share_its_load(stuck: StuckBucket, serve: Serve) -> None:
    running = await serve(SETTINGS, files=stuck.open)
    stuck.gate.clear()
    peers = [await connected(running.port) for _ in range(3)]
    for peer in peers:
        peer.send(ReadSegment(COLD[0], 0, 6, request_id=1))
    connections = running.server._state.connections
    await asyncio.to_thread(until, lambda: sum(one._fetching for one in connections) == len(peers))  # type: ignore[attr-defined]
    await asyncio.to_thread(until, lambda: stuck.gets)
    stuck.gate.set()
    for peer in peers:
        assert await peer.reply() == SegmentRead(COLD[0], 0, True, False, COLD[0].encode(), 1)
        await peer.close()
    assert len(stuck.gets) == 1
