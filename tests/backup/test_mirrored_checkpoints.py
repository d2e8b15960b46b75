"""Checkpoints move with the journal that names them."""

from pathlib import Path

import pytest

from penstock.backup.mirrored_checkpoints import copy_checkpoints, verify_checkpoints
from penstock.backup.places import BucketPlace, Directory
from penstock.core.errors import Damaged
from penstock.spark.run.checkpoint_mirror import MARKER, CheckpointMirror
from tests.spark.mirror_scene import WrittenCheckpoint, contents


@pytest.fixture
def written(tmp_path: Path) -> WrittenCheckpoint:
    checkpoint = WrittenCheckpoint(tmp_path / "here" / "checkpoints" / "p")
    checkpoint.run(0)
    return checkpoint


@pytest.fixture
def bucket(tmp_path: Path) -> BucketPlace:
    return BucketPlace((tmp_path / "bucket").as_uri())


@pytest.fixture
def manifests(written: WrittenCheckpoint, bucket: BucketPlace) -> dict[str, str]:
    """By pipeline; one of them has none."""
    first = CheckpointMirror(written.folder, bucket.bucket, "p").mirror(1, 0, "")
    return {"p": first, "without": ""}


def files(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(folder).items() if path != MARKER}


def test_they_are_restored_to_a_directory(
    written: WrittenCheckpoint, bucket: BucketPlace, manifests: dict[str, str], tmp_path: Path
) -> None:
    target = Directory(tmp_path / "there")
    for _ in range(2):  # an interrupted copy is repeated
        assert copy_checkpoints(bucket, target, manifests) == ["p"]
        assert files(tmp_path / "there" / "checkpoints" / "p") == files(written.folder)
        assert [one.name for one in (tmp_path / "there" / "checkpoints").iterdir()] == ["p"]


def test_they_are_copied_to_another_bucket_without_orphans(
    written: WrittenCheckpoint, bucket: BucketPlace, manifests: dict[str, str], tmp_path: Path
) -> None:
    written.run(1)
    CheckpointMirror(written.folder, bucket.bucket, "p").mirror(1, 1, manifests["p"])  # never merged
    other = BucketPlace((tmp_path / "other").as_uri())
    for _ in range(2):
        assert copy_checkpoints(bucket, other, manifests) == ["p"]
    assert verify_checkpoints(other.bucket, manifests, lambda _: None) == ([], [])
    restored = Directory(tmp_path / "there")
    copy_checkpoints(other, restored, manifests)
    assert (tmp_path / "there" / "checkpoints" / "p" / "offsets" / "0").exists()
    assert not (tmp_path / "there" / "checkpoints" / "p" / "offsets" / "1").exists()


def test_those_of_a_directory_are_copied_to_a_directory_alone(
    written: WrittenCheckpoint, bucket: BucketPlace, tmp_path: Path
) -> None:
    source, target = Directory(tmp_path / "here"), Directory(tmp_path / "there")
    for _ in range(2):
        assert copy_checkpoints(source, target, {"p": ""}) == ["p"]
        assert files(tmp_path / "there" / "checkpoints" / "p") == files(written.folder)
    assert copy_checkpoints(source, bucket, {"p": ""}) == []


def test_damaged_and_missing_objects_are_named_and_others_listed(
    written: WrittenCheckpoint, bucket: BucketPlace, manifests: dict[str, str], tmp_path: Path
) -> None:
    assert verify_checkpoints(bucket.bucket, manifests, lambda _: None) == ([], [])
    assert verify_checkpoints(bucket.bucket, {}, lambda _: None)[1] != []
    data = next(one for one in (tmp_path / "bucket").rglob("*-data-*"))
    key = str(data.relative_to(tmp_path / "bucket"))
    data.write_bytes(data.read_bytes()[:-1])
    (problem,), _ = verify_checkpoints(bucket.bucket, manifests, lambda _: None)
    assert str(problem) == f"{key}: its bytes have changed"
    data.unlink()
    (problem,), _ = verify_checkpoints(bucket.bucket, manifests, lambda _: None)
    assert str(problem) == f"{key}: the object is missing"
    (tmp_path / "bucket" / manifests["p"]).unlink()
    with pytest.raises(Damaged, match="missing"):
        copy_checkpoints(bucket, BucketPlace((tmp_path / "other").as_uri()), manifests)
    (problem,), _ = verify_checkpoints(bucket.bucket, manifests, lambda _: None)
    assert problem.object == manifests["p"]
