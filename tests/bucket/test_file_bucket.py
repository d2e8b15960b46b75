"""What is special about a bucket in a directory: the file system's errors, locks and left-overs."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.bucket.file_bucket import HIDDEN, LEFT_BEHIND_SECONDS, FileBucket
from penstock.bucket.objects import NoSuchObject
from penstock.core.errors import BucketForbidden, BucketFull, BucketUnreachable


@pytest.fixture
def bucket(tmp_path: Path) -> FileBucket:
    return FileBucket(tmp_path / "bucket", timeout=0.05)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, BucketFull),
        (errno.EDQUOT, BucketFull),
        (errno.EACCES, BucketForbidden),
        (errno.EROFS, BucketForbidden),
        (errno.EIO, BucketUnreachable),
        (errno.ESTALE, BucketUnreachable),
    ],
)
def test_errors_of_the_file_system_are_distinguished(
    bucket: FileBucket, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    version = bucket.create("a", [b"1"])

    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(kind, match=os.strerror(code)):
        bucket.create("b", [b"1"])
    with pytest.raises(kind):
        bucket.replace("a", b"2", version)
    assert bucket.get("a").data == b"1"
    with pytest.raises(NoSuchObject):
        bucket.get("b")
    assert list((Path(bucket._root) / HIDDEN).iterdir()) == []


def test_an_object_that_another_process_is_replacing_is_waited_for_and_then_unreachable(bucket: FileBucket) -> None:
    version = bucket.create("a", [b"1"])
    with (bucket._root / "a").open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BucketUnreachable, match="another process is replacing"):
            bucket.replace("a", b"2", version)
        assert bucket.get("a").data == b"1", "reads do not wait"
        bucket.create("b", [b"1"])
    bucket.replace("a", b"2", version)


def test_files_that_a_dead_process_was_writing_are_removed(bucket: FileBucket) -> None:
    bucket.create("a", [b"1"])
    old, new = bucket._root / HIDDEN / "old", bucket._root / HIDDEN / "new"
    for file in (old, new):
        file.write_bytes(b"half of an ob")
    long_ago = time.time() - LEFT_BEHIND_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    FileBucket(bucket._root, timeout=1)
    assert [file.name for file in (bucket._root / HIDDEN).iterdir()] == ["new"]
    assert [each.key for each in bucket.list("")] == ["a"]


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../../b", "a/", f"{HIDDEN}/a"])
def test_a_key_never_leaves_the_directory(bucket: FileBucket, key: str) -> None:
    with pytest.raises(ValueError, match="not a valid key"):
        bucket.create(key, [b"1"])


WRITER = """
import sys
from penstock.bucket.stores import open_bucket
bucket = open_bucket(sys.argv[1])
for number in range(10**9):
    bucket.create(f"log/{number:012}", [b"%d" % number * 1000])
    print(number, flush=True)
"""


@pytest.mark.process
def test_objects_are_whole_when_their_writer_is_killed(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(50):
        acknowledged = int(writer.stdout.readline())
    writer.kill()
    acknowledged = max([acknowledged, *map(int, writer.communicate()[0].split())])
    bucket = FileBucket(tmp_path / "bucket", timeout=1)
    written = sorted(bucket.list("log/"))
    assert len(written) - 1 in (acknowledged, acknowledged + 1)
    for number, each in enumerate(written):
        assert bucket.get(each.key).data == b"%d" % number * 1000


def test_a_directory_that_is_gone_or_another_one_is_unreachable_and_nothing_is_written_there(
    bucket: FileBucket, tmp_path: Path
) -> None:
    version = bucket.create("a/b", [b"1"])
    root = tmp_path / "bucket"
    root.rename(tmp_path / "elsewhere")
    for is_empty in (False, True):
        if is_empty:
            root.mkdir()
        requests = (
            lambda: bucket.create("a/c", [b"2"]),
            lambda: bucket.replace("a/b", b"2", version),
            lambda: bucket.get("a/b"),
            lambda: bucket.delete(["a/b"]),
            lambda: [*bucket.list("")],
        )
        for request in requests:
            with pytest.raises(BucketUnreachable, match=r"No such file|is another directory than before"):
                request()
    assert not [*root.iterdir()]
    root.rmdir()
    (tmp_path / "elsewhere").rename(root)
    assert bucket.get("a/b").data == b"1"


def test_a_directory_that_cannot_be_created_is_named() -> None:
    with pytest.raises(BucketUnreachable, match="file:///proc/none: No such file"):
        FileBucket(Path("/proc/none"), timeout=0.05).create("a", [b"1"])
