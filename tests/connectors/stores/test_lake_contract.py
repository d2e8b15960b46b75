"""The contract of voting sinks, for tables in files: kills at any step included, on a disk and in a bucket."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.stores.contract import KillContract, StoreContract
from tests.connectors.stores.dying_store import DyingStores
from tests.connectors.stores.lakes import DeltaStore, IcebergStore, LakeStore, ParquetStore


class InBucket(KillContract):
    @pytest.fixture
    def dying(self, dying_in_buckets: DyingStores) -> DyingStores:
        return dying_in_buckets


class TestParquet(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return ParquetStore(str(tmp_path / "table"))


class TestParquetInBucket(InBucket):
    @pytest.fixture
    def store(self, s3_url: str) -> LakeStore:
        return ParquetStore(s3_url)


@pytest.mark.slow
class TestDelta(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return DeltaStore(str(tmp_path / "table"))


class TestDeltaInBucket(InBucket):
    @pytest.fixture
    def store(self, s3_url: str) -> LakeStore:
        return DeltaStore(s3_url)


@pytest.mark.slow
class TestIceberg(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return IcebergStore(str(tmp_path / "table"))


class TestIcebergInBucket(InBucket):
    @pytest.fixture
    def store(self, s3_url: str) -> Iterator[LakeStore]:
        yield IcebergStore(s3_url)
        for catalog in Path(tempfile.gettempdir()).glob(f"{s3_url.rpartition('/')[2]}.*.catalog.db*"):
            catalog.unlink()
