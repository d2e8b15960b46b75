"""Mirrored checkpoints as objects: names, manifests, and what is garbage."""

import zlib
from uuid import uuid4

import msgspec
import pytest

from penstock.bucket.checkpoints import (
    Current,
    Manifest,
    MirroredFile,
    ObjectName,
    Piece,
    decode_manifest,
    folder_of,
    garbage,
    named,
    read_manifest,
    read_object,
    stage_of,
    sweep,
)
from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.bucket.stores import open_bucket
from penstock.core.errors import Damaged, UnreadableFormat


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


def manifest_of(*objects: str, epoch: int = 3, generation: int = 2) -> Manifest:
    files = tuple(MirroredFile(f"state/{at}", 1, 0o644, "0" * 64, (Piece(at, 0, 1),)) for at, _ in enumerate(objects))
    return Manifest(pipeline="p", generation=generation, epoch=epoch, objects=objects, files=files)


def key_of(manifest: Manifest) -> str:
    return named(manifest.pipeline, manifest.generation, manifest.epoch, "manifest", manifest.encode())


def data_key(generation: int, epoch: int, content: bytes = b"x", pipeline: str = "p") -> str:
    return named(pipeline, generation, epoch, "data", content)


def test_an_object_is_named_by_generation_epoch_and_content() -> None:
    key = data_key(2, 30)
    assert key.startswith(f"{folder_of(0)}/p/2-30-data-")
    name = ObjectName.parse(key)
    assert name is not None
    assert (name.pipeline, name.generation, name.epoch, name.kind, name.key) == ("p", 2, 30, "data", key)
    assert data_key(2, 30, b"y") != key
    assert ObjectName.parse(f"{folder_of(0)}/p/readme.txt") is None


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = manifest_of(data_key(1, 2), data_key(2, 3))
    assert decode_manifest(key_of(manifest), manifest.encode()) == manifest
    assert stage_of(key_of(manifest)) == (3, False)
    assert stage_of(named("p", 1, 3, "committed", b"")) == (3, True)
    with pytest.raises(Damaged, match="is not the name of a mirrored checkpoint"):
        stage_of(data_key(1, 3))


def test_changed_bytes_are_damage(bucket: Bucket) -> None:
    manifest = manifest_of()
    with pytest.raises(Damaged, match="its bytes have changed") as error:
        decode_manifest(key_of(manifest), manifest.encode() + b"x")
    assert "penstock pipeline reset p" in error.value.hint
    bucket.create(data_key(1, 1), [b"something else"])
    with pytest.raises(Damaged, match="its bytes have changed"):
        read_object(bucket, data_key(1, 1))


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (MirroredFile("../escape", 0, 0o644, "", ()), "it names the file '../escape'"),
        (MirroredFile("/etc/passwd", 0, 0o644, "", ()), "it names the file"),
        (MirroredFile("a", 2, 0o644, "", (Piece(0, 0, 1),)), "not as long as the file"),
        (MirroredFile("a", 1, 0o644, "", (Piece(1, 0, 1),)), "in an object that it does not name"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(file: MirroredFile, problem: str) -> None:
    manifest = msgspec.structs.replace(manifest_of(data_key(1, 1)), files=(file,))
    with pytest.raises(Damaged, match=problem):
        decode_manifest(key_of(manifest), manifest.encode())


def test_a_manifest_of_a_newer_format_is_refused_and_says_so() -> None:
    data = zlib.compress(b'{"format": 9}')
    with pytest.raises(UnreadableFormat, match="a newer version of Penstock"):
        decode_manifest(named("p", 1, 1, "manifest", data), data)


def test_a_missing_object_is_reported_as_such(bucket: Bucket) -> None:
    with pytest.raises(NoSuchObject):
        read_manifest(bucket, key_of(manifest_of()))


def test_garbage_is_what_no_later_manifest_can_name() -> None:
    needed = data_key(1, 1)
    manifest = manifest_of(needed, epoch=5, generation=2)
    own, foreign = key_of(manifest), f"{folder_of(0)}/p/notes.txt"
    older_generation, older_epoch = data_key(1, 9), data_key(2, 4)
    same_epoch, next_epoch, newer_generation = data_key(2, 5), data_key(2, 6), data_key(3, 6)
    listed = [needed, own, foreign, older_generation, older_epoch, same_epoch, next_epoch, newer_generation]
    assert garbage(listed, Current(2, own), [needed]) == [older_generation, older_epoch]
    assert garbage(listed, Current(3, own), [needed]) == [older_generation, older_epoch, same_epoch, next_epoch]
    assert garbage([own, older_epoch, newer_generation], Current(3, ""), []) == [own, older_epoch], "after a reset"


def stored(bucket: Bucket, *keys: str) -> None:
    for key in keys:
        bucket.create(key, [b"x"])


def listed(bucket: Bucket) -> set[str]:
    return {one.key for one in bucket.list("")}


def test_a_sweep_leaves_what_the_manifest_needs_and_what_may_still_be_used(bucket: Bucket) -> None:
    needed, released, next_one = data_key(1, 1), data_key(1, 2), data_key(2, 6)
    manifest = manifest_of(needed, epoch=5, generation=2)
    other = data_key(1, 1, pipeline="p2")
    stored(bucket, needed, released, next_one, other)
    bucket.create(key_of(manifest), [manifest.encode()])
    pipelines = {"p": Current(2, key_of(manifest)), "p2": Current(5, "")}
    assert sweep(bucket, ["p"], pipelines, 5) == 1
    assert listed(bucket) == {needed, next_one, key_of(manifest), other}
    assert sweep(bucket, None, pipelines, 5) == 1
    assert listed(bucket) == {needed, next_one, key_of(manifest)}


def test_everything_of_a_dropped_pipeline_is_deleted_and_nothing_of_its_successor(bucket: Bucket) -> None:
    manifest = manifest_of(data_key(1, 1), generation=4)
    stored(bucket, data_key(1, 1), data_key(4, 9), data_key(5, 0))
    bucket.create(key_of(manifest), [manifest.encode()])
    sweep(bucket, None, {}, 4)
    assert listed(bucket) == {data_key(5, 0)}, "it was created again after the state that is swept by"


def test_nothing_is_deleted_while_the_manifest_cannot_be_read(bucket: Bucket) -> None:
    manifest = manifest_of(data_key(1, 1), epoch=5, generation=2)
    stored(bucket, data_key(1, 1), data_key(1, 2))
    assert sweep(bucket, None, {"p": Current(2, key_of(manifest))}, 2) == 0
    bucket.create(key_of(manifest), [b"damaged"])
    assert sweep(bucket, None, {"p": Current(2, key_of(manifest))}, 2) == 0
    assert {data_key(1, 1), data_key(1, 2)} < listed(bucket)
