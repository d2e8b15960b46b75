"""A worker's data move between disks and buckets, byte for byte; nothing is overwritten, and nothing starts on half."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.backup import places, store_copy
from penstock.backup.places import BucketPlace, Directory, ImpatientBucket, Place, live_owner, place
from penstock.backup.store_copy import Copied, copy_store
from penstock.bucket.objects import StoredObject
from penstock.bucket.stores import open_bucket
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.cluster.lease_state import LeaseTiming
from penstock.cluster.places import APPLICATION, PLACES, Kind, Places, Thing
from penstock.cluster.records import ShardRecord, WorkerRecord, encode, shard_key, worker_key
from penstock.core.errors import (
    BucketForbidden,
    BucketFull,
    BucketUnreachable,
    Damaged,
    IncompleteCopy,
    RequestError,
    StoreInUse,
    Unavailable,
)
from penstock.core.sizes import KIB
from penstock.store.bucket_files import BucketFiles
from penstock.store.chapters import INCOMPLETE, chapter_bases
from penstock.store.files import Files, RealFiles
from penstock.store.settings import StoreSettings
from penstock.testing.faulty_bucket import FaultyBucket
from tests.delivery.merging import Merging
from tests.support.running_worker import RunningWorker, running_worker

QUICK = LeaseTiming(renew=0.01, late=0.02, expired=0.05)
SMALL_CHAPTERS = StoreSettings(chapter_bytes=64 * KIB, reserve_bytes=64 * KIB)


def copy(source: Place, target: Place, secrets: bool = True) -> Copied:
    return copy_store(source, target, secrets=secrets, stage=lambda _what, _done, _total: None)


def contents(files: Files, names: list[str]) -> dict[str, bytes]:
    return {name: (file := files.open(name)).read(0, file.size()) for name in names}


def content_of(where: Place) -> dict[str, bytes]:
    """All chapters and plain files, except the token: it stands for the right to read one machine's files."""
    with where.reading() as found:
        journal = [name for name in found.journal.list() if name.endswith(".journal")]
        plain = [name for name in found.plain.list() if name in BucketPlace.plain_files]
        return contents(found.journal, journal) | contents(found.plain, plain)


def fill(worker: RunningWorker) -> None:
    """Several chapters, and a pipeline with epochs."""
    with SegmentClient(worker.address) as segments, CoordinatorClient(worker.http) as client:
        for letter in (b"a", b"b", b"c"):
            with segments.appender("s", create=True) as appender:
                appender.append(letter * 60_000)
        merging = Merging(client, segments, "orders")
        merging.epoch([b"a", b"b"])
        merging.epoch([b"c"])


def served(worker: RunningWorker) -> object:
    """What a client sees: segments with all their bytes, pipelines and epochs."""
    with SegmentClient(worker.address) as segments, CoordinatorClient(worker.http) as client:
        names = ["s", "raw-orders", "pipeline/orders/out"]
        stored = {name: [event.data for event in segments.events(name)] for name in names}
        return stored, [segments.info(name) for name in names], [(one.name, one.merged) for one in client.pipelines()]


@contextmanager
def worker_on(where: Place, folder: Path) -> Iterator[RunningWorker]:
    if isinstance(where, Directory):
        with running_worker(where.data, store=SMALL_CHAPTERS) as worker:
            yield worker
        return
    (folder / "data").mkdir(parents=True)
    files = BucketFiles(where.bucket, RealFiles(folder / "cache"))
    files.start()
    with running_worker(folder / "data", store=SMALL_CHAPTERS, files=files) as worker:
        yield worker


@pytest.fixture
def data(tmp_path: Path) -> Directory:
    """Filled by a worker that is stopped."""
    with running_worker(tmp_path / "original", store=SMALL_CHAPTERS) as worker:
        fill(worker)
    for name in ("application.json", "access.json"):
        (tmp_path / "original" / name).write_text("{}")
    (tmp_path / "original" / "token").write_text("secret")
    return Directory(tmp_path / "original")


def bucket_at(folder: Path) -> BucketPlace:
    return BucketPlace(folder.as_uri(), QUICK)


def test_a_worker_on_the_copy_serves_the_same_segments_bytes_pipelines_and_epochs(
    data: Directory, tmp_path: Path
) -> None:
    """From disk to bucket, from bucket to bucket, and back to a disk."""
    first, second, back = bucket_at(tmp_path / "b1"), bucket_at(tmp_path / "b2"), Directory(tmp_path / "back")
    original = content_of(data)
    assert len(original) > 4
    ways: list[tuple[Place, Place]] = [(data, first), (first, second), (second, back)]
    for source, target in ways:
        copied = copy(source, target)
        assert content_of(target) == original
        assert (copied.chapters, copied.plain_files) == (len(original) - 2, ["application.json", "access.json"])
    with worker_on(data, tmp_path / "w0") as worker:
        expected = served(worker)
    for number, (_, target) in enumerate(ways):
        with worker_on(target, tmp_path / f"w{number + 1}") as worker:
            assert served(worker) == expected
            fill_more(worker)


def test_everything_that_is_copied_to_a_bucket_has_its_place_there(data: Directory, tmp_path: Path) -> None:
    """With several shards, it would get a place in another one when it is next used."""
    first, second = bucket_at(tmp_path / "b1"), bucket_at(tmp_path / "b2")
    copy(data, first)
    copy(first, second)
    things = [Thing(Kind.SEGMENT, "s"), Thing(Kind.PIPELINE, "orders"), APPLICATION]
    for target in (first, second):
        assert [Places(target.bucket).find(thing) for thing in things] == [0, 0, 0]


def fill_more(worker: RunningWorker) -> None:
    with SegmentClient(worker.address) as segments, segments.appender("s") as appender:
        appender.append(b"one more")


@pytest.mark.process
def test_a_journal_moves_to_a_real_object_store_and_back(data: Directory, s3_url: str, tmp_path: Path) -> None:
    original = content_of(data)
    copy(data, BucketPlace(s3_url, QUICK))
    copy(BucketPlace(s3_url, QUICK), Directory(tmp_path / "back"))
    assert content_of(Directory(tmp_path / "back")) == original


def test_closed_chapters_are_objects_of_their_own_and_the_log_is_short(data: Directory, tmp_path: Path) -> None:
    target = bucket_at(tmp_path / "b")
    copy(data, target)
    with target.reading() as found:
        chapters = [name for name in found.journal.list() if name.endswith(".journal")]
        assert all(found.journal.remote(name) is not None for name in chapters[:-1])
    keys = [one.key for one in target.bucket.list("")]
    assert sum("/log/" in key for key in keys) < 10
    assert all(key.startswith(("shards/0/", PLACES)) for key in keys)


def test_secrets_stay_behind_on_demand(data: Directory, tmp_path: Path) -> None:
    everything = copy(data, Directory(tmp_path / "with")).plain_files
    assert everything == ["application.json", "access.json", "token"]
    assert copy(data, Directory(tmp_path / "without"), secrets=False).plain_files == ["application.json"]
    assert not (tmp_path / "without" / "token").exists()


def test_a_copy_is_private(data: Directory, tmp_path: Path) -> None:
    copy(data, Directory(tmp_path / "copy"))
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "copy").rglob("*")} == {0}


# What is refused.


def test_nothing_is_overwritten(data: Directory, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    with pytest.raises(RequestError, match="not empty"):
        copy(data, Directory(folder))
    with pytest.raises(RequestError, match="not empty: it has mine"):
        copy(data, bucket_at(folder))
    target = bucket_at(tmp_path / "b")
    copy(data, target)
    before = {one.key: target.bucket.get(one.key) for one in target.bucket.list("")}
    with pytest.raises(RequestError, match="has a journal, and nothing in it is overwritten"):
        copy(data, target)
    assert before == {one.key: target.bucket.get(one.key) for one in target.bucket.list("")}
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="not a directory"):
        copy(data, Directory(tmp_path / "file"))


def test_a_place_is_not_copied_to_itself(data: Directory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data.data)
    for same in (Directory(tmp_path / "link"), bucket_at(data.data)):
        with pytest.raises(RequestError, match="to itself"):
            copy(data, same)


def test_a_copy_is_not_made_inside_the_original(data: Directory, tmp_path: Path) -> None:
    """It would be deleted together with the original."""
    (tmp_path / "link").symlink_to(data.data)
    for inside in (Directory(data.data / "copy"), Directory(tmp_path / "link" / "copy"), bucket_at(data.data / "copy")):
        with pytest.raises(RequestError, match=r"is inside .* would delete the copy"):
            copy(data, inside)
    original = BucketPlace("memory://inside/orders")
    copy(data, original)
    with pytest.raises(RequestError, match="is inside memory://inside/orders: "):
        copy(original, BucketPlace("memory://inside/orders/copy"))
    assert copy(original, BucketPlace("memory://inside/orders-2")).chapters


def test_a_place_without_a_journal_is_refused(tmp_path: Path) -> None:
    for source in (Directory(tmp_path / "nothing"), bucket_at(tmp_path / "b")):
        with pytest.raises(RequestError, match="has no journal"):
            copy(source, Directory(tmp_path / "copy"))
    assert not (tmp_path / "nothing").exists()
    assert not (tmp_path / "copy").exists()


def test_a_directory_in_use_is_refused(data: Directory, tmp_path: Path) -> None:
    with worker_on(data, tmp_path), pytest.raises(StoreInUse, match="in use by process"):
        copy(data, Directory(tmp_path / "copy"))


def test_a_damaged_source_is_refused_before_anything_is_written(data: Directory, tmp_path: Path) -> None:
    file = min((data.data / "journal").glob("*.journal"))
    damaged = bytearray(file.read_bytes())
    damaged[1000] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(Damaged, match=f"nothing was copied: {file.name}"):
        copy(data, bucket_at(tmp_path / "b"))
    assert not (tmp_path / "b").exists()


# A bucket's owner.


def lease(bucket: FaultyBucket, revision: int = 1) -> None:
    bucket.create(shard_key(0), [encode(ShardRecord(shard=0, owner="w", term=1))])
    bucket.create(worker_key("w"), [encode(WorkerRecord(worker="w", revision=revision, addresses={}))])


def renew(bucket: FaultyBucket, revision: int) -> None:
    record = WorkerRecord(worker="w", revision=revision, addresses={})
    bucket.objects.objects[worker_key("w")] = StoredObject(encode(record), str(revision))


def test_an_owner_lives_if_it_renews_its_lease() -> None:
    bucket, now = FaultyBucket(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now >= 3:
            renew(bucket, 2)

    assert live_owner(bucket, LeaseTiming(), lambda: now, sleep) is None
    lease(bucket)
    found = live_owner(bucket, LeaseTiming(), lambda: now, sleep)
    assert found is not None
    assert found.worker == "w"
    assert now < 6


def test_an_owner_that_does_not_renew_is_dead() -> None:
    bucket, now = FaultyBucket(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    lease(bucket)
    assert live_owner(bucket, LeaseTiming(), lambda: now, sleep) is None
    assert now >= 6


def test_a_bucket_in_use_is_refused_as_source_and_as_target(
    data: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = bucket_at(tmp_path / "b")
    copy(data, used)
    owner = WorkerRecord(worker="host-1", revision=7, addresses={})
    monkeypatch.setattr(places, "live_owner", lambda _bucket, _timing, shard: owner)
    for source, target in ((used, Directory(tmp_path / "copy")), (data, bucket_at(tmp_path / "b2"))):
        with pytest.raises(StoreInUse, match="in use by worker host-1"):
            copy(source, target)


def test_a_worker_that_starts_on_the_source_meanwhile_leaves_the_copy_incomplete(
    data: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = bucket_at(tmp_path / "b"), Directory(tmp_path / "copy")
    copy(data, source)
    honest = store_copy._Copy._compare

    def start_a_worker(self: store_copy._Copy, where: Place) -> None:
        BucketFiles(source.bucket, RealFiles(tmp_path / "cache")).close()
        honest(self, where)

    monkeypatch.setattr(store_copy._Copy, "_compare", start_a_worker)
    with pytest.raises(StoreInUse, match="a worker has started"):
        copy(source, target)
    with pytest.raises(IncompleteCopy):
        content_of(target)


# Interruptions.


class Interrupted(BaseException):
    """Like Ctrl-C."""


def interrupt_at(monkeypatch: pytest.MonkeyPatch, stage: str, share: float, data: Directory, target: Place) -> None:
    def watch(what: str, done: int, total: int) -> None:
        if what == stage and done >= total * share:
            raise Interrupted

    with pytest.raises(Interrupted):
        copy_store(data, target, stage=watch)


@pytest.fixture(params=["directory", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Directory(tmp_path / "copy") if request.param == "directory" else bucket_at(tmp_path / "copy")


@pytest.mark.parametrize(("stage", "share"), [("copying", 0.0), ("copying", 0.5), ("comparing", 1.0)])
def test_an_interrupted_copy_is_recognized_and_continued(
    data: Directory, target: Place, stage: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, stage, share, data, target)
    with pytest.raises(IncompleteCopy, match="incomplete copy"), worker_on(target, tmp_path / "w"):
        pass
    with pytest.raises(IncompleteCopy, match="incomplete copy"):
        copy(target, Directory(tmp_path / "another"))
    copied = copy(data, target)
    assert content_of(target) == content_of(data)
    assert copied.kept_bytes > 0 or not share


def test_what_an_interrupted_copy_has_written_is_compared_and_replaced(
    data: Directory, target: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the source has changed since."""
    interrupt_at(monkeypatch, "comparing", 1.0, data, target)
    with target.writing() as found:
        first = min(name for name in found.journal.list() if name.endswith(".journal"))
        found.journal.open(first).write(100, [b"changed"])
        found.journal.create(f"{7:020d}.journal")
        found.journal.sync()
    (data.data / "access.json").write_text("[]")
    copy(data, target)
    assert content_of(target) == content_of(data)


def test_a_copy_that_differs_is_not_completed(
    data: Directory, target: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    honest = places.OpenPlace.finish

    def spoil(opened: places.OpenPlace) -> None:
        opened.journal.open(opened.journal.list()[0]).write(200, [b"spoiled"])
        opened.journal.sync()
        honest(opened)  # nothing is moved to other objects while it is compared

    monkeypatch.setattr(places.OpenPlace, "finish", spoil)

    with pytest.raises(Damaged, match="differs from the original"):
        copy(data, target)
    monkeypatch.undo()
    with target.writing() as found:
        assert INCOMPLETE in found.journal.list()
    copy(data, target)
    assert content_of(target) == content_of(data)


# Errors of the store, for a person who waits.


def test_an_impatient_bucket_gives_up_after_a_minute_and_at_once_where_waiting_does_not_help() -> None:
    bucket, now = FaultyBucket(), 0.0
    errors: list[Exception] = []
    bucket.before_each = lambda _: (_ for _ in ()).throw(errors[-1]) if errors else None
    impatient = ImpatientBucket(bucket, lambda: now)
    for error in (BucketForbidden("no"), BucketFull("full")):
        errors.append(error)
        with pytest.raises(Unavailable, match=str(error)) as raised:
            impatient.create("a", [b""])
        assert "automatically" not in raised.value.hint
    errors.append(BucketUnreachable("gone"))
    for now in (0.0, 50.0):  # noqa: B007  read by the clock
        with pytest.raises(BucketUnreachable):
            impatient.create("a", [b""])
    now = 61.0
    with pytest.raises(Unavailable, match="gone"):
        impatient.create("a", [b""])
    errors.clear()
    impatient.create("a", [b""])
    errors.append(BucketUnreachable("gone again"))
    with pytest.raises(BucketUnreachable):
        impatient.get("a")


def test_a_place_is_a_bucket_if_it_is_a_url(tmp_path: Path) -> None:
    assert isinstance(place(str(tmp_path)), Directory)
    assert isinstance(place((tmp_path / "b").as_uri()), BucketPlace)
    with pytest.raises(RequestError, match="not a supported kind of store"):
        place("s4://bucket")


def test_an_interrupted_copy_has_no_chapters_for_anyone(data: Directory, tmp_path: Path) -> None:
    copy(data, bucket_at(tmp_path / "b"))
    files = BucketFiles(open_bucket((tmp_path / "b").as_uri()), RealFiles(tmp_path / "cache"))
    assert chapter_bases(files)
    files.create(INCOMPLETE)
    with pytest.raises(IncompleteCopy):
        chapter_bases(files)
