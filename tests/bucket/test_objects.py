"""What every bucket does: the conformance suite of `Bucket`."""

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from tests.bucket.conftest import OpenAgain

THREADS = 8
KEYS = 20
LARGE = 17 * 2**20

RACER = """
import sys
from penstock.bucket.objects import ObjectExists
from penstock.bucket.stores import open_bucket
url, name, keys = sys.argv[1:]
bucket = open_bucket(url)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(keys)):
    try:
        bucket.create(f"race/{number}", [name.encode()])
    except ObjectExists:
        continue
    print(number, flush=True)
"""
"""Another process that creates objects, and prints the numbers of those that it has created."""


def keys(bucket: Bucket, prefix: str = "") -> list[str]:
    return sorted(each.key for each in bucket.list(prefix))


def test_an_object_is_what_was_created(bucket: Bucket) -> None:
    version = bucket.create("a/b", [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert bucket.get("a/b") == (b"one two three", version)


def test_an_object_may_be_empty(bucket: Bucket) -> None:
    version = bucket.create("empty", [])
    assert bucket.get("empty") == (b"", version)
    assert bucket.get_range("empty", 0, 10) == b""


def test_a_created_object_does_not_change_with_the_buffer_that_it_was_created_from(bucket: Bucket) -> None:
    buffer = bytearray(b"before")
    bucket.create("a", [memoryview(buffer)])
    buffer[:] = b"after!"
    assert bucket.get("a").data == b"before"


def test_a_key_that_is_taken_is_not_created(bucket: Bucket) -> None:
    version = bucket.create("a", [b"first"])
    with pytest.raises(ObjectExists):
        bucket.create("a", [b"second"])
    assert bucket.get("a") == (b"first", version)


def test_what_one_client_writes_all_see(open_again: OpenAgain) -> None:
    one, other = open_again(), open_again()
    version = one.create("a", [b"1"])
    assert other.get("a") == (b"1", version)
    version = other.replace("a", b"2", version)
    assert one.get("a") == (b"2", version)
    with pytest.raises(ObjectExists):
        one.create("a", [b"3"])


def test_a_large_object_is_created_only_once_and_read_in_ranges(bucket: Bucket) -> None:
    data = bytes(range(256)) * (LARGE // 256)
    version = bucket.create("large", [memoryview(data)[:1000], memoryview(data)[1000:]])
    with pytest.raises(ObjectExists):
        bucket.create("large", [data])
    assert bucket.get("large") == (data, version)
    assert bucket.get_range("large", LARGE - 300, 300) == data[-300:]


def test_a_range_is_shorter_only_at_the_end_of_the_object(bucket: Bucket) -> None:
    bucket.create("a", [b"0123456789"])
    assert bucket.get_range("a", 0, 3) == b"012"
    assert bucket.get_range("a", 7, 3) == b"789"
    assert bucket.get_range("a", 7, 100) == b"789"
    assert bucket.get_range("a", 10, 1) == b""
    assert bucket.get_range("a", 1000, 1) == b""
    assert bucket.get_range("a", 3, 0) == b""


def test_an_absent_object_is_not_found(bucket: Bucket) -> None:
    bucket.create("a/b/c", [b"1"])
    for key in ("none", "a", "a/b", "a/none", "none/at/all"):
        with pytest.raises(NoSuchObject):
            bucket.get(key)
        with pytest.raises(NoSuchObject):
            bucket.get_range(key, 0, 1)


def test_only_the_current_version_is_replaced(bucket: Bucket) -> None:
    first = bucket.create("a", [b"1"])
    second = bucket.replace("a", b"2", first)
    assert bucket.get("a") == (b"2", second)
    with pytest.raises(VersionChanged):
        bucket.replace("a", b"stale", first)
    third = bucket.replace("a", b"3", second)
    assert bucket.get("a") == (b"3", third)


def test_an_absent_object_is_not_replaced(bucket: Bucket) -> None:
    version = bucket.create("a", [b"1"])
    bucket.delete(["a"])
    with pytest.raises(VersionChanged):
        bucket.replace("a", b"2", version)
    with pytest.raises(NoSuchObject):
        bucket.get("a")


def test_a_deleted_key_can_be_created_again(bucket: Bucket) -> None:
    bucket.create("a", [b"1"])
    bucket.delete(["a"])
    bucket.create("a", [b"2"])
    assert bucket.get("a").data == b"2"


def test_many_objects_are_deleted_and_those_that_do_not_exist_are_skipped(bucket: Bucket) -> None:
    for number in range(5):
        bucket.create(f"many/{number}", [b"x"])
    bucket.create("other", [b"x"])
    bucket.delete(["none", "many/none", *(f"many/{number}" for number in range(5)), "not/there"])
    assert keys(bucket) == ["other"]
    bucket.delete([])
    bucket.delete(["many/0"])


def test_a_list_has_all_objects_whose_keys_start_with_the_prefix(bucket: Bucket) -> None:
    for key in ("log/01", "log/02", "log/11", "log/deep/er", "logs", "parts/1-2", "x"):
        bucket.create(key, [key.encode()])
    assert keys(bucket) == ["log/01", "log/02", "log/11", "log/deep/er", "logs", "parts/1-2", "x"]
    assert keys(bucket, "log/") == ["log/01", "log/02", "log/11", "log/deep/er"]
    assert keys(bucket, "log") == ["log/01", "log/02", "log/11", "log/deep/er", "logs"]
    assert keys(bucket, "log/0") == ["log/01", "log/02"]
    assert keys(bucket, "none/") == []
    assert [(each.key, each.size) for each in bucket.list("parts/1-")] == [("parts/1-2", len("parts/1-2"))]


def test_an_empty_bucket_lists_nothing(bucket: Bucket) -> None:
    assert keys(bucket) == []


def test_keys_may_have_all_characters_of_names(bucket: Bucket) -> None:
    for key in ("a b/c+d=e", "ä/ö", "50%25", "under_score~.x", ".hidden/.file.crc"):
        bucket.create(key, [key.encode()])
        assert bucket.get(key).data == key.encode()
    assert keys(bucket) == sorted(["a b/c+d=e", "ä/ö", "50%25", "under_score~.x", ".hidden/.file.crc"])
    bucket.delete(keys(bucket))
    assert keys(bucket) == []


def test_of_racing_creates_one_succeeds(open_again: OpenAgain) -> None:
    barrier = Barrier(THREADS)

    def race(name: int) -> list[int]:
        client = open_again()
        barrier.wait()
        return [number for number in range(KEYS) if created(client, f"race/{number}", str(name).encode())]

    with ThreadPoolExecutor(THREADS) as pool:
        won = list(pool.map(race, range(THREADS)))
    assert Counter(number for numbers in won for number in numbers) == Counter(range(KEYS))
    client = open_again()
    for name, numbers in enumerate(won):
        assert all(client.get(f"race/{number}").data == str(name).encode() for number in numbers)


def created(bucket: Bucket, key: str, data: bytes) -> bool:
    try:
        bucket.create(key, [data])
    except ObjectExists:
        return False
    return True


def test_of_racing_creates_in_several_processes_one_succeeds(shared_url: str) -> None:
    command = [sys.executable, "-c", RACER, shared_url]
    racers = [
        subprocess.Popen(
            [*command, str(name), str(KEYS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
    won = [racer.communicate()[0].split() for racer in racers]
    assert Counter(number for numbers in won for number in numbers) == Counter(map(str, range(KEYS)))


def test_of_racing_replacements_of_a_version_one_succeeds(open_again: OpenAgain) -> None:
    """Each thread counts up, as often as it can: no count is lost."""
    rounds = 5
    open_again().create("counter", [b"0"])
    barrier = Barrier(THREADS)

    def count(_: int) -> None:
        client = open_again()
        barrier.wait()
        for _ in range(rounds):
            while not counted(client):
                pass

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(count, range(THREADS)))
    assert open_again().get("counter").data == b"%d" % (rounds * THREADS)


def counted(bucket: Bucket) -> bool:
    found = bucket.get("counter")
    try:
        bucket.replace("counter", b"%d" % (int(found.data) + 1), found.version)
    except VersionChanged:
        return False
    return True
