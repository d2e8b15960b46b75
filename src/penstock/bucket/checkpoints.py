"""Mirrored checkpoints of pipelines in a bucket: the names of their objects, their manifests, and what is garbage.

    shards/S/checkpoints/PIPELINE/GENERATION-EPOCH-data-SHA256        bytes of files, new in this epoch
    shards/S/checkpoints/PIPELINE/GENERATION-EPOCH-manifest-SHA256    all files of a checkpoint that runs this epoch
    shards/S/checkpoints/PIPELINE/GENERATION-EPOCH-committed-SHA256   the same, of one that runs the next epoch

S is the shard whose ledger has the pipeline.

Objects are create-only and named by their content. A manifest counts once the ledger names it. It refers to objects of
its own generation and epoch, and to those of the manifest that the ledger named before it: to no others.

Therefore a name that the ledger's manifest does not use, and whose generation and epoch are over, is never used again:

- a generation is over when a newer one has started, because the ledger takes no manifest from it any more;
- an epoch is over when the ledger has a manifest of a later one, because the next manifest is based on that.

That is what `garbage` deletes, and it is the same for everybody who has ever read a durable state of the ledger: a
worker that was replaced, and wakes up inside its deletions, deletes nothing that its successor needs.
"""

import hashlib
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject
from penstock.core.errors import BucketUnavailable, Damaged, UnreadableFormat
from penstock.core.retry import RetryPolicy

log = logging.getLogger(__name__)

FORMAT = 1
"""Of manifests."""

Kind: TypeAlias = Literal["data", "manifest", "committed"]
"""A checkpoint with which Spark runs its last epoch again has a `manifest`, one whose last epoch Spark has committed a
manifest of the kind `committed`.
"""

PAUSES = RetryPolicy(first_seconds=0.2, max_seconds=10.0)
"""Between two tries while the bucket is unavailable: an outage costs few requests, and a short one little time."""

READ_SECONDS_MAX = 60.0
"""How long a read waits for a bucket that is unavailable: whoever reads is started again by somebody."""

_DELETED_AT_ONCE = 1000
"""The most that S3 deletes by one request."""

_KEY = re.compile(r"shards/(\d+)/checkpoints/([^/]+)/(\d+)-(\d+)-(data|manifest|committed)-([0-9a-f]{64})")


def folder_of(shard: int) -> str:
    """Of the checkpoints of the shard's pipelines."""
    return f"shards/{shard}/checkpoints"


class ObjectName(NamedTuple):
    """Generation and epoch are those in which it was written."""

    pipeline: str
    generation: int
    epoch: int
    kind: Kind
    sha256: str
    shard: int = 0

    @property
    def key(self) -> str:
        return f"{folder_of(self.shard)}/{self.pipeline}/{self.generation}-{self.epoch}-{self.kind}-{self.sha256}"

    @classmethod
    def parse(cls, key: str) -> "ObjectName | None":
        """None for a key that no mirror has written."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        shard, pipeline, generation, epoch, kind, sha256 = match.groups()
        return cls(pipeline, int(generation), int(epoch), kind, sha256, int(shard))  # type: ignore[arg-type]  # as it matches


def named(pipeline: str, generation: int, epoch: int, kind: Kind, data: bytes, shard: int = 0) -> str:
    """The key of an object with this content."""
    return ObjectName(pipeline, generation, epoch, kind, hashlib.sha256(data).hexdigest(), shard).key


class Stage(NamedTuple):
    """How far a checkpoint is."""

    epoch: int
    is_committed: bool


def stage_of(manifest: str) -> Stage:
    """Raises Damaged for a key that is not a manifest's."""
    name = _manifest_name(manifest)
    return Stage(name.epoch, name.kind == "committed")


def _manifest_name(key: str) -> ObjectName:
    name = ObjectName.parse(key)
    if name is None or name.kind == "data":
        raise Damaged(f"{key!r} is not the name of a mirrored checkpoint", "The ledger names it: restore a backup.")
    return name


# Manifests: JSON, compressed.


class Piece(NamedTuple):
    """Where bytes of a file are."""

    object: int
    """Its place in the manifest's list."""
    offset: int
    length: int


class MirroredFile(msgspec.Struct, frozen=True, array_like=True):
    path: str
    """Below the checkpoint's folder, with slashes."""
    size: int
    mode: int
    """Its permissions."""
    sha256: str
    pieces: tuple[Piece, ...]
    """In order; together they are the file."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    pipeline: str
    generation: int
    epoch: int
    objects: tuple[str, ...]
    """The keys of the objects that contain the files."""
    files: tuple[MirroredFile, ...]

    def encode(self) -> bytes:
        return zlib.compress(msgspec.json.encode(self), 1)


class _Versioned(msgspec.Struct):
    format: int | None = None


def decode_manifest(key: str, data: bytes) -> Manifest:
    """Raises Damaged; UnreadableFormat if another version wrote it."""
    name = _manifest_name(key)
    if hashlib.sha256(data).hexdigest() != name.sha256:
        raise damaged(key, "its bytes have changed")
    try:
        text = zlib.decompress(data)
        found = msgspec.json.decode(text, type=_Versioned).format
        if found != FORMAT:
            raise UnreadableFormat(f"the mirrored checkpoint {key}", found, FORMAT, _reset(name.pipeline))
        manifest = msgspec.json.decode(text, type=Manifest)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise damaged(key, str(error)) from None
    for problem in _problems(manifest):
        raise damaged(key, problem)
    return manifest


def _problems(manifest: Manifest) -> Iterator[str]:
    """A manifest must not make a restore write elsewhere."""
    for file in manifest.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            yield f"it names the file {file.path!r}"
        if sum(piece.length for piece in file.pieces) != file.size:
            yield f"the pieces of {file.path} are not as long as the file"
        if any(not 0 <= piece.object < len(manifest.objects) for piece in file.pieces):
            yield f"a piece of {file.path} is in an object that it does not name"


def damaged(key: str, why: str) -> Damaged:
    """An object of a mirrored checkpoint cannot be used."""
    name = ObjectName.parse(key)
    return Damaged(f"the mirrored checkpoint is damaged: {key}: {why}", _reset(name.pipeline if name else "NAME"))


def _reset(pipeline: str) -> str:
    return (
        "Restore the object if the bucket has older versions of it, or copy the checkpoint's folder from the machine "
        f"that ran the pipeline; or start from scratch: penstock pipeline reset {pipeline}"
    )


def read_object(bucket: Bucket, key: str, seconds_max: float = READ_SECONDS_MAX) -> bytes:
    """Verified. Raises NoSuchObject, Damaged, and BucketUnavailable after so many seconds."""
    for attempt in PAUSES.retrying(seconds_max, BucketUnavailable):
        with attempt:
            data = bucket.get(key).data
    name = ObjectName.parse(key)
    if name is not None and hashlib.sha256(data).hexdigest() != name.sha256:
        raise damaged(key, "its bytes have changed")
    return data


def read_manifest(bucket: Bucket, key: str, seconds_max: float = READ_SECONDS_MAX) -> Manifest:
    """Raises as `read_object`."""
    return decode_manifest(key, read_object(bucket, key, seconds_max))


# Garbage.


class Current(NamedTuple):
    """What a durable state of the ledger says about a pipeline."""

    generation: int
    manifest: str
    """The one that counts; "" if there is none."""


def garbage(listed: Iterable[str], current: Current, needed: Iterable[str]) -> list[str]:
    """The keys of a pipeline that nothing needs, now or later; see above. `needed`: objects that the manifest names.
    Keys that no mirror has written are left alone.
    """
    kept = {current.manifest, *needed}
    over = stage_of(current.manifest).epoch if current.manifest else 0
    return [
        key
        for key in listed
        if key not in kept
        and (name := ObjectName.parse(key)) is not None
        and (name.generation < current.generation or (name.generation == current.generation and name.epoch < over))
    ]


def sweep(
    bucket: Bucket, names: Iterable[str] | None, pipelines: Mapping[str, Current], generations: int, shard: int = 0
) -> int:
    """Delete the garbage of these pipelines of the shard, or of all that have objects; returns how many were deleted.

    `pipelines` and `generations`, the last generation of any pipeline, are of one durable state of the ledger. A
    pipeline that it does not have was dropped: if it is created again, its generation is a later one. Raises
    BucketFailed.
    """
    folder = folder_of(shard)
    prefixes = [f"{folder}/"] if names is None else [f"{folder}/{name}/" for name in names]
    found: dict[str, list[str]] = {}
    for prefix in prefixes:
        for one in bucket.list(prefix):
            if (name := ObjectName.parse(one.key)) is not None:
                found.setdefault(name.pipeline, []).append(one.key)
    return sum(_sweep(bucket, keys, pipelines.get(name, Current(generations + 1, ""))) for name, keys in found.items())


def _sweep(bucket: Bucket, keys: Sequence[str], current: Current) -> int:
    """Deletes nothing if it cannot know what is needed."""
    unneeded = garbage(keys, current, ())
    if unneeded and current.manifest:
        try:
            needed = read_manifest(bucket, current.manifest, 0).objects
        except (NoSuchObject, Damaged) as error:
            log.error("older checkpoints stay in the bucket: %s cannot be read: %s", current.manifest, error)
            return 0
        unneeded = garbage(unneeded, current, needed)
    for start in range(0, len(unneeded), _DELETED_AT_ONCE):
        bucket.delete(unneeded[start : start + _DELETED_AT_ONCE])
    return len(unneeded)
