"""The sink that writes Parquet files."""

from pathlib import Path

import pytest

from tests.connectors.stores.contract import StoreContract
from tests.connectors.stores.lakes import ParquetStore


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ParquetStore:
        return ParquetStore(str(tmp_path / "table"))
