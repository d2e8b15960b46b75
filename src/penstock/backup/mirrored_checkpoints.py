"""The checkpoints of pipelines that a bucket has (`penstock.bucket.checkpoints`): copied with the journal that names
them, and verified.

A directory has its checkpoints as Spark wrote them. Only a merge can name a mirrored one, so a copy from a directory to
a bucket brings none: the pipelines' next epochs do.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from penstock.backup.contents import CHECKPOINTS, checkpoints_in
from penstock.backup.places import BucketPlace, Directory, OpenPlace, Place
from penstock.bucket.checkpoints import Manifest, ObjectName, folder_of, read_manifest, read_object
from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists
from penstock.coordinator.ledger import stored_state
from penstock.core.errors import BucketUnavailable, Damaged
from penstock.core.retry import RetryPolicy
from penstock.spark.run.checkpoint_files import sync_checkpoint
from penstock.spark.run.checkpoint_mirror import restore
from penstock.spark.run.checkpoints import adopt_moved
from penstock.store.bucket_verify import ObjectProblem

_REQUESTS = RetryPolicy(0.1, 5.0)
_UNAVAILABLE_SECONDS_MAX = 60.0


def manifests_in(files: OpenPlace) -> dict[str, str]:
    """By pipeline: what its ledger names; "" for a pipeline with epochs whose checkpoint was never mirrored."""
    pipelines = stored_state(files.journal).pipelines
    return {name: one.manifest for name, one in pipelines.items() if one.manifest or one.last_epoch is not None}


def copy_checkpoints(source: Place, target: Place, manifests: Mapping[str, str]) -> list[str]:
    """Returns the pipelines whose checkpoints are at the target now. Raises Damaged, also for objects that are missing,
    and what the store raises. May be repeated.
    """
    match source, target:
        case Directory(), Directory():
            return _copy_folders(source, target)
        case BucketPlace(), Directory():
            return _restore(source.bucket, target, manifests)
        case BucketPlace(), BucketPlace():
            return _copy_objects(source.bucket, target.bucket, manifests)
    return []


def _copy_folders(source: Directory, target: Directory) -> list[str]:
    old, new = source.data / CHECKPOINTS, target.data / CHECKPOINTS
    names = checkpoints_in(old)
    for name in names:
        shutil.rmtree(new / name, ignore_errors=True)  # of an interrupted copy
        shutil.copytree(old / name, new / name)
        adopt_moved(str(new / name))
    if names:
        sync_checkpoint(str(new))
    return names


def _restore(bucket: Bucket, target: Directory, manifests: Mapping[str, str]) -> list[str]:
    names = [name for name, manifest in manifests.items() if manifest]
    for name in names:
        folder = target.data / CHECKPOINTS / name
        shutil.rmtree(folder, ignore_errors=True)
        restore(bucket, manifests[name], folder)
    return names


def _copy_objects(old: Bucket, new: Bucket, manifests: Mapping[str, str]) -> list[str]:
    names = [name for name, manifest in manifests.items() if manifest]
    for name in names:
        manifest = _manifest(old, manifests[name])
        for key in (*manifest.objects, manifests[name]):
            _create(new, key, _read(old, key))
    return names


def _create(bucket: Bucket, key: str, data: bytes) -> None:
    """An object of this name has this content."""
    for attempt in _REQUESTS.retrying(_UNAVAILABLE_SECONDS_MAX, BucketUnavailable):
        with attempt, suppress(ObjectExists):
            bucket.create(key, [data])


def _manifest(bucket: Bucket, key: str) -> Manifest:
    try:
        return read_manifest(bucket, key)
    except NoSuchObject:
        raise _missing(key) from None


def _read(bucket: Bucket, key: str) -> bytes:
    try:
        return read_object(bucket, key)
    except NoSuchObject:
        raise _missing(key) from None


def _missing(key: str) -> Damaged:
    return Damaged(f"{key}: the object is missing", "Restore it, or reset the pipeline: penstock pipeline reset NAME")


# Verifying.


def verify_checkpoints(
    bucket: Bucket, manifests: Mapping[str, str], on_bytes: Callable[[int], None], shard: int = 0
) -> tuple[list[ObjectProblem], list[str]]:
    """What is damaged or missing, and objects that no ledger names. `on_bytes` is called for each object."""
    needed: set[str] = set()
    problems: list[ObjectProblem] = []
    for manifest in filter(None, manifests.values()):
        needed.add(manifest)
        try:
            objects = _manifest(bucket, manifest).objects
        except Damaged as error:
            problems.append(_problem(manifest, error))
            continue
        needed.update(objects)
        problems += _problems(bucket, objects, on_bytes)
    listed = [one.key for one in bucket.list(f"{folder_of(shard)}/")]
    orphans = [key for key in listed if key not in needed and ObjectName.parse(key) is not None]
    return problems, sorted(orphans)


def _problems(bucket: Bucket, keys: tuple[str, ...], on_bytes: Callable[[int], None]) -> Iterator[ObjectProblem]:
    for key in keys:
        try:
            on_bytes(len(_read(bucket, key)))
        except Damaged as error:
            yield _problem(key, error)


def _problem(key: str, error: Damaged) -> ObjectProblem:
    return ObjectProblem(key, str(error).rpartition(f"{key}: ")[2])
