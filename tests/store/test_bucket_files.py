"""docs/internals/bucket.md, sentence by sentence: what `BucketFiles` writes, and what it does when the store fails."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock.core.errors import (
    BucketFailed,
    BucketForbidden,
    BucketFull,
    BucketThrottled,
    BucketUnreachable,
    Damaged,
    StoreFailed,
    TakenOver,
    Unavailable,
    UnreadableFormat,
)
from penstock.core.sizes import KIB
from penstock.store import log_object
from penstock.store.bucket_files import _BESIDE_ROOM_BYTES, BucketFile, BucketFiles
from penstock.store.bucket_log import Patience, ShardLog
from penstock.store.bucket_verify import verify_bucket
from penstock.store.chapters import chapter_name
from penstock.store.local_copy import LocalCopy
from penstock.store.log_object import LogObject
from penstock.store.part_cache import BLOCK_BYTES
from penstock.store.record import RECORD_MAGIC
from penstock.store.settings import BucketSettings
from penstock.store.shard_directory import ORPHANS_SECONDS
from penstock.testing.faulty_bucket import FaultyBucket, Objects
from penstock.testing.memory_files import MemoryFile, MemoryFiles
from tests.store.small import commit, open_store

AT_ONCE = BucketSettings(linger_seconds=0, release_seconds=0)
BESIDE_BYTES = AT_ONCE.beside_bytes_min
PLACING = BucketSettings(linger_seconds=0, release_seconds=0, placed_bytes_min=100, groups_max=10)


def opened(
    objects: Objects, settings: BucketSettings = AT_ONCE, owner: str = "worker one", **more: object
) -> BucketFiles:
    arguments: dict[str, object] = {"owner": owner, "settings": settings, "sleep": lambda _: None, **more}
    return BucketFiles(FaultyBucket(objects), MemoryFiles(), **arguments)  # type: ignore[arg-type]


def client_of(files: BucketFiles) -> FaultyBucket:
    assert isinstance(files._bucket, FaultyBucket)
    return files._bucket


def put(files: BucketFiles, name: str, data: bytes) -> BucketFile:
    file = files.create(name)
    file.write(0, [data])
    return file


def settled(files: BucketFiles, name: str, data: bytes) -> BucketFile:
    """A file that is stored as one part."""
    file = put(files, name, data)
    files.settle(name)
    files.sync()
    maintain(files)
    return file


def maintain(files: BucketFiles) -> None:
    while files.maintain():
        pass


def content(files: BucketFiles, name: str) -> bytes:
    file = files.open(name)
    return file.read(0, file.size())


def keys(objects: Objects, kind: str) -> list[str]:
    return sorted(key for key in objects.objects if key.startswith(f"shards/0/{kind}"))


@contextmanager
def requests_of(files: BucketFiles) -> Iterator[list[str]]:
    made: list[str] = []
    client = client_of(files)
    client.before_each = made.append
    yield made
    client.before_each = lambda _: None


@contextmanager
def failing(files: BucketFiles, error: Exception, times: int, request: str = "create shards/0/log") -> Iterator[None]:
    left = times

    def fail(made: str) -> None:
        nonlocal left
        if left and made.startswith(request):
            left -= 1
            raise error

    client_of(files).before_each = fail
    yield
    assert not left
    client_of(files).before_each = lambda _: None


class TestTheLog:
    def test_all_operations_of_one_sync_are_one_object(self) -> None:
        files = opened(Objects())
        with requests_of(files) as made:
            put(files, "a", b"one")
            file = put(files, "b", b"two")
            files.rename("a", "c")
            file.sync()
            files.sync()
        assert made == ["create shards/0/log/000000000002"]

    def test_a_large_sync_becomes_several_objects_of_limited_size(self) -> None:
        objects = Objects()
        files = opened(objects, BucketSettings(object_bytes_max=1000))
        put(files, "a", bytes(range(250)) * 13).sync()
        assert len(keys(objects, "log")) == 1 + 4
        assert content(opened(objects), "a") == bytes(range(250)) * 13

    def test_a_sync_without_operations_makes_no_request(self) -> None:
        files = opened(Objects())
        with requests_of(files) as made:
            files.sync()
        assert made == []

    def test_what_was_not_synced_is_not_there_after_a_take_over(self) -> None:
        objects = Objects()
        files = opened(objects)
        put(files, "a", b"kept").sync()
        files.open("a").write(0, [b"lost"])
        assert content(opened(objects), "a") == b"kept"

    @pytest.mark.parametrize("error", [BucketUnreachable("no answer"), BucketForbidden("no"), BucketFull("full")])
    def test_a_sync_waits_for_as_long_as_the_store_refuses(self, error: Exception) -> None:
        objects = Objects()
        files = opened(objects)
        problems = list[str]()
        files._patience._sleep = lambda _: problems.append(files.problem)
        with failing(files, error, times=20):
            put(files, "a", b"kept").sync()
        assert len(problems) == 20
        assert all(str(error) in problem for problem in problems)
        assert files.problem == ""
        assert content(opened(objects), "a") == b"kept"

    def test_an_answer_that_there_is_nothing_ends_the_problem_of_an_earlier_request(self) -> None:
        files = opened(Objects())
        with failing(files, BucketUnreachable("down"), times=1, request="get"):
            files.check_owner()
        assert files.problem == ""

    def test_a_write_that_took_effect_without_an_answer_is_not_repeated(self) -> None:
        files = opened(Objects())
        client = client_of(files)
        client.faults.unanswered = 1.0

        def answer_again(request: str) -> None:
            if request.startswith("get"):
                client.faults.unanswered = 0.0

        client.before_each = answer_again
        put(files, "a", b"kept").sync()
        assert client.objects.get("shards/0/log/000000000002").data
        assert files._shard.log.next == 3

    def test_an_object_of_another_format_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        objects = Objects()
        monkeypatch.setattr(log_object, "FORMAT", 2)
        opened(objects)
        monkeypatch.undo()
        with pytest.raises(UnreadableFormat, match="newer version"):
            opened(objects)

    @pytest.mark.parametrize("at", [0, 9, 30, -1])
    def test_a_flipped_byte_in_the_log_is_damage(self, at: int) -> None:
        objects = Objects()
        put(opened(objects), "a", b"0123456789").sync()
        key = "shards/0/log/000000000002"
        data = bytearray(objects.objects[key].data)
        data[at] ^= 1
        objects.objects[key] = objects.objects[key]._replace(data=bytes(data))
        with pytest.raises(Damaged):
            opened(objects)

    def test_a_missing_object_before_the_end_is_damage(self) -> None:
        objects = Objects()
        files = opened(objects)
        for name in "abc":
            put(files, name, b"0").sync()
        del objects.objects["shards/0/log/000000000003"]
        with pytest.raises(Damaged, match="000000000003 is damaged: it is missing, and later ones are there"):
            opened(objects)


class TestTakeOver:
    def test_the_former_owner_can_no_longer_write_and_learns_who_has_taken_over(self) -> None:
        objects = Objects()
        first = opened(objects)
        put(first, "a", b"kept").sync()
        second = opened(objects, owner="worker two on b")
        first.open("a").write(0, [b"lost"])
        failures = list[Exception]()
        first.on_failure = failures.append
        for _ in range(2):
            with pytest.raises(TakenOver, match=r"worker two on b has taken over memory:.* \(term 2; this one has 1\)"):
                first.sync()
        assert len(failures) == 1
        assert content(second, "a") == b"kept"

    def test_an_owner_that_writes_nothing_learns_it_too(self) -> None:
        objects = Objects()
        first = opened(objects)
        first.check_owner()
        opened(objects)
        with pytest.raises(TakenOver):
            first.check_owner()

    def test_its_object_is_never_deleted(self) -> None:
        objects = Objects()
        for _ in range(3):
            files = opened(objects, BucketSettings(groups_max=1, linger_seconds=0, release_seconds=0))
            put(files, f"file-{files._shard.log.term}", b"0").sync()
            maintain(files)
        assert files._shard.log.take_overs[0] == 1
        assert {files._shard.log.keys.log(number) for number in files._shard.log.take_overs} <= set(
            keys(objects, "log")
        )

    def test_a_candidate_whose_number_was_used_and_deleted_starts_again(self) -> None:
        objects = Objects()
        owner = opened(objects, BucketSettings(groups_max=1, linger_seconds=0, release_seconds=0))
        put(owner, "a", b"0").sync()
        client = FaultyBucket(objects)

        def go_on(request: str) -> None:
            if request.startswith("create"):  # it has read the log to its end
                client.before_each = lambda _: None
                put(owner, "b", b"1").sync()
                maintain(owner)

        client.before_each = go_on
        candidate = BucketFiles(client, MemoryFiles())
        assert candidate.list() == ["a", "b"]
        with pytest.raises(TakenOver):
            owner.check_owner()

    def test_a_checkpoint_that_the_head_does_not_name_yet_is_used(self) -> None:
        objects = Objects()
        owner = opened(objects)
        put(owner, "a", b"0123").sync()
        owner._patience._sleep = _give_up(BucketUnreachable("down"))
        with failing(owner, BucketUnreachable("down"), 1, "create shards/0/head"), pytest.raises(BucketUnreachable):
            settled(owner, "b", b"4567")
        assert "shards/0/head" not in objects.objects
        successor = opened(objects)
        assert successor._shard.log.base.number == 4
        maintain(successor)
        assert content(opened(objects), "a") == b"0123"
        assert content(opened(objects), "b") == b"4567"

    def test_reading_only_takes_over_nothing_and_writes_nothing(self) -> None:
        objects = Objects()
        owner = opened(objects)
        put(owner, "a", b"0123").sync()
        before = dict(objects.objects)
        reader = opened(objects, read_only=True)
        assert content(reader, "a") == b"0123"
        with pytest.raises(OSError, match="reading only"):
            reader.create("b")
        assert objects.objects == before
        owner.check_owner()

    @pytest.mark.parametrize("error", [BucketForbidden("no"), BucketFull("full")])
    def test_opening_fails_at_once_with_an_error_that_waiting_does_not_mend(self, error: Exception) -> None:
        client = FaultyBucket()

        def refuse(_: str) -> None:
            raise error

        client.before_each = refuse
        with pytest.raises(type(error)):
            BucketFiles(client, MemoryFiles())


class TestAStartOnASlowLine:
    """Each request takes ten seconds."""

    def slow_log(self, objects: Objects, fail: Callable[[str, int], bool]) -> ShardLog:
        """`fail`: whether a request fails, by what it is and how many there were before it."""
        now, made = 0.0, 0

        def answer(request: str) -> None:
            nonlocal now, made
            now, made = now + 10, made + 1
            if fail(request, made):
                raise BucketThrottled("503")

        client = FaultyBucket(objects)
        client.before_each = answer
        patience = Patience(lambda _: None, lambda: now)
        return ShardLog(client, log_object.shard_prefix(0), b"w" * 16, patience)

    def test_progress_is_waited_for_however_long_it_takes(self) -> None:
        objects = Objects()
        owner = opened(objects)
        for number in range(20):
            put(owner, str(number), b"0123").sync()
        found: list[LogObject] = []
        log = self.slow_log(objects, lambda _, number: number % 3 == 0)
        log.take_over("worker two", lambda _: found.clear(), found.append)
        assert len(found) == 20
        assert log.term == 2

    @pytest.mark.parametrize("kind", ["get", "create"])
    def test_a_request_that_always_fails_is_given_up_though_others_are_answered(self, kind: str) -> None:
        log = self.slow_log(Objects(), lambda request, _: request.startswith(kind))
        with pytest.raises(BucketThrottled):
            log.take_over("worker two", lambda _: None, lambda _: None)


def _give_up(error: Exception) -> Callable[[float], None]:
    def give_up(_: float) -> None:
        raise error

    return give_up


class TestParts:
    def test_a_settled_file_becomes_one_part_and_its_objects_are_deleted(self) -> None:
        objects = Objects()
        files = opened(objects)
        file = files.create("a")
        for number in range(5):
            file.write(number * 100, [bytes([number]) * 100])
            file.sync()
        files.settle("a")
        files.sync()
        maintain(files)
        (part,) = keys(objects, "parts")
        assert objects.objects[part].data == b"".join(bytes([number]) * 100 for number in range(5))
        assert len(keys(objects, "log")) == 2, "the take-over and the checkpoint"
        remote = files.remote("a")
        assert remote is not None
        assert [one.key for one in remote.parts] == [part]

    def test_large_writes_stay_in_their_objects_and_the_rest_becomes_parts(self) -> None:
        objects = Objects()
        files = opened(objects, PLACING)
        pieces = [b"a" * 20, b"B" * 100, b"C" * 250, b"d" * 30, b"E" * 100]
        file, at = files.create("a"), 0
        for piece in pieces:
            file.write(at, [piece])
            file.sync()
            at += len(piece)
        files.settle("a")
        files.sync()
        maintain(files)
        remote = files.remote("a")
        assert remote is not None
        assert [(one.start, one.end, "/log/" in one.key) for one in remote.parts] == [
            (0, 20, False),
            (20, 120, True),
            (120, 370, True),
            (370, 400, False),
            (400, 500, True),
        ]
        assert set(keys(objects, "log")) >= {one.key for one in remote.parts if "/log/" in one.key}
        for start, end, _, key, shift in remote.parts:
            assert objects.objects[key].data[start - shift : end - shift] == b"".join(pieces)[start:end]
        assert content(opened(objects, PLACING), "a") == b"".join(pieces)

    def test_a_placed_write_may_be_cut_off_and_written_over(self) -> None:
        objects = Objects()
        files = opened(objects, PLACING)
        file = put(files, "a", b"A" * 200)
        files.sync()
        file.truncate(150)
        file.write(150, [b"B" * 100])
        file.write(10, [b"c" * 5])
        files.sync()
        expected = b"A" * 10 + b"c" * 5 + b"A" * 135 + b"B" * 100
        assert content(files, "a") == expected
        files = opened(objects, PLACING)
        assert content(files, "a") == expected
        files.settle("a")
        files.sync()
        maintain(files)
        assert content(files, "a") == content(opened(objects, PLACING), "a") == expected

    def test_an_object_that_two_files_need_goes_with_the_last_one(self) -> None:
        objects = Objects()
        files = opened(objects, PLACING)
        for name in "ab":
            put(files, name, name.encode() * 100)
        files.sync()
        (shared,) = {key for entry in files._shard.content.entries.values() for key in entry.part_keys()}
        files.remove("a")
        files.sync()
        maintain(files)
        assert shared in objects.objects
        assert content(opened(objects, PLACING), "b") == b"b" * 100
        files = opened(objects, PLACING)
        files.remove("b")
        files.sync()
        maintain(files)
        assert shared not in objects.objects

    def test_a_damaged_object_of_the_log_is_noticed_when_it_is_read_as_a_part(self) -> None:
        objects = Objects()
        files = opened(objects, PLACING)
        put(files, "a", b"A" * 100)
        files.sync()
        (key,) = files._shard.content.part_keys()
        files.settle("a")
        maintain(files)
        put(files, "b", b"b")
        for number in range(PLACING.groups_max):
            files.create(str(number))
            files.sync()
        maintain(files)
        flipped = bytearray(objects.objects[key].data)
        flipped[-1] ^= 1
        objects.objects[key] = objects.objects[key]._replace(data=bytes(flipped))
        report = verify_bucket(FaultyBucket(objects), MemoryFiles)
        assert [str(problem) for problem in report.problems] == [f"{key}: its {len(flipped)} bytes fail their checksum"]

    def test_the_part_of_a_file_that_was_cut_off_meanwhile_is_deleted(self) -> None:
        objects = Objects()
        files = opened(objects, BucketSettings(linger_seconds=0, release_seconds=0, groups_max=1))
        maintain(files)
        file = put(files, "a", b"x" * 100)
        files.sync()

        def cut(request: str) -> None:
            if request.startswith("create shards/0/parts"):
                client_of(files).before_each = lambda _: None
                file.truncate(0)
                files.sync()

        client_of(files).before_each = cut
        maintain(files)
        file.write(0, [b"y"])
        files.sync()
        maintain(files)
        assert set(keys(objects, "parts")) == files._shard.content.part_keys()

    def test_parts_that_a_failed_fold_has_created_are_deleted_by_the_next_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = Objects()
        files = opened(objects)
        maintain(files)
        for name in "ab":
            put(files, name, b"kept")
            files.settle(name)
        files.sync()
        with monkeypatch.context() as patched:
            patched.setattr(local_copy(files, "b"), "read_verified", _raise_unavailable)
            with pytest.raises(Unavailable):
                files.maintain()
        assert len(keys(objects, "parts")) == 1
        maintain(files)
        assert set(keys(objects, "parts")) == files._shard.content.part_keys()
        assert [content(opened(objects), name) for name in "ab"] == [b"kept", b"kept"]

    def test_a_file_that_grows_has_few_parts_however_often_it_is_folded(self) -> None:
        objects = Objects()
        files = opened(objects, BucketSettings(groups_max=1, linger_seconds=0, release_seconds=0))
        file = files.create("a")
        for number in range(100):
            file.write(number * 10, [b"0123456789"])
            file.sync()
            maintain(files)
        assert len(keys(objects, "parts")) <= 8
        assert content(opened(objects), "a") == b"0123456789" * 100

    def test_bytes_written_during_a_fold_are_not_lost(self) -> None:
        objects = Objects()
        files = opened(objects)
        file = put(files, "a", b"0000")
        files.settle("a")
        other = put(files, "b", b"1111")
        files.sync()

        def write_more(request: str) -> None:
            if request.startswith("create shards/0/parts"):
                client_of(files).before_each = lambda _: None
                other.write(2, [b"22"])
                other.write(4, [b"33"])
                files.sync()

        files.maintain()
        client_of(files).before_each = write_more
        maintain(files)
        assert content(opened(objects), "b") == b"112233"
        assert file.read(0, 4) == b"0000"

    def test_removed_files_leave_nothing_behind(self) -> None:
        objects = Objects()
        files = opened(objects)
        for name in "abc":
            settled(files, name, name.encode() * 50)
        for name in "abc":
            files.remove(name)
        maintain(files)
        assert keys(objects, "parts") == []
        assert len(keys(objects, "log")) == 2

    def test_orphans_of_a_crash_are_deleted_by_the_next_owner(self) -> None:
        objects = Objects()
        files = opened(objects)
        settled(files, "a", b"0123")
        objects.create("shards/0/parts/00000001-00000000-00000099", b"nobody names it")
        objects.create("shards/0/log/000000000002", b"written late, below the head")
        successor = opened(objects)
        maintain(successor)
        assert len(keys(objects, "parts")) == 1
        assert "shards/0/log/000000000002" not in objects.objects
        assert content(opened(objects), "a") == b"0123"


class TestReading:
    def test_a_stored_file_is_read_in_blocks_and_cached(self) -> None:
        objects, data = Objects(), bytes(range(256)) * (4 * BLOCK_BYTES // 256) + b"the end"
        settled(opened(objects), "a", data)
        files = opened(objects)
        file = files.open("a")
        with requests_of(files) as made:
            assert file.read(BLOCK_BYTES + 5, 10) == data[BLOCK_BYTES + 5 : BLOCK_BYTES + 15]
            assert file.read(BLOCK_BYTES, 10) == data[BLOCK_BYTES : BLOCK_BYTES + 10]
            assert file.read(0, len(data) + 100) == data
            assert file.read(4 * BLOCK_BYTES - 3, 20) == data[4 * BLOCK_BYTES - 3 :]
        assert len(made) == 3, "one block, the one before it, those after it"

    def test_the_cache_is_bounded(self) -> None:
        objects, data = Objects(), bytes(8 * BLOCK_BYTES)
        settled(opened(objects), "a", data)
        files = opened(objects, BucketSettings(cache_bytes=2 * BLOCK_BYTES))
        for block in range(8):
            files.open("a").read(block * BLOCK_BYTES, 10)
            assert files.counts().cached_bytes <= 2 * BLOCK_BYTES
        assert isinstance(files._cache_files, MemoryFiles)
        assert sum(map(len, files._cache_files._contents.values())) <= 2 * BLOCK_BYTES

    def test_a_start_removes_the_copies_of_an_earlier_one_and_no_other_file(self) -> None:
        objects, cache = Objects(), MemoryFiles()
        settled(opened(objects), "a", bytes(BLOCK_BYTES))
        files = BucketFiles(FaultyBucket(objects), cache)
        files.open("a").read(0, 1)
        put(files, "b", b"0").sync()
        assert len(cache.list()) == 2
        files.close()
        for name in ("fetched-7", "thesis.txt", "0.journal", "open-house.journal"):
            cache.create(name)
        BucketFiles(FaultyBucket(objects), cache, read_only=True)
        assert cache.list() == ["0.journal", "open-2.journal", "open-house.journal", "thesis.txt"]

    def test_what_is_cached_is_read_while_the_store_cannot_be_reached(self) -> None:
        objects = Objects()
        settled(opened(objects), "a", bytes(2 * BLOCK_BYTES))
        files = opened(objects)
        files.open("a").read(0, 1)
        client_of(files).faults.lost = 1.0
        assert files.open("a").read(5, 3) == bytes(3)
        with pytest.raises(Unavailable, match="cannot be read now"):
            files.open("a").read(BLOCK_BYTES, 1)

    def test_it_is_known_what_needs_a_request(self) -> None:
        objects = Objects()
        settled(opened(objects), "a", bytes(3 * BLOCK_BYTES))
        files = opened(objects)
        assert not files.is_here("a", 0, 1)
        files.open("a").read(BLOCK_BYTES, 1)
        with requests_of(files) as made:
            for offset, length in ((BLOCK_BYTES, BLOCK_BYTES), (BLOCK_BYTES - 1, 2), (2 * BLOCK_BYTES - 1, 2)):
                made.clear()
                is_here = files.is_here("a", offset, length)
                assert not made
                files._shard.read(files._nodes["a"].id, offset, length)
                assert is_here == (not made)
                files._shard.forget_cached(files._nodes["a"].id)
                files.open("a").read(BLOCK_BYTES, 1)

    def test_bytes_that_only_the_bucket_has_are_not_here(self) -> None:
        files = opened(Objects(), replace(PLACING, held_bytes_max=0))
        file = put(files, "a", b"in the local copy")
        file.sync()
        file.write(20, [bytes(200)])
        assert files.is_here("a", 0, 220)
        file.sync()
        assert not files.is_here("a", 0, 220)
        assert files.is_here("a", 0, 20)

    def test_a_part_that_is_missing_is_damage(self) -> None:
        objects = Objects()
        settled(opened(objects), "a", b"0123")
        files = opened(objects)
        (part,) = keys(objects, "parts")
        del objects.objects[part]
        with pytest.raises(Damaged, match=f"{part} is missing"):
            files.open("a").read(0, 1)


class TestInTheBackground:
    def test_the_thread_folds_deletes_and_notices_a_take_over(self) -> None:
        objects = Objects()
        files = opened(objects)
        lost = threading.Event()
        files.on_failure = lambda _: lost.set()
        files.start()
        put(files, "a", b"0123")
        files.settle("a")
        files.sync()
        opened(objects)
        assert lost.wait(60)
        files.close()

    def test_close_ends_a_sync_that_waits(self) -> None:
        files = BucketFiles(FaultyBucket(), MemoryFiles())
        waiting = threading.Event()

        def fail(_: str) -> None:
            waiting.set()
            raise BucketUnreachable("down")

        client_of(files).before_each = fail
        put(files, "a", b"0")
        caught = list[Exception]()

        def sync() -> None:
            try:
                files.sync()
            except StoreFailed as error:
                caught.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        assert waiting.wait(60)
        files.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "does not answer" in str(caught[0])


class TestDeletionsThatAreRefused:
    """Objects that nobody needs cost their storage alone."""

    SETTINGS = BucketSettings(linger_seconds=0, release_seconds=0, groups_max=2, unfolded_bytes_max=10)

    def write(self, files: BucketFiles, times: int) -> None:
        file = files.create("a") if "a" not in files.list() else files.open("a")
        for _ in range(times):
            file.write(file.size(), [b"0123456789"])
            file.sync()

    @pytest.mark.parametrize("kind", [BucketForbidden, BucketFailed, BucketUnreachable])
    def test_appends_and_folds_continue_and_all_is_deleted_later(self, kind: type[BucketFailed]) -> None:
        objects = Objects()
        files = opened(objects, self.SETTINGS)
        maintain(files)
        with failing(files, kind("not allowed"), times=4, request="delete"):
            self.write(files, 12)
        assert files.problem == ""
        self.write(files, 4)
        maintain(files)
        log = files._shard.log
        wanted = {log.keys.log(number) for number in {*log.take_overs, *log._deletable}}
        assert {*keys(objects, "log")} == wanted
        assert len(log._deletable) <= 3
        assert set(keys(objects, "parts")) == files._shard.content.part_keys()

    def test_each_failure_makes_the_pause_longer(self) -> None:
        objects = Objects()
        files = opened(objects, replace(self.SETTINGS, release_seconds=20))
        maintain(files)
        self.write(files, 4)
        files.remove("a")
        files.sync()
        files._shard._folded_at = float("-inf")
        with failing(files, BucketForbidden("not allowed"), times=1, request="delete"):
            files.maintain()
        assert files._shard._deletion_pause == 20
        files._shard._folded_at -= 21
        with failing(files, BucketForbidden("not allowed"), times=1, request="delete"):
            files.maintain()
        assert files._shard._deletion_pause == 40
        files._shard._folded_at -= 39
        assert not files.maintain()
        files._shard._folded_at -= 2
        assert files.maintain()
        assert files._shard._deletion_pause == 0
        assert keys(objects, "parts") == []

    def test_a_look_for_orphans_that_is_refused_is_repeated_later(self) -> None:
        objects = Objects()
        files = opened(objects, replace(self.SETTINGS, release_seconds=20))
        objects.create("shards/0/parts/00000000-dead-00000001", b"left by a crash")
        with failing(files, BucketForbidden("not allowed"), times=1, request="delete"):
            assert not files.maintain()
        assert not files.maintain()
        files._shard._orphans_due_at -= 21
        assert files.maintain()
        assert keys(objects, "parts") == []

    def test_orphans_that_arrive_late_are_found_a_day_later(self) -> None:
        objects = Objects()
        files = opened(objects)
        settled(files, "a", b"kept")
        files = opened(objects)
        maintain(files)
        settled(files, "b", b"kept, too")
        used = set(keys(objects, "parts"))
        objects.create("shards/0/parts/00000000-dead-00000001", b"sent before a crash")
        assert not files.maintain()
        files._shard._orphans_due_at -= ORPHANS_SECONDS
        assert files.maintain()
        assert set(keys(objects, "parts")) == used
        assert not files.maintain()


class TestAnswersOfNoKnownKind:
    def test_a_worker_waits_once_it_has_begun(self) -> None:
        objects = Objects()
        files = opened(objects)
        with failing(files, BucketFailed("the store answered 418"), times=3):
            put(files, "a", b"kept").sync()
        with failing(files, BucketFailed("the store answered 418"), times=3, request="get"):
            files.check_owner()
        assert content(opened(objects), "a") == b"kept"

    def test_a_start_fails(self) -> None:
        client = FaultyBucket()

        def fail(_: str) -> None:
            raise BucketFailed("the store answered 418")

        client.before_each = fail
        with pytest.raises(BucketFailed, match="418"):
            BucketFiles(client, MemoryFiles(), sleep=lambda _: None)


class TestFilesThatChangeDuringAFold:
    """A fold reads the local files: what was done to them, and is not in the log yet, must not get lost with it."""

    SETTINGS = BucketSettings(linger_seconds=60, release_seconds=0, groups_max=1)

    def test_a_file_that_was_removed_is_whole_or_gone_after_a_crash(self) -> None:
        objects = Objects()
        files = opened(objects, self.SETTINGS)
        put(files, "a", b"kept").sync()
        files.remove("a")
        maintain(files)
        assert opened(objects).list() == []

    def test_a_file_that_is_removed_while_the_bucket_alone_has_its_bytes_ends_no_fold(self) -> None:
        objects = Objects()
        settings = BucketSettings(linger_seconds=60, release_seconds=0, groups_max=3, placed_bytes_min=100)
        files = opened(objects, replace(settings, held_bytes_max=0))
        maintain(files)
        for name in "ab":  # the fold writes the placed bytes again, together with what follows them
            file = put(files, name, b"x" * 100)
            file.sync()
            for _ in range(2):
                file.write(file.size(), [b"y" * 90])
                file.sync()
        client = client_of(files)

        def remove(request: str) -> None:
            if request.startswith("create shards/0/parts"):
                client.before_each = lambda _: None
                files.remove("b")
                files.sync()

        client.before_each = remove
        maintain(files)
        assert files.list() == ["a"]
        assert content(opened(objects), "a") == b"x" * 100 + b"y" * 180

    def test_a_file_that_was_replaced_has_its_old_or_its_new_content_after_a_crash(self) -> None:
        objects = Objects()
        files = opened(objects, self.SETTINGS)
        put(files, "a", b"old").sync()
        put(files, "b", b"new")
        files.rename("b", "a")
        maintain(files)
        assert content(opened(objects), "a") == b"new"

    def test_a_file_that_was_cut_off_does_not_end_with_zeros_after_a_crash(self) -> None:
        objects = Objects()
        files = opened(objects, self.SETTINGS)
        put(files, "a", b"kept and cut").sync()
        files.open("a").truncate(4)
        maintain(files)
        assert content(opened(objects), "a") == b"kept"

    def test_a_settled_file_has_the_zeros_that_were_set_aside(self) -> None:
        objects = Objects()
        files = opened(objects)
        file = put(files, "a", b"data")
        file.allocate(100)
        files.settle("a")
        files.sync()
        maintain(files)
        assert file.read(0, 200) == b"data".ljust(100, b"\0")
        assert file.read(50, 10) == bytes(10)


class TestACacheOnABadDisk:
    """Only bytes that are verified get a new checksum in the bucket."""

    def lost_before_the_start(self, objects: Objects, lose: Callable[[bytearray], object]) -> BucketFiles:
        """A journal with three appends, opened again, with other bytes in the local copy of its last chapter."""
        store = open_store(opened(objects))
        store.create("s")
        for data in (b"first", b"second", b"last"):
            store.append("s", [data])
            commit(store)
        files = opened(objects)
        lose(cached(files, files._nodes[chapter_name(store.journal.chapter)].local_name))
        return files

    @pytest.mark.parametrize(
        "lose",
        [
            lambda content: content.__setitem__(slice(content.rindex(b"last"), content.rindex(b"last") + 4), b"lost"),
            lambda content: zero_from(content, content.rindex(RECORD_MAGIC)),
            lambda content: content.__delitem__(slice(content.rindex(RECORD_MAGIC), None)),
            lambda content: zero_from(content, content.index(RECORD_MAGIC)),
            lambda content: content.clear(),
            lambda content: content.__setitem__(0, 0),
        ],
        ids=["overwritten", "zeros", "cut off", "all records", "everything", "header"],
    )
    def test_a_start_reads_from_the_bucket_what_the_disk_has_lost_already(
        self, lose: Callable[[bytearray], object]
    ) -> None:
        """No later record proves the last one durable: it would count as a torn tail, or as never written."""
        objects = Objects()
        store = open_store(self.lost_before_the_start(objects, lose))
        assert store.read("s", 0, 100) == b"firstsecondlast"
        store.append("s", [b"more"])
        commit(store)
        assert not store.damage
        assert open_store(opened(objects)).read("s", 0, 100) == b"firstsecondlastmore"

    def test_a_start_fails_on_a_disk_that_does_not_keep_what_is_read_from_the_bucket(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = Objects()
        files = self.lost_before_the_start(objects, lambda content: zero_from(content, content.rindex(RECORD_MAGIC)))
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFile, "write", lambda *_: None)
            with pytest.raises(StoreFailed, match="the disk returns other bytes than were written"):
                open_store(files)
        assert open_store(opened(objects)).read("s", 0, 100) == b"firstsecondlast"

    def test_a_start_with_an_intact_cache_reads_nothing_from_the_bucket(self) -> None:
        files = self.lost_before_the_start(Objects(), lambda _: None)
        with requests_of(files) as requests:
            open_store(files)
        assert not [each for each in requests if each.startswith("get")]

    DATA = b"acknowledged " * 100

    def rotten(self, objects: Objects, how: Callable[[bytearray], object], **more: int) -> BucketFiles:
        """What was written and synced, with other bytes in the local file."""
        settings = BucketSettings(linger_seconds=0, release_seconds=0, groups_max=3, **more)
        files = opened(objects, settings)
        maintain(files)
        file = files.create("a")
        for at in range(0, len(self.DATA), 100):
            file.write(at, [self.DATA[at : at + 100]])
            if at % 300 == 0:
                file.sync()
        files.sync()
        how(cached(files, "open-1.journal"))
        return files

    @pytest.mark.parametrize(
        "how",
        [
            lambda content: content.clear(),
            lambda content: content.__setitem__(slice(50, 900), bytes(850)),
            lambda content: content.__setitem__(3, 255),
        ],
        ids=["lost", "zeros", "flipped"],
    )
    def test_what_a_fold_writes_comes_from_the_log_if_the_local_file_has_changed(
        self, how: Callable[[bytearray], object]
    ) -> None:
        objects = Objects()
        files = self.rotten(objects, how)
        files.maintain()
        assert content(opened(objects), "a") == self.DATA

    def test_so_does_what_is_settled(self) -> None:
        objects = Objects()
        files = self.rotten(objects, lambda content: content.clear())
        files.settle("a")
        files.sync()
        maintain(files)
        assert content(opened(objects), "a") == self.DATA

    def test_placed_bytes_that_are_written_again_are_verified_too(self) -> None:
        objects = Objects()
        files = opened(objects, replace(PLACING, held_bytes_max=0))
        maintain(files)
        file = put(files, "a", b"x" * 100)
        file.sync()
        assert file.read(0, 1) == b"x"
        cached(files, "block-")[5] ^= 1
        for _ in range(12):
            file.write(file.size(), [b"y" * 90])
            file.sync()
        maintain(files)
        assert content(opened(objects), "a") == b"x" * 100 + b"y" * 12 * 90

    def test_a_log_object_that_is_damaged_too_ends_the_fold_and_nothing_is_deleted(self) -> None:
        objects = Objects()
        files = self.rotten(objects, lambda content: content.clear())
        key = keys(objects, "log")[-1]
        objects.objects[key] = objects.objects[key]._replace(data=objects.objects[key].data[:-1] + b"!")
        before = {*objects.objects}
        with pytest.raises(Damaged, match=key):
            files.maintain()
        assert {*objects.objects} == before

    def test_a_disk_that_fails_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        objects = Objects()
        files = self.rotten(objects, lambda _: None)
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFile, "read", _raise_io_error)
            files.maintain()
        assert content(opened(objects), "a") == self.DATA

    def test_a_fold_of_what_is_intact_reads_nothing_from_the_bucket(self) -> None:
        files = self.rotten(Objects(), lambda _: None)
        with requests_of(files) as requests:
            files.maintain()
        assert not [each for each in requests if each.startswith("get shards/0/log")]

    def test_mending_restores_what_is_durable_and_what_is_not_yet(self) -> None:
        files = self.rotten(Objects(), lambda _: None)
        file = files.open("a")
        file.write(file.size(), [b"not durable yet"])
        cached(files, "open-1.journal").clear()
        assert files.mend("a")
        assert content(files, "a") == self.DATA + b"not durable yet"

    def test_what_may_be_evicted_is_forgotten_instead(self) -> None:
        files = opened(Objects())
        settled(files, "a", self.DATA)
        cached(files, "open-1.journal")[0] ^= 1
        assert files.mend("a")
        assert content(files, "a") == self.DATA

    def test_a_cached_block_that_is_too_short_is_fetched_again(self) -> None:
        objects = Objects()
        settled(opened(objects), "a", self.DATA)
        files = opened(objects)
        assert content(files, "a") == self.DATA
        del cached(files, "block-")[100:]
        assert content(files, "a") == self.DATA

    @pytest.mark.parametrize("is_closed", [True, False], ids=["a closed chapter", "the open chapter"])
    def test_a_reader_gets_what_was_stored_and_finds_no_damage(self, is_closed: bool) -> None:
        files = opened(Objects(), BucketSettings(linger_seconds=0, release_seconds=0))
        store = open_store(files, chapter_bytes=64 * KIB)
        store.create("s")
        data = [bytes([number]) * 5000 for number in range(40 if is_closed else 5)]
        for one in data:
            store.append("s", [one], head=b"the head")
            commit(store)
        maintain(files)
        name = next(name for name in files.list() if name.endswith(".journal"))
        assert files._nodes[name].local is None or not is_closed
        content = cached(files, files._nodes[name].local_name)
        at = content.index(b"the head")
        content[at : at + 4000] = bytes(4000)
        located = store.locate("s", 0, 5000)
        assert [bytes(head) for _, head in store.fetch_heads(located.pieces)] == [b"the head"]
        content[at : at + 4000] = bytes(4000)
        assert store.read("s", 0, 5000) == data[0]
        assert not store.is_damaged("s")

    def test_a_missing_file_has_nothing_to_mend(self) -> None:
        assert not opened(Objects()).mend("missing")

    def test_a_reader_need_not_wait_for_a_store_that_is_away(self) -> None:
        files = self.rotten(Objects(), lambda _: None)
        files._patience.problem = "the store is away"
        with pytest.raises(Unavailable, match="away"):
            files.mend("a")


class TestDamage:
    @pytest.mark.parametrize("number", [3, 4])
    def test_a_missing_object_that_the_head_needs_is_named(self, number: int) -> None:
        """3 was written while the parts of the checkpoint, 4, were uploaded."""
        objects = Objects()
        files = opened(objects, BucketSettings(groups_max=1))
        file = put(files, "a", b"kept")
        file.sync()
        client = client_of(files)

        def append(request: str) -> None:
            if request.startswith("create shards/0/parts"):
                client.before_each = lambda _: None
                file.write(4, [b" too"])
                file.sync()

        client.before_each = append
        files.maintain()  # orphans
        files.maintain()
        assert keys(objects, "log")[-2:] == ["shards/0/log/000000000003", "shards/0/log/000000000004"]
        objects.delete([f"shards/0/log/{number:012d}"])
        with pytest.raises(Damaged, match=f"shards/0/log/{number:012d} is damaged: it is missing"):
            opened(objects)

    def test_without_its_head_a_log_is_damaged_and_nothing_is_deleted(self) -> None:
        objects = Objects()
        files = opened(objects)
        for number in range(5):
            settled(files, f"file {number}", b"kept")
        objects.delete(["shards/0/head"])
        before = {*objects.objects}
        with pytest.raises(Damaged, match="000000000002 is damaged: it is missing, and later ones are there"):
            opened(objects)
        assert {*objects.objects} == before

    @pytest.mark.parametrize("key", ["shards/0/log/.nfs0001", "shards/0/parts/.nfs0001"])
    def test_an_object_of_another_name_is_ignored(self, key: str) -> None:
        objects = Objects()
        settled(opened(objects), "a", b"kept")
        objects.create(key, b"")
        files = opened(objects)
        maintain(files)
        assert content(files, "a") == b"kept"

    def test_after_an_unexpected_error_nothing_more_is_written(self) -> None:
        objects = Objects()
        files = opened(objects)
        maintain(files)
        put(files, "a", b"lost")
        with failing(files, RuntimeError("unexpected"), times=1), pytest.raises(RuntimeError):
            files.maintain()
        put(files, "b", b"refused")
        with pytest.raises(StoreFailed, match="unexpected"):
            files.sync()
        assert opened(objects).list() == []

    def test_a_cache_that_somebody_has_emptied_is_read_from_the_bucket(self) -> None:
        files = opened(Objects())
        put(files, "a", b"kept")
        put(files, "b", b"removed")
        files.settle("a")
        for name in files._cache_files.list():
            files._cache_files.remove(name)
        files.remove("b")
        files.sync()
        maintain(files)
        assert files.list() == ["a"]
        assert content(files, "a") == b"kept"


class TestWritesBesideTheBucket:
    """Large writes go to the local file while they go to the bucket."""

    def test_they_are_read_before_and_after_they_are_durable(self) -> None:
        objects, data = Objects(), b"x" * (BESIDE_BYTES + 1)
        with ThreadPoolExecutor(1) as executor:
            files = opened(objects, executor=executor)
            file = put(files, "a", data)
            assert not local_copy(files).is_complete
            assert file.read(0, 10) == b"x" * 10
            file.write(5, [b"yy" * BESIDE_BYTES])
            files.sync()
            assert local_copy(files).is_complete
            assert content(files, "a")[:10] == b"xxxxxyyyyy"
            assert content(files, "a") == content(opened(objects), "a")

    def test_a_local_disk_that_fails_ends_the_journal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with ThreadPoolExecutor(1) as executor:
            files = opened(Objects(), executor=executor)
            put(files, "a", b"x" * BESIDE_BYTES)
            monkeypatch.setattr(MemoryFile, "write", _raise_io_error)
            with pytest.raises(OSError, match="Input/output"):
                files.sync()
        with pytest.raises(StoreFailed, match="could not be written"):
            files.sync()

    def test_with_little_room_the_caller_learns_of_a_full_disk_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MemoryFiles, "free_bytes", lambda _: _BESIDE_ROOM_BYTES - 1)
        objects = Objects()
        with ThreadPoolExecutor(1) as executor:
            files = opened(objects, executor=executor)
            file = put(files, "a", b"x" * BESIDE_BYTES)
            assert local_copy(files).is_complete
            with monkeypatch.context() as patched:
                patched.setattr(MemoryFile, "write", _raise_full)
                with pytest.raises(OSError, match="No space"):
                    file.write(0, [b"y" * BESIDE_BYTES])
            files.sync()
            assert content(files, "a") == content(opened(objects), "a") == b"x" * BESIDE_BYTES


def local_copy(files: BucketFiles, name: str = "a") -> LocalCopy:
    local = files._nodes[name].local
    assert local is not None
    return local


def cached(files: BucketFiles, name: str) -> bytearray:
    """The bytes of a file in the cache, to be changed."""
    cache = files._cache_files
    assert isinstance(cache, MemoryFiles)
    return next(found for each, found in cache._contents.items() if each.startswith(name))


def zero_from(content: bytearray, start: int) -> None:
    content[start:] = bytes(len(content) - start)


def _raise_io_error(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _raise_unavailable(*_: object) -> None:
    raise Unavailable("not now")


def _raise_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
