"""Readers of a journal in an object store that accepts connections and does not answer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.protocol.segment import VERSIONED, Hello, ReadSegment, SegmentRead
from penstock.store.bucket_files import BucketFiles
from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.seaweedfs import SeaweedFS
from tests.segment_server.conftest import Peer, Serve
from tests.store.small import commit, next_chapter
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.waiting import until

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
