"""Local copies of a bucket's objects: what is read of them, and what is fetched."""

from pathlib import Path
from random import Random

import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.store.files import RealFile, RealFiles
from penstock.store.part_cache import BLOCK_BYTES, PartCache
from penstock.testing.faulty_bucket import FaultyBucket

KEY = "shards/0/parts/1"
SIZE = 3 * BLOCK_BYTES + 1000


class CountedFile(RealFile):
    bytes_read = 0

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        CountedFile.bytes_read += len(data)
        return data


class CountedFiles(RealFiles):
    def open(self, name: str) -> RealFile:
        return CountedFile(self._open(name))


@pytest.fixture
def content() -> bytes:
    return Random(7).randbytes(SIZE)


def cache_of(content: bytes, folder: Path, bytes_max: int = 1 << 30) -> tuple[PartCache, CountedBucket]:
    bucket = CountedBucket(FaultyBucket())
    bucket.create(KEY, [content])
    return PartCache(CountedFiles(folder), bucket, bytes_max), bucket


@pytest.mark.parametrize("bytes_max", [1, 2 * BLOCK_BYTES, 1 << 30])
def test_every_read_returns_the_bytes_of_the_object_whatever_is_here(
    content: bytes, bytes_max: int, tmp_path: Path
) -> None:
    cache, _ = cache_of(content, tmp_path, bytes_max)
    random = Random(11)
    for _ in range(100):
        start, end = sorted(random.choices(range(SIZE + 1), k=2))
        assert cache.read(KEY, start, end - start) == content[start:end]
    assert cache.read(KEY, SIZE - 5, 100) == content[-5:]


def test_a_small_read_fetches_a_block_once_and_then_reads_only_its_bytes(content: bytes, tmp_path: Path) -> None:
    cache, bucket = cache_of(content, tmp_path)
    CountedFile.bytes_read = 0
    for number in range(1000):
        assert cache.read(KEY, number * 100, 10) == content[number * 100 : number * 100 + 10]
    assert bucket.counts().requests["get"] == 1
    assert CountedFile.bytes_read == 999 * 10
