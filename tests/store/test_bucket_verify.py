"""`verify_bucket` reads every object, names what is damaged or missing, lists orphans, and changes nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.bucket.objects import StoredObject
from penstock.core.errors import IncompleteCopy, UnreadableFormat
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_verify import BucketReport, verify_bucket
from penstock.store.chapters import INCOMPLETE, chapter_name
from penstock.store.settings import BucketSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_bucket import FaultyBucket, Objects
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import next_chapter, open_store, prove


class Written:
    """A journal of three chapters: two of them are parts, the last one is in the log."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.files = self.open()
        self.store = open_store(self.files)
        for name in ("a", "b"):
            self.store.create(name)
        self.append(b"x")
        next_chapter(self.store)
        self.append(b"y")
        next_chapter(self.store)
        self.fold()
        self.append(b"z")

    def open(self) -> BucketFiles:
        settings = BucketSettings(release_seconds=0, linger_seconds=0)
        return BucketFiles(FaultyBucket(self.objects), MemoryFiles(), owner="the worker", settings=settings)

    def append(self, letter: bytes) -> None:
        self.store.append("a", [letter * 100])
        self.store.append("b", [b"b" * 50])
        prove(self.store)

    def fold(self) -> None:
        while self.files.maintain():
            pass

    def verify(self) -> BucketReport:
        return verify_bucket(FaultyBucket(self.objects), MemoryFiles)

    def keys(self, folder: str) -> list[str]:
        return sorted(key for key in self.objects.objects if key.startswith(f"shards/0/{folder}"))

    def part_of(self, number: int) -> str:
        remote = self.files.remote(self.files.list()[number])
        assert remote is not None
        return remote.parts[0].key

    def flip(self, key: str, at: int = -1) -> None:
        stored = self.objects.objects[key]
        data = bytearray(stored.data)
        data[at] ^= 1
        self.objects.objects[key] = StoredObject(bytes(data), stored.version)


@pytest.fixture
def written() -> Written:
    return Written()


def store_chapters(store: SegmentStore) -> list[str]:
    return [chapter_name(base) for base in store.journal.chapters]


def test_an_intact_journal_is_read_completely_and_nothing_is_changed(written: Written) -> None:
    before = dict(written.objects.objects)
    report = written.verify()
    assert report.is_sound
    assert report.parts == len(written.keys("parts/")) >= 2
    assert report.journal is not None
    assert report.journal.chapters == 3
    assert report.orphans == []
    assert report.bytes_read >= sum(len(before[key].data) for key in written.keys("parts/"))
    assert written.objects.objects == before


def test_an_empty_bucket_has_no_problem() -> None:
    report = verify_bucket(FaultyBucket(), MemoryFiles)
    assert report.is_sound
    assert (report.log_objects, report.parts) == (0, 0)


def test_a_closed_chapter_is_read_once(written: Written) -> None:
    requests: list[str] = []
    client = FaultyBucket(written.objects)
    honest = client.get

    def get(key: str) -> StoredObject:
        requests.append(key)
        return honest(key)

    client.get = get  # type: ignore[method-assign]
    assert verify_bucket(client, MemoryFiles).is_sound
    assert [requests.count(written.part_of(number)) for number in (0, 1)] == [1, 1]


def test_a_damaged_part_is_named_with_the_chapter_and_its_segments(written: Written) -> None:
    key = written.part_of(0)
    data = written.objects.objects[key].data
    written.flip(key, data.index(b"x" * 100))
    report = written.verify()
    assert not report.is_sound
    assert [problem.object for problem in report.problems] == [key]
    assert "fail their checksum" in str(report.problems[0])
    assert report.journal is not None
    assert [problem.file for problem in report.journal.problems] == [store_chapters(written.store)[0]]
    assert report.journal.problems[0].segments == ("a",)


def test_a_missing_part_is_named_with_the_segments_that_have_lost_bytes(written: Written) -> None:
    key = written.part_of(1)
    del written.objects.objects[key]
    report = written.verify()
    assert [str(problem) for problem in report.problems] == [f"{key}: the object is missing"]
    assert report.journal is not None
    (problem,) = report.journal.problems
    assert (problem.what, problem.segments) == ("the file is missing", ("a", "b"))


@pytest.mark.parametrize("place", [0, -1], ids=["header", "data"])
def test_a_damaged_object_of_the_log_is_named(written: Written, place: int) -> None:
    key = written.keys("log/")[-1]
    written.flip(key, place)
    report = written.verify()
    assert [problem.object for problem in report.problems] == [key]
    assert report.journal is None


def test_a_missing_object_of_the_log_is_named(written: Written) -> None:
    key = written.keys("log/")[-2]
    del written.objects.objects[key]
    report = written.verify()
    assert f"{key}: the object is missing, and later ones exist" in [str(problem) for problem in report.problems]


def test_an_object_that_does_not_continue_the_chain_is_named(written: Written) -> None:
    other = Written()
    key = written.keys("log/")[-1]
    written.objects.objects[key] = other.objects.objects[key]
    report = written.verify()
    assert [str(problem) for problem in report.problems] == [f"{key}: the object does not continue the one before it"]


def test_a_missing_checkpoint_and_a_damaged_head_are_named(written: Written) -> None:
    checkpoint = next(key for key in written.keys("log/") if b"parts/" in written.objects.objects[key].data)
    stored = written.objects.objects.pop(checkpoint)
    report = written.verify()
    assert f"{checkpoint}: the object is missing, and shards/0/head names it" in map(str, report.problems)
    written.objects.objects[checkpoint] = stored
    written.flip("shards/0/head", 0)
    assert any(problem.object == "shards/0/head" for problem in written.verify().problems)


def test_a_missing_take_over_is_named(written: Written) -> None:
    """Without it, a worker that was replaced could write where it stood."""
    key = written.keys("log/")[0]
    del written.objects.objects[key]
    assert f"{key}: the object, a take-over, is missing" in map(str, written.verify().problems)


def test_orphans_are_listed_and_are_no_error(written: Written) -> None:
    for key in ("shards/0/parts/00000001-0000000a-00000009", "shards/0/log/000000000002"):
        assert key not in written.objects.objects
        written.objects.create(key, b"left by a crash")
    report = written.verify()
    assert report.is_sound
    assert report.orphans == ["shards/0/log/000000000002", "shards/0/parts/00000001-0000000a-00000009"]


def test_a_damaged_part_of_the_open_chapter_is_named(written: Written) -> None:
    written.files._settings = replace(written.files._settings, groups_max=1)
    written.fold()
    (key,) = {*written.keys("parts/")} - {written.part_of(0), written.part_of(1)}
    written.flip(key)
    report = written.verify()
    assert [problem.object for problem in report.problems] == [key]
    assert report.journal is None
    assert not report.is_sound


def test_what_a_worker_replaces_meanwhile_is_no_damage(written: Written) -> None:
    def go_on() -> None:
        next_chapter(written.store)
        written.fold()
        written.append(b"w")

    client = FaultyBucket(written.objects)
    after_requests(client, 6, go_on)
    report = verify_bucket(client, MemoryFiles)
    assert report.is_sound, [*map(str, report.problems)]


def after_requests(client: FaultyBucket, count: int, act: Callable[[], object]) -> None:
    asked = 0

    def before_each(_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == count:
            act()

    client.before_each = before_each


def test_an_incomplete_copy_is_not_verified(written: Written) -> None:
    written.files.create(INCOMPLETE)
    written.files.sync()
    with pytest.raises(IncompleteCopy, match="incomplete"):
        written.verify()


def test_another_format_is_refused(written: Written) -> None:
    written.objects.objects["shards/0/head"] = StoredObject(b'{"format":99,"checkpoint":1,"first":1}', "1")
    with pytest.raises(UnreadableFormat, match="format 99"):
        written.verify()
