"""Where checkpoints are, and whether Spark has planned a batch in one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import CheckpointFailed, RequestError
from penstock.spark.run.checkpoints import (
    HadoopCheckpoint,
    LocalCheckpoint,
    adopt_moved,
    checkpoint_of,
    is_fresh,
    opened,
)


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


def test_a_moved_checkpoint_refers_to_its_new_location(tmp_path: Path) -> None:
    """As Spark writes it for transformWithState, with its checksum beside it."""
    old, new = tmp_path / "old" / "counts", tmp_path / "new" / "counts"
    place = old / "state/0/_metadata/v2"
    place.mkdir(parents=True)
    schema = "/state/0/_stateSchema/default/0_5f0e"
    (place / "0").write_text(f'v2\n{{"stateSchemaFilePaths":["file:{old}{schema}","file:{old}{schema}1"]}}')
    (place / ".0.crc").write_bytes(b"crc\x00\x00\x00\x02\x00\x9c\xb1")  # not UTF-8, as most checksums
    adopt_moved(str(old))
    assert (place / ".0.crc").exists(), "it is where it was created, and stays as it is"
    old.parent.rename(new.parent)
    adopt_moved(str(new))
    found = new / "state/0/_metadata/v2"
    assert (found / "0").read_text() == f'v2\n{{"stateSchemaFilePaths":["file:{new}{schema}","file:{new}{schema}1"]}}'
    assert [one.name for one in found.iterdir()] == ["0"]


def test_whether_a_remote_checkpoint_is_fresh_is_unknown() -> None:
    assert checkpoint_of("s3a://bucket/checkpoints/", "counts") == "s3a://bucket/checkpoints/counts"
    assert is_fresh("hdfs://namenode/counts") is None


def test_a_failure_of_the_disk_names_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.touch()  # in place of a folder
    checkpoint = LocalCheckpoint(folder)
    (tmp_path / "q").mkdir()
    (tmp_path / "q~reset").touch()  # neither a folder that can be deleted nor one that can be replaced
    with pytest.raises(
        CheckpointFailed, match=rf"^the checkpoint {folder} cannot be used: .*Not a directory"
    ) as caught:
        checkpoint.read("penstock.json")
    assert "can be read and written" in caught.value.hint
    with pytest.raises(CheckpointFailed, match=f"the checkpoint {folder} "):
        checkpoint.write("penstock.json", "{}")
    with pytest.raises(CheckpointFailed, match=f"the checkpoint {tmp_path / 'q'} "):
        LocalCheckpoint(tmp_path / "q").move_aside()


def test_a_checkpoint_on_another_machine_needs_a_jvm() -> None:
    with pytest.raises(RequestError, match=r"s3a://bucket/p is not on this machine") as caught:
        opened("s3a://bucket/p", None)
    assert "penstock run" in caught.value.hint


class Refusing:
    """A file system that renames nothing, and returns False without an exception, as those of Hadoop may."""

    def delete(self, path: Any, recursive: bool) -> bool:
        return True

    def rename(self, old: Any, new: Any) -> bool:
        return False


def test_a_rename_that_returns_false_is_an_error() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    path = SimpleNamespace(getFileSystem=lambda _: Refusing())
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=lambda _: path))
    context = SimpleNamespace(hadoopConfiguration=lambda: None)
    spark = SimpleNamespace(SparkContext=SimpleNamespace(getOrCreate=lambda: context))
    apache = SimpleNamespace(hadoop=hadoop, spark=spark)
    gateway = SimpleNamespace(jvm=SimpleNamespace(org=SimpleNamespace(apache=apache)))
    with pytest.raises(CheckpointFailed, match=r"s3a://bucket/p cannot be used: .* did not rename it to .*/p~reset"):
        HadoopCheckpoint(gateway, "s3a://bucket/p").move_aside()
