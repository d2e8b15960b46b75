"""Where checkpoints are, and whether Spark has planned a batch in one."""

from pathlib import Path

import pytest

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.spark.checkpoints import checkpoint_of, is_fresh


def test_a_checkpoint_without_offsets_is_fresh(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(str(tmp_path), "counts")
    assert checkpoint == str(tmp_path / "counts")
    assert is_fresh(checkpoint)
    (tmp_path / "counts" / "offsets").mkdir(parents=True)
    (tmp_path / "counts" / "offsets" / ".0.crc").touch()
    assert is_fresh(f"file://{checkpoint}"), "a checksum alone is no offset"
    (tmp_path / "counts" / "offsets" / "0").touch()
    assert is_fresh(checkpoint) is False
    assert is_fresh(f"file:{checkpoint}") is False


def test_what_is_not_on_this_machine_is_not_known() -> None:
    assert checkpoint_of("s3a://bucket/checkpoints/", "counts") == "s3a://bucket/checkpoints/counts"
    assert is_fresh("hdfs://namenode/counts") is None


def test_durations_are_read_as_people_and_as_spark_write_them() -> None:
    texts = {"500ms": 500, "1s": 1000, "1.5s": 1500, "2 m": 120_000, "1h": 3_600_000, "10 seconds": 10_000}
    assert {text: parse_duration_ms(text) for text in texts} == texts
    assert parse_duration_ms("1 minute") == 60_000
    for text in ("", "5", "s", "1 fortnight", "-1s"):
        with pytest.raises(RequestError, match="no duration"):
            parse_duration_ms(text)
