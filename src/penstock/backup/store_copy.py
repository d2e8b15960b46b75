"""Copies a worker's data from a directory or a bucket to another: `penstock store copy`.

The target has the file `incomplete-copy` from the first byte to the last check. With it, no worker starts there, and a
copy that was interrupted is continued by the next one: files that are there already are compared, not copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from crc32c import crc32c

from penstock.access.file import FILE as ACCESS_FILE
from penstock.application.deployments import FILE as APPLICATION_FILE
from penstock.backup.contents import PLAIN_FILES
from penstock.backup.manifest import SECRETS
from penstock.backup.mirrored_checkpoints import copy_checkpoints, manifests_in
from penstock.backup.places import BucketPlace, OpenPlace, Place
from penstock.cluster.places import APPLICATION, Kind, Thing
from penstock.coordinator.ledger import stored_state
from penstock.core.durable_files import write_private
from penstock.core.errors import Damaged, DiskFull, RequestError
from penstock.core.sizes import show_size
from penstock.store.chapters import INCOMPLETE, chapter_bases, chapter_name
from penstock.store.files import File, Files
from penstock.store.read_only import ReadOnlyJournal
from penstock.store.settings import StoreSettings
from penstock.store.spares import OUT_OF_SPACE
from penstock.store.store import SegmentStore
from penstock.store.verify import verify
from penstock.worker.directory import thing_of_segment

PIECE_BYTES = 8 << 20
"""Copied at once: half of an object of a bucket's log."""

_ZEROS = bytes(PIECE_BYTES)

SYNC_BYTES = 64 << 20
"""Copied before the target is synced: a bucket keeps what is not synced in memory."""


class Stage(Protocol):
    """Shown to whoever waits."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


@dataclass(slots=True)
class Copied:
    chapters: int = 0
    plain_files: list[str] = field(default_factory=list)
    bytes: int = 0
    kept_bytes: int = 0
    """Of these, bytes that an earlier copy had written already."""
    checkpoints: list[str] = field(default_factory=list)
    """Pipelines whose checkpoints the target has."""
    without_checkpoint: list[str] = field(default_factory=list)
    """Other pipelines that need one to continue."""


class _Source(NamedTuple):
    name: str
    size: int
    is_plain: bool
    is_settled: bool
    """Nothing is written to it any more: the last chapter is the only one that still grows."""


def copy_store(source: Place, target: Place, *, secrets: bool = True, stage: Stage) -> Copied:
    """Raises StoreInUse, RequestError if the target is not empty, Damaged if a checksum of the source fails, or if the
    copy differs. Then, and after any interruption, the target is incomplete, or as it was.
    """
    if source.location == target.location:
        raise RequestError(f"{source.name} cannot be copied to itself", "Name another place.")
    if target.location.startswith(f"{source.location}/"):
        raise RequestError(
            f"{target.name} is inside {source.name}: deleting the original would delete the copy",
            "Name a place outside of it.",
        )
    with source.reading() as old:
        _check(source, old, stage)
        files = [*_files(old, [name for name in target.plain_files if secrets or name not in SECRETS])]
        manifests = manifests_in(old)
        with target.writing() as new:
            copying = _Copy(old, new, files, stage)
            copied = copying.run(target, lambda: _copy_beside(source, target, old, manifests), [*manifests])
    if secrets and isinstance(source, BucketPlace) and (content := source.access_list()) is not None:
        _put_access_list(target, content)
    return copied


def _copy_beside(source: Place, target: Place, old: OpenPlace, manifests: Mapping[str, str]) -> list[str]:
    """What a worker at the target needs besides the journal. Returns the pipelines whose checkpoints are there."""
    if isinstance(target, BucketPlace):
        target.put_places(things_in(old))
    return copy_checkpoints(source, target, manifests)


def things_in(files: OpenPlace) -> set[Thing]:
    """Everything in a journal that has a place in a cluster."""
    segments = SegmentStore(ReadOnlyJournal(files.journal), StoreSettings()).segments()
    found = {thing for one in segments if (thing := thing_of_segment(one.name)) is not None}
    found |= {Thing(Kind.PIPELINE, name) for name in stored_state(files.journal).pipelines}
    return found | ({APPLICATION} if APPLICATION_FILE in files.plain.list() else set())


def only_shard(source: BucketPlace) -> BucketPlace:
    """The one that has data: a cluster has others, which may be empty. Raises RequestError if several have some,
    StoreInUse, and what the store raises.
    """
    data: dict[int, str] = {}
    shards = source.shards()
    if shards in ([], [source.shard]):
        return source
    for shard in shards:
        one = source.of_shard(shard)
        one.check_unused()
        with one.comparing() as opened:
            if chapter_bases(opened.journal) and (found := _something_in(opened)):
                data[shard] = found
    if len(data) > 1:
        examples = "; ".join(f"shard {shard}: {found}" for shard, found in data.items())
        raise RequestError(
            f"{source.name} is the bucket of a cluster with data in {len(data)} shards ({examples}), and only those of "
            "a single one can be copied",
            "To another bucket, copy the objects with a tool of the store while no worker runs, for example: rclone "
            "sync. Let clients read what must go to a disk.",
        )
    return source.of_shard(next(iter(data), source.shard))


def _something_in(files: OpenPlace) -> str:
    """What a copy of the shard would bring along; "" if it is empty."""
    things = sorted(map(str, things_in(files)))
    if things:
        more = f" and {len(things) - 1} more" if len(things) > 1 else ""
        return f"{things[0]}{more}"
    segments = SegmentStore(ReadOnlyJournal(files.journal), StoreSettings()).segments()
    return next((f"segment {one.name!r}" for one in segments if one.length > one.start), "")


def _put_access_list(target: Place, content: bytes) -> None:
    """A bucket has it beside its shards."""
    if isinstance(target, BucketPlace):
        target.put_access_list(content)
    else:
        write_private(target.data / ACCESS_FILE, content)


def _check(source: Place, old: OpenPlace, stage: Stage) -> None:
    report = verify(old.journal, lambda done, total: stage("verifying", done, total))
    if not report.is_sound:
        raise Damaged(
            f"{source.name} is damaged, and nothing was copied: {report.problems[0]}",
            f"Run: penstock store verify {source.name}, then restore the file or truncate past the damage.",
        )


def _files(old: OpenPlace, plain_files: Sequence[str]) -> Iterator[_Source]:
    bases = chapter_bases(old.journal)
    for base in bases:
        name = chapter_name(base)
        yield _Source(name, old.journal.open(name).size(), False, base != bases[-1])
    present = set(old.plain.list())
    for name in plain_files:
        if name in present:
            yield _Source(name, old.plain.open(name).size(), True, True)


class _Copy:
    def __init__(self, old: OpenPlace, new: OpenPlace, files: list[_Source], stage: Stage) -> None:
        self._old = old
        self._new = new
        self._files = files
        self._stage = stage
        self._total = sum(one.size for one in files)
        self._done = 0
        self._checksums: dict[str, int] = {}
        self._copied = Copied()

    def run(self, target: Place, copy_checkpoints: Callable[[], list[str]], pipelines: Sequence[str]) -> Copied:
        """`pipelines` are those with epochs."""
        try:
            self._begin()
            for one in self._files:
                self._copy_or_keep(one)
            self._new.finish()
            self._compare(target)
            self._copied.checkpoints = copy_checkpoints()
            self._copied.without_checkpoint = sorted({*pipelines} - {*self._copied.checkpoints})
            self._old.check_unused()
            self._end()
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            needed = f"The copy needs {show_size(self._total)}."
            raise DiskFull(f"{target.name} cannot be written: {error.strerror}", needed) from None
        return self._copied

    def _begin(self) -> None:
        """Whatever an earlier copy has left and the source does not have goes."""
        journal = self._new.journal
        if INCOMPLETE not in journal.list():
            journal.create(INCOMPLETE).sync()
            journal.sync()
        for files, names in self._names():
            present = {*files.list()} - {INCOMPLETE}
            for name in present - names if files is journal else present & {*PLAIN_FILES} - names:
                files.remove(name)

    def _names(self) -> list[tuple[Files, set[str]]]:
        """The directories of the target, and what each is to have."""
        journal = {one.name for one in self._files if not one.is_plain}
        plain = {one.name for one in self._files if one.is_plain}
        if self._new.journal is self._new.plain:
            return [(self._new.journal, journal | plain)]
        return [(self._new.journal, journal), (self._new.plain, plain)]

    def _copy_or_keep(self, one: _Source) -> None:
        old, new = self._of(self._old, one), self._of(self._new, one)
        source = old.open(one.name)
        if one.name in new.list():
            if self._is_same(one, source, new.open(one.name)):
                self._copied.kept_bytes += one.size
                self._count(one)
                return
            new.remove(one.name)
        self._checksums[one.name] = self._write(one, source, new.create(one.name))
        if one.is_settled:
            new.settle(one.name)
        new.sync()
        self._count(one)

    def _of(self, place: OpenPlace, one: _Source) -> Files:
        return place.plain if one.is_plain else place.journal

    def _is_same(self, one: _Source, source: File, there: File) -> bool:
        if there.size() != one.size:
            return False
        self._checksums[one.name] = checksum = _checksum(source)
        return checksum == _checksum(there)

    def _write(self, one: _Source, source: File, to: File) -> int:
        """Returns the checksum. Zeros are not written: the rest of the last chapter, which is set aside, is zeros."""
        checksum, unsynced = 0, 0
        for offset, piece in _pieces(source):
            checksum = crc32c(piece, checksum)
            if piece != _ZEROS[: len(piece)]:
                to.write(offset, [piece])
                unsynced += len(piece)
            if unsynced >= SYNC_BYTES:
                to.sync()
                unsynced = 0
            self._stage("copying", self._done + offset + len(piece), self._total)
        to.allocate(one.size)
        to.sync()
        return checksum

    def _count(self, one: _Source) -> None:
        self._done += one.size
        self._stage("copying", self._done, self._total)
        self._copied.bytes += one.size
        if one.is_plain:
            self._copied.plain_files.append(one.name)
        else:
            self._copied.chapters += 1

    def _compare(self, target: Place) -> None:
        """What the target has is read back: from the bucket itself, not from what is cached."""
        done = 0
        with target.comparing() as there:
            for one in self._files:
                file = self._of(there, one).open(one.name)
                checksum = 0
                for offset, piece in _pieces(file):
                    checksum = crc32c(piece, checksum)
                    self._stage("comparing", done + offset + len(piece), self._total)
                if (file.size(), checksum) != (one.size, self._checksums[one.name]):
                    raise Damaged(
                        f"{target.name}: {one.name} differs from the original", "Run it again: it is copied again."
                    )
                done += one.size

    def _end(self) -> None:
        """From now on the copy is complete."""
        self._new.journal.remove(INCOMPLETE)
        self._new.journal.sync()
        self._new.finish()


def _pieces(file: File) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while piece := file.read(offset, PIECE_BYTES):
        yield offset, piece
        offset += len(piece)


def _checksum(file: File) -> int:
    value = 0
    for _, piece in _pieces(file):
        value = crc32c(piece, value)
    return value
