"""`python -m tests.ingest.many_streams`, which has 100,000 streams by default, at a small size."""

from pathlib import Path

import pytest

from tests.ingest import many_streams


@pytest.mark.process
def test_many_streams_on_many_sessions_survive_a_kill(tmp_path: Path) -> None:
    figures = many_streams.run(tmp_path / "data", streams=5000, sessions=20, rounds=3)
    print(figures)
    assert figures.resident_after - figures.resident_empty < 5000 * 4096 + 20 * 1024 * 1024
