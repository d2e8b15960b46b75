"""The specification in files.py, sentence by sentence, for every implementation."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from penstock.core.errors import StoreInUse
from penstock.store.bucket_files import BucketFiles
from penstock.store.files import File, Files, RealFiles
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.testing.faulty_files import FaultyFiles
from penstock.testing.memory_files import MemoryFiles

KINDS = ["real", "memory", "faulty", "bucket"]
Act: TypeAlias = Callable[[File], object]


def make(kind: str, directory: Path) -> Files:
    match kind:
        case "real":
            return RealFiles(directory / "data")
        case "memory":
            return MemoryFiles()
        case "bucket":
            return BucketFiles(FaultyBucket(), MemoryFiles())
        case _:
            return FaultyFiles(seed=1)


def close_and_reopen(files: Files, directory: Path) -> Files:
    files.close()
    match files:
        case RealFiles():
            return RealFiles(directory / "data", create=False)
        case FaultyFiles():
            return files.restart()
        case BucketFiles():
            return BucketFiles(files._bucket, MemoryFiles())
        case _:
            return files


def put(files: Files, name: str, data: bytes) -> File:
    file = files.create(name)
    file.write(0, [data])
    return file


def content(file: File) -> bytes:
    return file.read(0, file.size() + 1)


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return make(request.param, tmp_path)


class TestFile:
    def test_what_was_written_here_is_here(self, files: Files) -> None:
        file = put(files, "a", b"0123456789")
        assert files.is_here("a", 2, 5)
        file.sync()
        assert files.is_here("a", 2, 5)

    def test_a_read_returns_the_bytes_at_the_offset(self, files: Files) -> None:
        assert put(files, "a", b"0123456789").read(3, 4) == b"3456"

    def test_a_read_returns_fewer_bytes_only_at_the_end_of_the_file(self, files: Files) -> None:
        file = put(files, "a", b"0123456789")
        assert file.read(8, 100) == b"89"
        assert file.read(10, 1) == b""
        assert file.read(1000, 1) == b""

    def test_a_read_of_zero_bytes_returns_no_bytes(self, files: Files) -> None:
        assert put(files, "a", b"0123").read(1, 0) == b""

    def test_a_write_concatenates_its_buffers(self, files: Files) -> None:
        file = put(files, "a", b"..........")
        file.write(2, [b"ab", bytearray(b"cd"), memoryview(b"-ef-")[1:3], b""])
        assert content(file) == b"..abcdef.."

    def test_a_write_accepts_more_buffers_than_one_system_call(self, files: Files) -> None:
        file = files.create("a")
        buffers = [number.to_bytes(2) for number in range(5000)]
        file.write(1, buffers)
        assert content(file) == b"\0" + b"".join(buffers)

    def test_a_write_keeps_no_reference_to_its_buffers(self, files: Files) -> None:
        file = files.create("a")
        buffer = bytearray(b"before")
        file.write(0, [memoryview(buffer)])
        buffer[:] = b"after, and longer"
        assert content(file) == b"before"

    def test_a_write_past_the_end_leaves_zeros_in_the_gap(self, files: Files) -> None:
        file = put(files, "a", b"ab")
        file.write(5, [b"c"])
        assert content(file) == b"ab\0\0\0c"

    @pytest.mark.parametrize("buffers", [[], [b""], [b"", b""]])
    def test_a_write_of_nothing_changes_nothing(self, files: Files, buffers: list[bytes]) -> None:
        file = put(files, "a", b"ab")
        file.write(100, buffers)
        assert content(file) == b"ab"

    def test_synced_bytes_are_present_when_the_files_are_reopened(self, files: Files, tmp_path: Path) -> None:
        file = put(files, "a", b"kept")
        file.sync()
        files.sync()
        assert content(close_and_reopen(files, tmp_path).open("a")) == b"kept"

    def test_allocate_extends_the_file_with_zeros(self, files: Files) -> None:
        file = put(files, "a", b"ab")
        file.allocate(10_000)
        assert content(file) == b"ab".ljust(10_000, b"\0")

    def test_allocate_does_not_change_a_longer_file(self, files: Files) -> None:
        file = put(files, "a", b"0123456789")
        for size in (0, 4, 10):
            file.allocate(size)
            assert content(file) == b"0123456789"

    def test_allocated_bytes_can_be_written(self, files: Files) -> None:
        file = files.create("a")
        file.allocate(8)
        file.write(2, [b"ab"])
        assert content(file) == b"\0\0ab\0\0\0\0"

    def test_truncate_shortens_the_file(self, files: Files) -> None:
        file = put(files, "a", b"0123456789")
        file.truncate(4)
        assert content(file) == b"0123"
        file.truncate(0)
        assert content(file) == b""

    def test_truncate_does_not_change_a_shorter_file(self, files: Files) -> None:
        file = put(files, "a", b"0123")
        file.truncate(10)
        assert content(file) == b"0123"

    def test_truncated_bytes_never_reappear(self, files: Files) -> None:
        file = put(files, "a", b"secret")
        file.truncate(2)
        file.allocate(4)
        file.write(5, [b"."])
        assert content(file) == b"se\0\0\0."

    def test_several_open_files_of_one_name_see_the_same_bytes(self, files: Files) -> None:
        one = put(files, "a", b"0123456789")
        other = files.open("a")
        other.write(3, [b"abc"])
        assert content(one) == b"012abc6789"
        one.truncate(4)
        assert content(other) == b"012a"

    def test_closing_one_open_file_leaves_the_others_open(self, files: Files) -> None:
        one = put(files, "a", b"ab")
        other = files.open("a")
        one.close()
        assert content(other) == b"ab"

    @pytest.mark.parametrize(
        "act",
        [
            lambda file: file.read(0, 1),
            lambda file: file.write(0, [b"x"]),
            lambda file: file.sync(),
            lambda file: file.allocate(10),
            lambda file: file.truncate(0),
            lambda file: file.size(),
        ],
    )
    def test_operations_on_a_closed_file_raise(self, files: Files, act: Act) -> None:
        file = put(files, "a", b"ab")
        file.close()
        with pytest.raises(OSError) as caught:  # noqa: PT011  the number is what counts
            act(file)
        assert caught.value.errno == errno.EBADF
        assert content(files.open("a")) == b"ab"

    def test_closing_again_does_nothing(self, files: Files) -> None:
        file = files.create("a")
        file.close()
        other = files.create("b")
        file.close()
        other.write(0, [b"still open"])
        assert content(other) == b"still open"


class TestFiles:
    def test_list_returns_the_names_sorted(self, files: Files) -> None:
        assert files.list() == []
        for name in ("b", "c", "a"):
            files.create(name)
        assert files.list() == ["a", "b", "c"]

    def test_a_created_file_is_empty_and_can_be_read_and_written(self, files: Files) -> None:
        file = files.create("a")
        assert file.size() == 0
        file.write(0, [b"ab"])
        assert content(file) == b"ab"

    def test_a_name_cannot_be_created_twice(self, files: Files) -> None:
        put(files, "a", b"ab")
        with pytest.raises(FileExistsError):
            files.create("a")
        assert content(files.open("a")) == b"ab"

    @pytest.mark.parametrize(
        "act",
        [
            lambda files: files.open("none"),
            lambda files: files.remove("none"),
            lambda files: files.rename("none", "a"),
        ],
    )
    def test_a_missing_file_raises_not_found(self, files: Files, act: Callable[[Files], object]) -> None:
        files.create("a")
        with pytest.raises(FileNotFoundError):
            act(files)
        assert files.list() == ["a"]

    def test_an_opened_file_can_be_read_and_written(self, files: Files) -> None:
        put(files, "a", b"ab").close()
        file = files.open("a")
        file.write(1, [b"c"])
        assert content(file) == b"ac"

    def test_rename_moves_the_file_to_the_new_name(self, files: Files) -> None:
        put(files, "a", b"ab")
        files.rename("a", "b")
        assert files.list() == ["b"]
        assert content(files.open("b")) == b"ab"

    def test_rename_replaces_the_file_of_the_new_name(self, files: Files) -> None:
        put(files, "a", b"new")
        put(files, "b", b"old")
        files.rename("a", "b")
        assert files.list() == ["b"]
        assert content(files.open("b")) == b"new"

    def test_rename_to_the_same_name_changes_nothing(self, files: Files) -> None:
        put(files, "a", b"ab")
        files.rename("a", "a")
        assert files.list() == ["a"]
        assert content(files.open("a")) == b"ab"

    def test_open_files_stay_open_when_they_are_renamed_or_replaced(self, files: Files) -> None:
        new = put(files, "a", b"new")
        old = put(files, "b", b"old")
        files.rename("a", "b")
        new.write(3, [b"er"])
        assert content(old) == b"old"
        assert content(files.open("b")) == b"newer"

    def test_remove_removes_the_name(self, files: Files) -> None:
        files.create("a")
        files.create("b")
        files.remove("a")
        assert files.list() == ["b"]
        assert files.create("a").size() == 0

    def test_open_files_stay_open_when_they_are_removed(self, files: Files) -> None:
        file = put(files, "a", b"ab")
        files.remove("a")
        file.write(2, [b"c"])
        file.sync()
        assert content(file) == b"abc"

    def test_a_synced_directory_has_the_same_names_when_reopened(self, files: Files, tmp_path: Path) -> None:
        for name in ("a", "b", "c"):
            files.create(name)
        files.rename("b", "d")
        files.remove("c")
        files.sync()
        assert close_and_reopen(files, tmp_path).list() == ["a", "d"]

    def test_free_space_is_reported(self, files: Files) -> None:
        assert files.free_bytes() > 0

    def test_a_locked_directory_cannot_be_locked_again(self, files: Files) -> None:
        files.lock()
        with pytest.raises(StoreInUse):
            files.lock()

    def test_close_releases_the_lock(self, files: Files, tmp_path: Path) -> None:
        files.lock()
        again = close_and_reopen(files, tmp_path)
        again.lock()
        with pytest.raises(StoreInUse):
            again.lock()

    def test_the_lock_is_not_listed(self, files: Files) -> None:
        files.lock()
        assert files.list() == []

    def test_open_files_stay_usable_after_close(self, files: Files) -> None:
        file = put(files, "a", b"ab")
        files.close()
        assert content(file) == b"ab"


@pytest.mark.parametrize("limited", [MemoryFiles(space=100), FaultyFiles(space=100)], ids=KINDS[1:3])
def test_a_full_disk_refuses_only_growth(limited: Files) -> None:
    file = limited.create("a")
    file.allocate(60)
    assert limited.free_bytes() == 40
    with pytest.raises(OSError, match="No space left"):
        file.allocate(101)
    assert content(file) == bytes(60)
    with pytest.raises(OSError, match="No space left"):
        file.write(50, [b"x" * 51])
    assert file.size() <= 100
    file.allocate(100)
    file.write(0, [b"y" * 100])
    assert content(file) == b"y" * 100
    limited.create("b")
    limited.remove("a")
    assert limited.free_bytes() == 100


def step(random: Random, files: Files, opened: list[File]) -> object:
    old, new = random.choices("abc", k=2)
    file, at, length = random.choice(opened), random.randrange(3000), random.randrange(1500)
    acts: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: opened.append(files.create(new))),
        (1, lambda: opened.append(files.open(old))),
        (1, lambda: files.rename(old, new)),
        (1, lambda: files.remove(old)),
        (1, files.sync),
        (2, file.sync),
        (2, lambda: file.allocate(at)),
        (2, lambda: file.truncate(at)),
        (8, lambda: file.write(at, [random.randbytes(length), b"", random.randbytes(10)])),
        (8, lambda: file.read(at, length)),
    ]
    weights = [weight for weight, _ in acts]
    return random.choices(acts, weights)[0][1]()


def observe(files: Files, seed: int) -> list[object]:
    """Do random operations. Returns everything that can be observed."""
    random = Random(seed)
    seen: list[object] = []
    opened: list[File] = [files.create("a")]
    for _ in range(300):
        try:
            seen.append(step(random, files, opened))
        except OSError as error:
            seen.append(error.errno)
        seen.append((files.list(), content(random.choice(opened))))
    for file in opened:
        file.close()
    return seen


@pytest.mark.parametrize("seed", range(10))
def test_all_implementations_behave_the_same(seed: int, tmp_path: Path) -> None:
    real, *others = (observe(make(kind, tmp_path), seed) for kind in KINDS)
    assert all(other == real for other in others)
