"""The contract of voting sinks, for tables in files: kills at any step included."""

from pathlib import Path

import pytest

from tests.connectors.stores.contract import StoreContract
from tests.connectors.stores.lakes import DeltaStore, IcebergStore, LakeStore, ParquetStore


class TestParquet(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return ParquetStore(str(tmp_path / "table"))


@pytest.mark.slow
class TestDelta(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return DeltaStore(str(tmp_path / "table"))


@pytest.mark.slow
class TestIceberg(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LakeStore:
        return IcebergStore(str(tmp_path / "table"))
