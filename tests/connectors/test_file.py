"""`file`: real files, read, tailed across rotation and truncation, written and appended to."""

import asyncio
import bz2
import gzip
import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.connectors.api import Capabilities, Lost, StreamState
from penstock.connectors.file.connector import AppendedFile, File, encode
from penstock.connectors.file.options import FileOptions
from penstock.connectors.file.rotated import FileName, Inode, orphans
from penstock.connectors.registry import make_connector
from penstock.connectors.urls import parse_sink
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.testing.frame import Frame, Setup
from tests.connectors.databases.database import stored_in
from tests.connectors.planted import plant
from tests.connectors.real_host import LINES, NAME, Hosted, hosting
from tests.fixtures.peers import stored
from tests.support.waiting import eventually


def reading(tmp_path: Path, path: str, **options: Any) -> Any:
    config = {"mode": "read", "path": path, **options}
    return hosting(tmp_path / "data", "file", config, interceptors_in=LINES)


def tailing(tmp_path: Path, path: str, **options: Any) -> Any:
    config = {"mode": "tail", "path": path, "poll": "20ms", "linger": "100ms", **options}
    return hosting(tmp_path / "data", "file", config, interceptors_in=LINES)


async def have(hosted: Hosted, *values: bytes) -> None:
    await eventually(lambda: sorted(hosted.values()) == sorted(values), hosted.values)


async def values_at_the_end(hosted: Hosted) -> list[bytes]:
    """Everything that is stored once the source has ended."""
    await hosted.ended()
    return hosted.values()


# Reading.


async def test_every_matching_file_is_read_once_as_a_stream_and_then_the_source_has_ended(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c.txt"):
        (tmp_path / name).write_text(f"{name} 1\n{name} 2\n")
    async with reading(tmp_path, str(tmp_path / "*.log")) as hosted:
        await eventually(lambda: hosted.programs.view.has_finished(NAME))
        await have(hosted, b"a.log 1", b"a.log 2", b"b.log 1", b"b.log 2")
        paths = {event.stream_id: event.metadata["path"] for event in hosted.events()}
        assert sorted(paths.values()) == [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
        assert hosted.host.status().state == "ended"


async def test_an_existing_file_whose_name_looks_like_a_pattern_is_read_as_itself(tmp_path: Path) -> None:
    (tmp_path / "a[1].log").write_text("it\n")
    (tmp_path / "a1.log").write_text("another\n")
    async with reading(tmp_path, str(tmp_path / "a[1].log")) as hosted:
        assert await values_at_the_end(hosted) == [b"it"]


async def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo")
    async with reading(tmp_path, str(tmp_path / "a")) as hosted:
        await have(hosted, b"one", b"two")


async def test_a_file_is_read_from_where_the_last_run_stopped(tmp_path: Path) -> None:
    lines = [b"%06d" % number for number in range(60_000)]
    (tmp_path / "a").write_bytes(b"\n".join(lines) + b"\n")
    async with reading(tmp_path, str(tmp_path / "a"), chunk=4096) as hosted:
        await eventually(lambda: len(hosted.values()) > 100)
        await hosted.host.drain()
        before = len(hosted.values())
        assert before < len(lines)
    async with reading(tmp_path, str(tmp_path / "a")) as hosted:
        await eventually(lambda: hosted.programs.view.has_finished(NAME))
        await eventually(lambda: len(hosted.values()) >= len(lines))
        assert hosted.values() == lines


async def test_a_finished_file_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    for _ in range(3):
        async with reading(tmp_path, str(tmp_path / "a")) as hosted:
            assert await values_at_the_end(hosted) == [b"one"]


async def test_a_missing_file_is_awaited(tmp_path: Path) -> None:
    async with reading(tmp_path, str(tmp_path / "a*")) as hosted:
        await eventually(lambda: "no file matches" in hosted.host.status().reason)
        (tmp_path / "abc").write_text("one\n")
        await have(hosted, b"one")


async def test_a_file_that_cannot_be_read_blocks_no_other(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("one\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    async with reading(tmp_path, str(tmp_path / "?"), parallel=1) as hosted:
        await have(hosted, b"one")


async def test_bytes_that_are_not_a_record_are_a_dead_letter_and_other_files_continue(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "b").write_text("one\n")
    split = (LINES[0].__class__(type="split", config={"delimiter": "\n", "record_bytes_max": 1000}),)
    config = {"mode": "read", "path": str(tmp_path / "?"), "parallel": 1}
    async with hosting(tmp_path / "data", "file", config, interceptors_in=split) as hosted:
        await eventually(lambda: hosted.programs.view.has_finished(NAME))
        await have(hosted, b"one")
        await eventually(lambda: len(hosted.dead_letters()) == 1)
        assert hosted.host.counts == {"bad_files": 1}


async def test_at_its_quota_a_file_is_not_read_further(tmp_path: Path) -> None:
    lines = [b"%060d" % number for number in range(2000)]
    (tmp_path / "a").write_bytes(b"\n".join(lines) + b"\n")
    config = {"mode": "read", "path": str(tmp_path / "a"), "chunk": 1024}
    async with hosting(tmp_path / "data", "file", config, interceptors_in=LINES, quota_bytes=20_000) as hosted:
        await eventually(lambda: not hosted.host.room.there)
        await hosted.sources.durability.caught_up()
        stored = len(hosted.values())
        await asyncio.sleep(0.1)
        assert len(hosted.values()) == stored < len(lines)


# Tailing.


async def test_a_file_that_cannot_be_tailed_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.log").write_text("x\n")

    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("penstock.connectors.file.reading.opened", refuse)
    async with tailing(tmp_path, str(tmp_path / "*.log")) as hosted:
        await eventually(lambda: hosted.host.status().counts.get("failed_files", 0) >= 3)
    levels = [record.levelname for record in caplog.records if "read again later" in record.getMessage()]
    assert levels.count("WARNING") == 1


async def test_a_file_is_tailed_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthr")
    async with tailing(tmp_path, str(tmp_path / "*.log")) as hosted:
        await have(hosted, b"one", b"two")
        with path.open("a") as file:
            file.write("ee\nfour\n")
        await have(hosted, b"one", b"two", b"three", b"four")
        (tmp_path / "b.log").write_text("new\n")
        await have(hosted, b"one", b"two", b"three", b"four", b"new")


async def test_a_partly_written_line_is_not_split_by_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\nhalf")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one")
        await hosted.host.drain()
    with path.open("a") as file:
        file.write(" and half\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one", b"half and half")


async def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one")
        with path.open("a") as file:
            path.rename(tmp_path / "a.log.1")
            path.write_text("three\n")
            file.write("two\n")
        await have(hosted, b"one", b"two", b"three")
        await eventually(lambda: len(hosted.host.streams) == 1)


async def test_a_file_renamed_within_the_pattern_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    async with tailing(tmp_path, str(tmp_path / "a.log*")) as hosted:
        await have(hosted, b"one")
        path.rename(tmp_path / "a.log.1")
        path.write_text("two\n")
        await have(hosted, b"one", b"two")
    async with tailing(tmp_path, str(tmp_path / "a.log*")) as hosted:
        await asyncio.sleep(0.2)
        await have(hosted, b"one", b"two")


async def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one", b"two")
        os.truncate(path, 0)
        await asyncio.sleep(0.1)
        with path.open("a") as file:
            file.write("one\n")
        await eventually(lambda: hosted.host.counts.get("truncations") == 1)
        await have(hosted, b"one", b"two", b"one")
    async with tailing(tmp_path, str(path)) as hosted:
        with path.open("a") as file:
            file.write("more\n")
        await have(hosted, b"one", b"two", b"one", b"more")


async def test_a_file_that_was_truncated_and_has_grown_since_is_read_from_its_start(tmp_path: Path) -> None:
    """Both happen between two polls, so the file is never seen to be shorter."""
    path = tmp_path / "a.log"
    path.write_text("old 1\nold 2\n")
    async with tailing(tmp_path, str(path), poll="300ms") as hosted:
        await have(hosted, b"old 1", b"old 2")
        path.write_text("new 1\nnew 2\nnew 3\n")
        await have(hosted, b"old 1", b"old 2", b"new 1", b"new 2", b"new 3")
        assert hosted.host.status().counts["truncations"] == 1


async def test_a_new_file_with_the_inode_of_an_old_one_is_recognized_as_new(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("the first file\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"the first file")
    with path.open("r+") as file:  # as if the inode were reused
        file.truncate()
        file.write("another file, which is longer\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"the first file", b"another file, which is longer")


async def test_a_stream_whose_name_the_first_format_has_stored_continues(tmp_path: Path) -> None:
    before, path = stored("streams-1")["tail"], tmp_path / "a.log"
    path.write_text(before["content"])
    status = path.stat()
    name = before["stream"].format(device=status.st_dev, inode=status.st_ino)
    await plant(tmp_path / "data", pieces={name: "one\n"})
    config = {"mode": "tail", "path": str(path), "poll": "20ms"}
    async with Frame(tmp_path / "data", File, config, Setup(interceptors_in=LINES)) as frame:
        assert [event.value for event in await stored_in(frame, 2)] == [b"one", b"two"]


async def test_the_rest_of_a_removed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one")
        path.unlink()
        await have(hosted, b"one", b"two")
        await eventually(lambda: not hosted.host.streams)


async def test_what_copytruncate_has_copied_before_it_was_read_is_read_from_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    (tmp_path / "a.log.2").write_text("another first line\n" * 10)
    async with tailing(tmp_path, str(path), poll="300ms") as hosted:
        await have(hosted, b"one")
        (tmp_path / "a.log.1").write_text("one\ntwo\nthree\n")  # all of it between two looks
        path.write_text("")
        await eventually(lambda: hosted.host.counts.get("copies_read") == 1)
        with path.open("a") as file:
            file.write("four\n")
        await have(hosted, b"one", b"two", b"three", b"four")


# Files that are rotated while the worker is down.


async def read_before(tmp_path: Path, path: Any, text: str = "one\n", **options: Any) -> None:
    """The worker reads this, and then stops."""
    path.write_text(text)
    async with tailing(tmp_path, str(path), **options) as hosted:
        await have(hosted, *text.encode().splitlines())
        await hosted.host.drain()


def open_streams(hosted: Hosted) -> list[str]:
    states = {name: hosted.host.stream_state(name) for name in hosted.host.stream_names()}
    return [name for name, state in states.items() if state is StreamState.STARTED]


async def test_a_file_that_was_renamed_while_nobody_followed_it_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    await read_before(tmp_path, path)
    with path.open("a") as file:
        file.write("two\nthree")
    path.rename(tmp_path / "a.log.1")
    path.write_text("four\n")
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one", b"two", b"three", b"four")
        await eventually(lambda: len(open_streams(hosted)) == 1)
        assert hosted.host.counts["rotated_files"] == 1
        await hosted.host.drain()
    async with tailing(tmp_path, str(path)) as hosted:
        await hosted.connected()
        assert "rotated_files" not in hosted.host.counts


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "lz4": lz4.frame.compress,
    "bz2": bz2.compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("pattern", ["a.log", "a.log*"])
async def test_a_file_that_was_compressed_while_nobody_followed_it_is_read_to_its_end(
    tmp_path: Path, suffix: str, pattern: str
) -> None:
    path = tmp_path / "a.log"
    await read_before(tmp_path, path)
    path.unlink()
    packed = PACKERS[suffix](b"one\ntwo\n" + b"three " * 300_000 + b"\nfour")
    (tmp_path / f"a.log-20261119.{suffix}").write_bytes(packed)
    (tmp_path / f"a.log-20261118.{suffix}").write_bytes(PACKERS[suffix](b"another first line\n" * 9))
    path.write_text("five\n")
    async with tailing(tmp_path, str(tmp_path / pattern)) as hosted:
        await have(hosted, b"one", b"two", b"three " * 300_000, b"four", b"five")
        await eventually(lambda: len(open_streams(hosted)) == 1)
        assert hosted.host.counts.get("compressed_files", 0) == (0 if pattern == "a.log" else 2)
        assert not hosted.dead_letters()


async def test_a_file_that_was_copied_and_truncated_while_nobody_followed_it_is_read_from_its_copy(
    tmp_path: Path,
) -> None:
    for first in ("five\n", "one\n", ""):  # another line, the same one, and none yet
        folder = tmp_path / (first.strip() or "empty")
        folder.mkdir()
        path = folder / "a.log"
        await read_before(folder, path, "one\ntwo\n")
        (folder / "a.log.1").write_text("one\ntwo\nthree\n")
        path.write_text(first)
        async with tailing(folder, str(path)) as hosted:
            await have(hosted, b"one", b"two", b"three", *first.encode().splitlines())
            await eventually(lambda: len(open_streams(hosted)) == (1 if first else 0), lambda: open_streams(hosted))  # noqa: B023


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ({}, "no file in its directory"),
        ({"a.log.1.gz": gzip.compress(b"one\n")}, "is as long"),  # it ends before what was read
        (
            {f"a.log.{n}.gz": gzip.compress(b"one\ntwo\n%d\n" % n) for n in (1, 2)},
            "2 files begin like it: .*1.gz, .*2.gz",
        ),
    ],
    ids=["nothing", "short", "two"],
)
async def test_a_file_that_vanished_while_nobody_followed_it_is_an_error_and_its_stream_ends(
    tmp_path: Path, left: dict[str, bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.log"
    await read_before(tmp_path, path, "one\ntwo\n")
    path.unlink()
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    async with tailing(tmp_path, str(path)) as hosted:
        await eventually(lambda: hosted.host.counts.get("vanished_files") == 1)
        await eventually(lambda: not open_streams(hosted))
        assert hosted.values() == [b"one", b"two"]
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "read up to byte 8 vanished" in message
    assert re.search(reason, message)


async def test_the_damaged_rest_of_a_file_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    await read_before(tmp_path, path)
    path.unlink()
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-8])
    async with tailing(tmp_path, str(path)) as hosted:
        await have(hosted, b"one", b"two")
        await eventually(lambda: hosted.host.counts.get("bad_files") == 1)
        await eventually(lambda: len(hosted.dead_letters()) == 1 and not open_streams(hosted))


async def test_a_file_is_not_taken_for_another_with_the_same_first_line(tmp_path: Path) -> None:
    """Both were read before; one is compressed, the other deleted."""
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("# header\n")
    async with tailing(tmp_path, str(tmp_path / "*.log")) as hosted:
        await have(hosted, b"# header", b"# header")
        await hosted.host.drain()
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"# header\nmore\n"))
    (tmp_path / "a.log").unlink()
    (tmp_path / "b.log").unlink()
    async with tailing(tmp_path, str(tmp_path / "*.log")) as hosted:
        await eventually(lambda: hosted.host.counts.get("vanished_files") == 2)
        assert hosted.values() == [b"# header", b"# header"]


async def test_streams_are_kept_while_the_directory_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    await read_before(tmp_path, folder / "a.log")
    folder.rename(tmp_path / "elsewhere")
    async with tailing(tmp_path, str(folder / "a.log")) as hosted:
        await eventually(lambda: "no directory of" in caplog.text)
        assert len(open_streams(hosted)) == 1
    (tmp_path / "elsewhere").rename(folder)
    with (folder / "a.log").open("a") as file:
        file.write("two\n")
    async with tailing(tmp_path, str(folder / "a.log")) as hosted:
        await have(hosted, b"one", b"two")


def test_the_lives_of_a_file_are_one_file() -> None:
    name = FileName(Inode(2, 31), "0123456789abcdef")
    started = [f"{name}~10", f"{name}~9", f"{name}", "another", "2-20-0123456789abcdefp", "2-21-any", "2-22-any"]
    others = FileName(Inode(2, 0x20), "0123456789abcdefp"), FileName(Inode(2, 0x21), "any")
    assert orphans(started, {FileName(Inode(2, 0x22), "any")}) == {
        name: [f"{name}", f"{name}~9", f"{name}~10"],
        **{one: [str(one)] for one in others},
    }
    assert orphans(started, {FileName(Inode(2, 31), ""), *others, FileName(Inode(2, 0x22), "any")}) == {}


async def test_a_life_that_had_only_begun_when_the_worker_was_killed_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    async with tailing(tmp_path, str(path)) as hosted:
        path.write_text("one\n")
        await have(hosted, b"one")
        (name,) = hosted.host.stream_names()
        later = await hosted.host.open_stream(f"{name}~1", resume=True)
        await later.close()
        await hosted.host.drain()
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "a.log.1")
    async with tailing(tmp_path, str(path)) as hosted:
        await eventually(lambda: not open_streams(hosted))
        assert hosted.values() == [b"one", b"two"]


async def test_files_without_lines_are_found_by_their_inode_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    await read_before(tmp_path, path, lines=False)
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "b.log")
    async with tailing(tmp_path, str(path), lines=False) as hosted:
        await have(hosted, b"one", b"two")
        await eventually(lambda: not open_streams(hosted))


async def test_compressed_files_are_reported_once_and_not_tailed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"old\n"))
    (tmp_path / "a.log").write_text("one\n")
    async with tailing(tmp_path, str(tmp_path / "a.log*")) as hosted:
        await have(hosted, b"one")
        with (tmp_path / "a.log").open("a") as file:
            file.write("two\n")
        await have(hosted, b"one", b"two")
    assert caplog.text.count("is compressed, and not tailed") == 1


async def test_compressed_files_are_read_from_where_the_last_run_stopped(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(50_000)]
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    (tmp_path / "b").write_bytes(b"plain")
    async with reading(tmp_path, str(tmp_path / "[ab]*"), compression="auto", chunk=1024) as hosted:
        await eventually(lambda: hosted.values())
        await hosted.host.drain()
    async with reading(tmp_path, str(tmp_path / "[ab]*"), compression="auto", chunk=1024) as hosted:
        assert sorted(await values_at_the_end(hosted)) == sorted([*lines, b"plain"])


# Writing.


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "file:/tmp/a%20b"),
        ({"format": "frames", "rotate_bytes": "1MiB"}, "file:/tmp/a%20b?format=frames&rotate_bytes=1048576"),
        ({"rotate": "1h"}, "file:/tmp/a%20b?rotate=1h"),
    ],
)
def test_a_url_is_shorthand_for_mode_write(options: dict[str, Any], url: str) -> None:
    given = FileOptions.model_validate({"mode": "write", "path": "/tmp/a b", **options})
    assert parse_sink(url).options == given
    assert parse_sink(url).guarantee is File.capabilities(given).sink is Guarantee.EXACTLY_ONCE
    assert parse_sink(url).votes


def test_a_url_can_name_any_mode_with_a_port_in() -> None:
    appended = parse_sink("file:log.txt?mode=append&format=raw")
    assert appended.options == FileOptions(mode="append", path="log.txt", format="raw")
    assert not appended.votes
    with pytest.raises(RequestError, match="no port `in`"):
        parse_sink("file:log.txt?mode=tail")


async def test_mode_append_has_values_on_disk_when_they_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    async with hosting(tmp_path / "data", "file", {"mode": "append", "path": str(path)}, has_in=True) as hosted:
        await hosted.connected()
        await hosted.deliver([b"one", b"two"], [1, 2], 5)
        assert path.read_bytes() == b"one\ntwo\n"
        path.rename(tmp_path / "moved")
        await hosted.deliver([b"three"], [3], 5)
        assert path.read_bytes() == b"three\n"


async def test_a_partial_line_left_by_a_crash_does_not_corrupt_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_bytes(b"one\ntor")
    async with hosting(tmp_path / "data", "file", {"mode": "append", "path": str(path)}, has_in=True) as hosted:
        await hosted.connected()
        await hosted.deliver([b"two"], [1], 5)
        assert path.read_bytes() == b"one\ntor\ntwo\n"


@pytest.mark.parametrize(("form", "expected"), [("raw", b"onetwo"), ("frames", b"\0\0\0\3one\0\0\0\3two")])
async def test_values_are_written_in_the_configured_format(tmp_path: Path, form: str, expected: bytes) -> None:
    path = tmp_path / "out"
    config = {"mode": "append", "path": str(path), "format": form}
    async with hosting(tmp_path / "data", "file", config, has_in=True) as hosted:
        await hosted.deliver([b"one", b"two"], [1, 2], 5)
        assert path.read_bytes() == expected


def frames(*values: bytes) -> bytes:
    return encode(values, "frames")


@pytest.mark.parametrize("left", [b"\0", b"\0\0\0\5", b"\0\0\0\5abc", frames(b"x" * (2 << 20))[:-1]], ids=len)
async def test_the_part_of_a_frame_left_by_a_crash_is_removed(tmp_path: Path, left: bytes) -> None:
    path, before = tmp_path / "out", frames(b"one", b"", b"y" * (3 << 20), *[b"short"] * 500_000)
    path.write_bytes(before + left)
    config = {"mode": "append", "path": str(path), "format": "frames"}
    async with hosting(tmp_path / "data", "file", config, has_in=True) as hosted:
        await hosted.connected()
        assert path.read_bytes() == before
        await hosted.deliver([b"two"], [1], 5)
    assert path.read_bytes() == before + frames(b"two")


def test_frames_are_checked_again_only_if_the_file_is_another_or_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    file, reads = AppendedFile(path, "frames"), list[int]()
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    file.append(frames(b"one"))
    file.append(frames(b"two"))
    assert reads == []
    with path.open("ab") as other:
        other.write(frames(b"three") + b"\0\0")
    file.append(frames(b"four"))
    assert reads == [14]
    assert path.read_bytes() == frames(b"one", b"two", b"three", b"four")
    path.unlink()
    path.write_bytes(frames(b"new") + b"\0")
    file.append(frames(b"four"))
    assert path.read_bytes() == frames(b"new", b"four")


def test_a_file_of_something_else_than_frames_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"lines\nof text\n")
    with pytest.raises(Lost, match="does not consist of frames: there is none at byte 0"):
        AppendedFile(path, "frames").append(frames(b"one"))
    assert path.read_bytes() == b"lines\nof text\n"


async def test_a_path_that_cannot_be_written_is_lost_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out"
    async with hosting(tmp_path / "data", "file", {"mode": "append", "path": str(path)}, has_in=True) as hosted:
        await eventually(lambda: "cannot be appended to" in hosted.host.status().reason)
        with pytest.raises(Lost, match="No such file or directory"):
            await hosted.deliver([b"one"], [1], 5)
        path.parent.mkdir()
        await hosted.connected()
        await hosted.deliver([b"one"], [1], 5)
        assert path.read_bytes() == b"one\n"


DIRECTORY = frozenset({"the directory x"})


@pytest.mark.parametrize(
    ("mode", "capabilities"),
    [
        ("read", Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False)),
        ("tail", Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False)),
        (
            "write",
            Capabilities(
                sink=Guarantee.EXACTLY_ONCE,
                takes_epochs=True,
                votes=True,
                interceptors=frozenset(),
                claims=DIRECTORY,
            ),
        ),
        ("append", Capabilities(sink=Guarantee.AT_LEAST_ONCE)),
    ],
)
def test_each_mode_has_its_own_port_and_guarantee(mode: str, capabilities: Capabilities) -> None:
    assert File.capabilities(FileOptions.model_validate({"mode": mode, "path": "x"})) == capabilities


def test_interceptors_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(
        """
connector:
  - {id: clock, type: metronome, config: {interval: 1s}}
  - {id: files, type: file, config: {mode: write, path: /tmp/x}, codec: json, interceptors: {out: [{type: join}]}}
pipeline: {id: p, spark: "system::passthrough"}
binding: {id: b, links: {connector/clock/out: pipeline/p/in, pipeline/p/out: connector/files/in}}
"""
    )
    result = CliRunner().invoke(app, ["check", str(tmp_path / "app.yaml")])
    assert 'interceptors cannot be used under "out" of this connector' in str(result.exception)


def test_an_option_without_meaning_in_its_mode_is_refused() -> None:
    with pytest.raises(RequestError, match="rotate is only for mode write, but the mode is read"):
        make_connector("file", {"mode": "read", "path": "x", "rotate": "1h"})
