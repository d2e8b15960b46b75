"""Mirrors the local checkpoint of a pipeline into the bucket of its worker, and restores it on another machine.

Before an epoch is merged, everything that Spark needs to run it again is in the bucket, and the merge names the
manifest. So the ledger always says which checkpoint it belongs to, and a machine that does not have that one restores
it. `penstock.bucket.checkpoints` has the objects, and why none is deleted that somebody needs.

Spark's own sinks have no merge. There the source mirrors the checkpoint twice: before the tasks of an epoch run, with
the epoch's offsets, so that the new machine runs the same epoch under the same number; and before it asks for the next
epoch, with the entry in Spark's commit log, because that request proves the epoch, which must not run again then.

A checkpoint on this machine is used only if the ledger's manifest is one that was mirrored from its folder, or restored
to it: the folder then has that epoch, and at most an attempt at the next one. Any other folder is of a time before
another machine ran the pipeline. The file MARKER in the folder has the names of these manifests.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import NamedTuple

import msgspec

from penstock.bucket.checkpoints import (
    PAUSES,
    Kind,
    Manifest,
    MirroredFile,
    Piece,
    Stage,
    damaged,
    named,
    read_manifest,
    read_object,
    stage_of,
)
from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists
from penstock.client.coordinator import CoordinatorClient
from penstock.core.durable_files import sync_directory
from penstock.core.errors import BucketUnavailable, Damaged, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Started
from penstock.spark.run.checkpoint_files import files_needed, sync_checkpoint
from penstock.spark.run.checkpoints import LocalCheckpoint, adopt_moved, local_access, local_path

log = logging.getLogger(__name__)

MARKER = ".penstock-mirror.json"
"""In a checkpoint's folder; neither mirrored nor part of a backup."""

_MARKED_MAX = 8
"""Manifests in a marker. The ledger names one of the last two that were mirrored."""

_OBJECT_BYTES = 8 << 20
"""Of one object: what is sent again after a failure, and what a thread has in memory."""

_SMALL_BYTES = 256 << 10
"""Files up to this size share objects: most epochs then write one. An object with larger files would be retained as a
whole for the smallest one."""

_THREADS = 4
"""Requests in flight: state that is mirrored for the first time fills a line, and memory is bounded."""

_UNAVAILABLE_SECONDS_MAX = 600.0
"""How long an epoch waits for the bucket. Then its query fails, and is restarted as after any outage."""

_LOOK_SECONDS = 5.0
"""Between two looks whether the generation was replaced, while the bucket is unavailable."""

_READ_BYTES = 1 << 20

_RESTORING = "~restoring"
"""The suffix of a folder that is being restored. Pipeline names cannot contain a tilde."""

KeepOn = Callable[[], None]
"""Called now and then while objects are written; raises Fenced to stop that."""


@cache
def bucket_of(url: str) -> Bucket:
    """One for each process: it keeps its connections. Credentials come from the environment."""
    from penstock.bucket.stores import open_bucket  # here: only drivers of workers with a bucket need it

    return open_bucket(url)


# Mirroring, in processes of Spark's driver. They are reused, and forked before they do anything.


class _Identity(NamedTuple):
    """Spark's files appear under their names when they are complete, and are replaced as a whole: while these are the
    same, so are the bytes. A table of RocksDB appears earlier, and grows.
    """

    inode: int
    changed_ns: int
    size: int

    @classmethod
    def of(cls, info: os.stat_result) -> _Identity:
        return cls(info.st_ino, info.st_mtime_ns, info.st_size)


class _Found(NamedTuple):
    path: str
    mode: int
    size: int
    sha256: str


class CheckpointMirror:
    """Of the checkpoint of one pipeline. It remembers what it has read: a file is hashed once, and its bytes are
    written once while manifests name them.
    """

    def __init__(self, folder: Path, bucket: Bucket, pipeline: str) -> None:
        self._folder = folder
        self._bucket = bucket
        self._pipeline = pipeline
        self._digests: dict[str, tuple[_Identity, str]] = {}
        self._last: tuple[str, Manifest] | None = None
        self.stage = Stage(NO_EPOCH, is_committed=True)
        """How far the checkpoint is known to be mirrored."""

    def mirror(
        self,
        generation: int,
        epoch: int,
        before: str,
        keep_on: KeepOn = lambda: None,
        *,
        is_committed: bool = False,
        shard: int = 0,
    ) -> str:
        """Returns the key of the manifest when everything is durable. `before`: the manifest that the ledger has now,
        "" if there is none. `is_committed`: Spark has committed the epoch, and does not run it again.

        Waits while the bucket is unavailable. Raises BucketUnavailable when that takes too long, other errors of the
        bucket at once, what `keep_on` raises, and CheckpointFailed.
        """
        with local_access(self._folder), _Uploads(self._bucket, keep_on) as uploads:
            known = {} if not before else {(one.sha256, one.size): one for one in self._based_on(before).files}
            objects = _Objects(uploads, self._pipeline, generation, epoch, shard)
            if before:
                objects.reuse(self._based_on(before).objects)
            files = [*self._files(epoch, known, objects, is_committed=is_committed)]
            manifest = objects.manifest(files)
            data = manifest.encode()
            kind: Kind = "committed" if is_committed else "manifest"
            key = named(self._pipeline, generation, epoch, kind, data, shard)
            uploads.put(key, data)
            uploads.finish()
            _mark(self._folder, [*_marked(self._folder), key])
        self._last, self.stage = (key, manifest), stage_of(key)
        return key

    def _based_on(self, key: str) -> Manifest:
        """The manifest that the ledger has: usually the last one that was mirrored here."""
        if self._last is None or self._last[0] != key:
            self._last = key, self._read(key)
        return self._last[1]

    def _read(self, key: str) -> Manifest:
        try:
            return read_manifest(self._bucket, key)
        except (NoSuchObject, Damaged) as error:  # the next one refers to nothing of it
            log.error("%s: the checkpoint is mirrored as a whole: %s cannot be read: %s", self._pipeline, key, error)
            return Manifest(pipeline=self._pipeline, generation=0, epoch=0, objects=(), files=())

    def _files(
        self, epoch: int, known: dict[tuple[str, int], MirroredFile], objects: _Objects, *, is_committed: bool
    ) -> Iterator[MirroredFile]:
        new: list[_Found] = []
        for found in self._hashed(epoch, is_committed=is_committed):
            same = known.get((found.sha256, found.size))
            if same is None and found.size:
                new.append(found)
            else:
                pieces = () if same is None else same.pieces
                yield MirroredFile(found.path, found.size, found.mode, found.sha256, pieces)
        yield from objects.write(self._folder, new)

    def _hashed(self, epoch: int, *, is_committed: bool) -> Iterator[_Found]:
        """The files that are needed. Spark may delete others meanwhile."""
        digests: dict[str, tuple[_Identity, str]] = {}
        for name in files_needed(self._folder, epoch, is_committed=is_committed):
            with suppress(FileNotFoundError):
                info = os.stat(f"{self._folder}/{name}")  # noqa: PTH116  a path costs as much as the call
                identity, known = _Identity.of(info), self._digests.get(name)
                digest = known[1] if known is not None and known[0] == identity else _digest(self._folder / name)
                digests[name] = identity, digest
                yield _Found(name, info.st_mode & 0o777, info.st_size, digest)
        self._digests = digests


def _digest(file: Path) -> str:
    with file.open("rb", buffering=0) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class _Objects:
    """The objects of one manifest: those of the manifest before it that are still needed, and new ones."""

    def __init__(self, uploads: _Uploads, pipeline: str, generation: int, epoch: int, shard: int) -> None:
        self._uploads = uploads
        self._pipeline = pipeline
        self._generation = generation
        self._epoch = epoch
        self._shard = shard
        self._keys: list[str] = []

    def reuse(self, keys: Iterable[str]) -> None:
        """In the same places."""
        self._keys = [*keys]

    def write(self, folder: Path, files: Sequence[_Found]) -> Iterator[MirroredFile]:
        """What is recorded is what was read now: a file that has changed since it was hashed does no harm."""
        shared = bytearray()
        waiting: list[tuple[_Found, int, bytes]] = []
        for file in files:
            if file.size > _SMALL_BYTES:
                yield from self._large(folder, file)
                continue
            with suppress(FileNotFoundError):
                data = (folder / file.path).read_bytes()
                waiting.append((file, len(shared), data))
                shared += data
            if len(shared) >= _OBJECT_BYTES:
                yield from self._shared(bytes(shared), waiting)
                shared, waiting = bytearray(), []
        yield from self._shared(bytes(shared), waiting)

    def _shared(self, data: bytes, files: Iterable[tuple[_Found, int, bytes]]) -> Iterator[MirroredFile]:
        place = self._put(data) if data else 0
        for file, offset, own in files:
            pieces = (Piece(place, offset, len(own)),) if own else ()
            yield MirroredFile(file.path, len(own), file.mode, hashlib.sha256(own).hexdigest(), pieces)

    def _large(self, folder: Path, file: _Found) -> Iterator[MirroredFile]:
        digest, pieces = hashlib.sha256(), list[Piece]()
        with suppress(FileNotFoundError), (folder / file.path).open("rb", buffering=0) as opened:
            while data := _read(opened.fileno(), _OBJECT_BYTES):
                digest.update(data)
                pieces.append(Piece(self._put(data), 0, len(data)))
            size = sum(piece.length for piece in pieces)
            yield MirroredFile(file.path, size, file.mode, digest.hexdigest(), tuple(pieces))

    def _put(self, data: bytes) -> int:
        key = named(self._pipeline, self._generation, self._epoch, "data", data, self._shard)
        self._uploads.put(key, data)
        self._keys.append(key)
        return len(self._keys) - 1

    def manifest(self, files: Iterable[MirroredFile]) -> Manifest:
        """Without the objects that none of the files is in."""
        files = [*files]
        used = sorted({piece.object for file in files for piece in file.pieces})
        places = {old: new for new, old in enumerate(used)}
        return Manifest(
            pipeline=self._pipeline,
            generation=self._generation,
            epoch=self._epoch,
            objects=tuple(self._keys[old] for old in used),
            files=tuple(
                msgspec.structs.replace(
                    file, pieces=tuple(piece._replace(object=places[piece.object]) for piece in file.pieces)
                )
                for file in files
            ),
        )


def _read(descriptor: int, length: int) -> bytes:
    """Fewer bytes only at the end of the file."""
    data = bytearray()
    while len(data) < length and (part := os.read(descriptor, min(_READ_BYTES, length - len(data)))):
        data += part
    return bytes(data)


class _Uploads:
    """Writes objects in threads. One that exists already is an earlier try, because its name says what is in it."""

    def __init__(self, bucket: Bucket, keep_on: KeepOn) -> None:
        self._bucket = bucket
        self._keep_on = keep_on
        self._pool = ThreadPoolExecutor(_THREADS, "mirror")
        self._pending: set[Future[None]] = set()
        self._is_over = Event()
        self._deadline = time.monotonic() + _UNAVAILABLE_SECONDS_MAX

    def __enter__(self) -> _Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pool.shutdown(cancel_futures=True)

    def put(self, key: str, data: bytes) -> None:
        """Returns when there is room for another one. Raises what an earlier one has raised."""
        self._await(2 * _THREADS - 1)
        self._pending.add(self._pool.submit(self._create, key, data))

    def finish(self) -> None:
        """All objects are durable then."""
        self._await(0)

    def _await(self, left: int) -> None:
        while len(self._pending) > left:
            done, self._pending = wait(self._pending, _LOOK_SECONDS, FIRST_COMPLETED)
            for one in done:
                one.result()
            if not done:
                self._keep_on()

    def _create(self, key: str, data: bytes) -> None:
        failures = 0
        while not self._is_over.is_set():
            try:
                self._bucket.create(key, [data])
                return
            except ObjectExists:
                return
            except BucketUnavailable as error:
                failures += 1
                if time.monotonic() > self._deadline:
                    raise
                if failures == 1:
                    log.warning("an epoch waits until its checkpoint is mirrored: %s", error)
                self._is_over.wait(PAUSES.pause(failures))


# The marker of a folder.


class _Marker(msgspec.Struct, frozen=True):
    manifests: list[str]


def _marked(folder: Path) -> list[str]:
    """The manifests that belong to the folder, oldest first."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=_Marker).manifests
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return []


def _mark(folder: Path, manifests: Sequence[str]) -> None:
    """Durable with the next sync of the checkpoint."""
    partial = folder / f"{MARKER}.tmp"
    partial.write_bytes(msgspec.json.encode(_Marker([*manifests][-_MARKED_MAX:])))
    partial.replace(folder / MARKER)


# When a checkpoint is mirrored.


@cache
def _mirror_of(folder: Path, store: str, pipeline: str) -> CheckpointMirror:
    """One for each process and pipeline."""
    return CheckpointMirror(folder, bucket_of(store), pipeline)


def mirror_running(
    worker: CoordinatorClient,
    store: str | None,
    checkpoint: str | None,
    pipeline: str,
    generation: int | None,
    epoch: int,
) -> str:
    """Before the merge of an epoch: returns the manifest that the merge names; "" if there is no bucket, or if the
    epoch is already merged. The caller syncs the checkpoint. Raises Fenced, and as `CheckpointMirror.mirror`.
    """
    folder = None if checkpoint is None else local_path(checkpoint)
    if store is None or folder is None or generation is None:
        return ""
    known = worker.mirrored(pipeline, generation)
    if epoch <= known.merged:
        return ""
    mirror = _mirror_of(folder, store, pipeline)
    keep_on = _unless_fenced(worker, pipeline, generation)
    return mirror.mirror(generation, epoch, known.manifest, keep_on, shard=known.shard)


def mirror_unmerged(worker: CoordinatorClient, store: str, checkpoint: str, pipeline: str, generation: int) -> None:
    """For Spark's own sinks: before an epoch's tasks run, and before Spark asks for the next one. Does nothing if the
    checkpoint is mirrored as far as it is now. Raises as `mirror_running`.
    """
    folder = local_path(checkpoint)
    if folder is None:
        return
    mirror, stage = _mirror_of(folder, store, pipeline), _stage(LocalCheckpoint(folder))
    if stage <= mirror.stage:
        return
    known = worker.mirrored(pipeline, generation)
    if known.manifest and stage_of(known.manifest) >= stage:  # by another load of the query
        mirror.stage = stage
        return
    keep_on = _unless_fenced(worker, pipeline, generation)
    committed, shard = stage.is_committed, known.shard
    manifest = mirror.mirror(generation, stage.epoch, known.manifest, keep_on, is_committed=committed, shard=shard)
    sync_checkpoint(checkpoint)
    worker.record_mirrored(pipeline, generation, known.manifest, manifest)


def _stage(checkpoint: LocalCheckpoint) -> Stage:
    committed = checkpoint.committed()
    planned = max(checkpoint.batches(), default=NO_EPOCH)
    return Stage(planned, is_committed=False) if planned > committed else Stage(committed, is_committed=True)


def _unless_fenced(worker: CoordinatorClient, pipeline: str, generation: int) -> KeepOn:
    def check() -> None:
        with suppress(Unavailable):  # it may wait for the same bucket
            worker.mirrored(pipeline, generation)

    return check


# Restoring.


def is_superseded(checkpoint: str, pipeline: str, worker: str, *, retry_seconds: float) -> bool:
    """Whether another machine has run the pipeline since: then the next start replaces this checkpoint. Asks the worker
    only about one that was mirrored before.
    """
    folder = local_path(checkpoint)
    if folder is None:
        return False
    with local_access(folder):
        marked = _marked(folder)
    if not marked:
        return False
    with CoordinatorClient(worker, retry_seconds) as coordinator:
        manifest = coordinator.mirrored(pipeline).manifest
    return bool(manifest) and manifest not in marked


def restored_if_needed(checkpoint: str, started: Started) -> bool:
    """After a start: whether the ledger's checkpoint was restored to this folder, because that does not have it. A
    folder that is in its place is moved aside. Raises as `restore`.
    """
    folder = local_path(checkpoint)
    if folder is None or started.store is None or not started.manifest:
        return False
    with local_access(folder):
        if started.manifest in _marked(folder):
            return False
    restore(bucket_of(started.store), started.manifest, folder)
    return True


def restore(bucket: Bucket, manifest: str, folder: Path) -> None:
    """The folder is replaced as a whole, once everything is verified and durable. Raises Damaged, also for objects that
    are missing, BucketFailed and CheckpointFailed.
    """
    began = time.monotonic()
    contents = _required(manifest, lambda: read_manifest(bucket, manifest))
    folder = folder.absolute()
    side = folder.with_name(folder.name + _RESTORING)
    with local_access(folder):
        shutil.rmtree(side, ignore_errors=True)
        side.mkdir(parents=True)
        try:
            _download(bucket, contents, side)
            _mark(side, [manifest])
            sync_checkpoint(str(side))
            if folder.exists():
                log.warning("the older checkpoint was moved to %s", LocalCheckpoint(folder).move_aside())
            side.replace(folder)
            sync_directory(folder.parent)
        finally:
            shutil.rmtree(side, ignore_errors=True)
    adopt_moved(str(folder))
    size, seconds = sum(file.size for file in contents.files), time.monotonic() - began
    text = "%s: the checkpoint of epoch %d is restored to %s: %d files, %d bytes, %.1f s"
    log.info(text, contents.pipeline, contents.epoch, folder, len(contents.files), size, seconds)


def _required(key: str, read: Callable[[], Manifest]) -> Manifest:
    try:
        return read()
    except NoSuchObject:
        raise damaged(key, "the object is missing") from None


class _Target(NamedTuple):
    """Where a piece goes."""

    file: Path
    at: int
    piece: Piece


def _download(bucket: Bucket, manifest: Manifest, side: Path) -> None:
    targets: dict[int, list[_Target]] = {}
    for file in manifest.files:
        path, at = side / file.path, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for piece in file.pieces:
            targets.setdefault(piece.object, []).append(_Target(path, at, piece))
            at += piece.length
    with ThreadPoolExecutor(_THREADS, "restore") as pool:
        writing = [pool.submit(_write, bucket, manifest.objects[number], each) for number, each in targets.items()]
        try:
            for one in writing:
                one.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for file in manifest.files:
        if _digest(side / file.path) != file.sha256:
            raise damaged(manifest.objects[file.pieces[0].object], f"{file.path} is not what was mirrored")
        (side / file.path).chmod(file.mode)


def _write(bucket: Bucket, key: str, targets: Sequence[_Target]) -> None:
    try:
        data = read_object(bucket, key)
    except NoSuchObject:
        raise damaged(key, f"the object is missing, which has {targets[0].file.name} in it") from None
    for file, at, piece in targets:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(data[piece.offset : piece.offset + piece.length])
