"""`directory`: real files and objects, read once, across crashes and changes."""

import asyncio
import bz2
import gzip
import logging
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import zstandard

from penstock.bucket.stores import open_bucket
from penstock.connectors.directory.connector import Directory
from penstock.connectors.directory.places import place_of
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.testing.frame import Frame, Setup
from tests.connectors.databases.database import stored_in
from tests.connectors.planted import plant
from tests.connectors.real_host import LINES, Hosted, hosting
from tests.fixtures.peers import stored
from tests.support.waiting import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


def watching(tmp_path: Path, path: Path | str, **options: Any) -> Any:
    config = {"path": str(path), "poll": "20ms", "stable_for": 0, **options}
    return hosting(tmp_path / "data", "directory", config, interceptors_in=LINES)


async def have(hosted: Hosted, *values: bytes) -> None:
    await eventually(lambda: sorted(hosted.values()) == sorted(values), hosted.values)


async def looked(hosted: Hosted, times: int = 3) -> None:
    """It has looked so many times more."""
    for _ in range(times):
        await asyncio.sleep(0.05)


async def test_files_are_read_once_each_as_a_stream_and_new_ones_as_they_appear(tmp_path: Path, folder: Path) -> None:
    (folder / "a.csv").write_text("a1\na2\n")
    (folder / "no.txt").write_text("another kind\n")
    async with watching(tmp_path, folder, pattern="*.csv") as hosted:
        await have(hosted, b"a1", b"a2")
        (folder / "b.csv").write_text("b1")
        await have(hosted, b"a1", b"a2", b"b1")
        assert {event.metadata["path"] for event in hosted.events()} == {"a.csv", "b.csv"}
        assert hosted.host.streams == {}
    async with watching(tmp_path, folder, pattern="*.csv") as hosted:
        await looked(hosted)
        await have(hosted, b"a1", b"a2", b"b1")
        assert hosted.host.counters.streams == 0, "what is done is not even opened"


async def test_files_of_all_folders_are_read_in_order(tmp_path: Path, folder: Path) -> None:
    for number, name in enumerate(("2/b", "1/c", "1/.hidden", "a.tmp", "z")):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{name}\n")
        os.utime(path, (1000 - number, 1000 - number))
    async with watching(tmp_path / "1", folder, recursive=True, once=True) as hosted:
        await hosted.ended()
        await have(hosted, b"1/c", b"2/b", b"z")
    async with watching(tmp_path / "2", folder, recursive=True, once=True, order="time") as hosted:
        await hosted.ended()
        assert [stream.name.partition("#")[0] for stream in hosted.host.log.streams.values()] == ["z", "1/c", "2/b"]
        assert hosted.host.log.has_finished


async def test_after_a_crash_a_file_is_read_from_where_it_was(tmp_path: Path, folder: Path) -> None:
    lines = [b"line %05d" % number for number in range(20_000)]
    (folder / "a.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    (folder / "b").write_bytes(b"\n".join(lines))
    config = {"path": str(folder), "poll": "20ms", "stable_for": 0, "chunk": "4KiB", "parallel": 2, "once": True}
    setup = Setup(interceptors_in=LINES, interceptors_out=())
    for number in range(3):  # three crashes, each with the state of the one before
        async with Frame(tmp_path / str(number), Directory, config, setup) as frame:
            before = frame.instance.host.counters.events
            await frame.until(lambda before=before: frame.instance.host.counters.events > before + 1000)  # type: ignore[misc]
            frame.image(tmp_path / str(number + 1))
    async with Frame(tmp_path / "3", Directory, config, setup) as frame:
        await frame.until(lambda: frame.instance.host.status().state == "ended", "the end", 60)
        streams: dict[int, list[bytes]] = {}
        for event in await frame.events():
            streams.setdefault(event.stream_id, []).append(event.value)
        assert [*streams.values()] == [lines, lines]


async def test_files_are_decompressed_by_their_names(tmp_path: Path, folder: Path) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {
        "a.gz": gzip.compress,
        "b.zst": zstandard.ZstdCompressor().compress,
        "c.xz": lzma.compress,
        "d.bz2": bz2.compress,
        "e.log": bytes,
    }
    for name, packed in pack.items():
        (folder / name).write_bytes(packed(name.encode() + b"\n") + packed(b"more\n"))
    async with watching(tmp_path, folder) as hosted:
        await have(hosted, *(name.encode() for name in pack), *[b"more"] * 5)


async def test_what_cannot_be_decompressed_is_a_dead_letter_and_other_files_continue(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "a.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n")[:-3])
    (folder / "b").write_bytes(b"three\n")
    async with watching(tmp_path, folder) as hosted:
        await have(hosted, b"one", b"two", b"three")
        (dead_letter,) = hosted.dead_letters()
        assert "cannot be decompressed" in dead_letter.metadata["reason"]
        assert hosted.host.counts["bad_files"] == 1


async def test_a_file_that_is_still_written_waits_until_it_is_stable(tmp_path: Path, folder: Path) -> None:
    with (folder / "a").open("w") as file:
        async with watching(tmp_path, folder, stable_for="300ms") as hosted:
            for number in range(10):
                file.write(f"{number}\n")
                file.flush()
                await asyncio.sleep(0.05)
                assert hosted.values() == []
            await have(hosted, *(b"%d" % number for number in range(10)))


async def test_a_marker_releases_its_file(tmp_path: Path, folder: Path) -> None:
    (folder / "a").write_text("a\n")
    (folder / "b").write_text("b\n")
    (folder / "b.ok").touch()
    async with watching(tmp_path, folder, finished="marker", marker=".ok", done="delete") as hosted:
        await have(hosted, b"b")
        await eventually(lambda: sorted(path.name for path in folder.iterdir()) == ["a"])
        (folder / "a.ok").touch()
        await have(hosted, b"a", b"b")


async def test_a_file_is_deleted_only_when_its_epochs_are_complete_also_after_a_restart(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "a").write_text("a\n")
    async with watching(tmp_path, folder, done="delete") as hosted:
        hosted.hold()
        await have(hosted, b"a")
        await looked(hosted)
        assert (folder / "a").exists()
    async with watching(tmp_path, folder, done="delete") as hosted:
        hosted.hold()
        await looked(hosted)
        assert (folder / "a").exists()
        hosted.complete()
        await eventually(lambda: not (folder / "a").exists())
        assert hosted.values() == [b"a"]


async def test_a_file_is_moved_and_never_over_another(tmp_path: Path, folder: Path) -> None:
    away = tmp_path / "away"
    (away / "deep").mkdir(parents=True)
    (away / "deep" / "a").write_text("older")
    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_text("a\n")
    async with watching(tmp_path, folder, recursive=True, done="move", move_to=str(away)) as hosted:
        await eventually(lambda: not (folder / "deep" / "a").exists())
        assert sorted(path.read_text() for path in (away / "deep").iterdir()) == ["a\n", "older"]
        assert hosted.values() == [b"a"]


async def test_a_file_that_changes_after_it_was_read_is_an_error_also_after_a_restart(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a").write_text("one\n")
    async with watching(tmp_path, folder) as hosted:
        await have(hosted, b"one")
    with (folder / "a").open("a") as file:
        file.write("two\n")
    with caplog.at_level(logging.ERROR):
        async with watching(tmp_path, folder) as hosted:
            await eventually(lambda: hosted.host.counts.get("changed_files") == 1)
            await looked(hosted)
            assert hosted.host.counts["changed_files"] == 1
            assert hosted.values() == [b"one"]
    assert "a has changed since it was read, and is not read again" in caplog.text
    async with watching(tmp_path, folder, changed="again") as hosted:
        await have(hosted, b"one", b"one", b"two")


async def test_files_that_are_gone_are_forgotten_once_they_are_complete(tmp_path: Path, folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).write_text(f"{name}\n")
    async with watching(tmp_path, folder, forget_after="10ms") as hosted:
        hosted.hold()
        await have(hosted, b"a", b"b")
        (folder / "a").unlink()
        await looked(hosted)
        assert len(hosted.host.stream_names()) == 2
        hosted.complete()
        await eventually(lambda: [name[:1] for name in hosted.host.stream_names()] == ["b"])


async def test_a_file_that_vanishes_while_it_is_read_is_an_error_and_its_stream_ends(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a").write_bytes(b"x" * 99 + b"\n" + b"y" * (1 << 20))
    async with watching(tmp_path, folder, chunk=100) as hosted:
        await have(hosted, b"x" * 99)
    (folder / "a").unlink()
    with caplog.at_level(logging.ERROR):
        async with watching(tmp_path, folder, forget_after="10ms") as hosted:
            await eventually(lambda: hosted.host.counts.get("vanished_files") == 1)
            await eventually(lambda: hosted.host.stream_names() == [])
    assert "a vanished before it was read to its end" in caplog.text


async def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path, folder: Path) -> None:
    (folder / "a").write_text("a\n")
    async with watching(tmp_path, folder, forget_after="1ms") as hosted:
        await have(hosted, b"a")
        folder.rename(tmp_path / "elsewhere")  # noqa: ASYNC240
        await eventually(lambda: "is not a directory" in hosted.host.status().reason)
        (tmp_path / "elsewhere").rename(folder)
        await hosted.connected()
        await looked(hosted)
        assert hosted.values() == [b"a"]


async def test_objects_below_a_prefix_are_read_once_and_deleted(tmp_path: Path) -> None:
    url = f"memory://{uuid4().hex}/incoming"
    bucket = open_bucket(url)
    bucket.create("a.csv", [b"a1\na2"])
    bucket.create("deep/b.csv.gz", [gzip.compress(b"b1\n")])
    async with watching(tmp_path, url, recursive=True, chunk=4) as hosted:
        await have(hosted, b"a1", b"a2", b"b1")
    async with watching(tmp_path, url, recursive=True, done="delete", chunk=4) as hosted:
        bucket.create("c.csv", [b"c1\n"])
        await have(hosted, b"a1", b"a2", b"b1", b"c1")
        await eventually(lambda: [*bucket.list("")] == [])


def test_only_what_the_worker_allows_is_read(tmp_path: Path, folder: Path) -> None:
    elsewhere = Permissions(roots=(tmp_path / "elsewhere",), own_store="s3://bucket/penstock")
    with pytest.raises(NotPermitted, match="outside the directories"):
        make_connector("directory", {"path": str(folder)}, elsewhere)
    with pytest.raises(NotPermitted, match="the worker's own store"):
        make_connector("directory", {"path": "s3://bucket/penstock/0"}, elsewhere)


async def test_a_link_to_a_file_elsewhere_is_not_followed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "a").write_text("a\n")
    async with watching(tmp_path, folder, once=True) as hosted:
        await hosted.ended()
        assert sorted(hosted.values()) == [b"a", b"secret"], "this worker allows it"
    connector = make_connector("directory", {"path": str(folder)}, Permissions(roots=(folder,)))
    found = place_of(connector.options, connector.permissions.allows).list()
    assert [file.key for file in found.files] == ["a"]


async def test_a_stream_whose_name_the_first_format_has_stored_continues(tmp_path: Path, folder: Path) -> None:
    before = stored("streams-1")["directory"]
    path = folder / before["name"]
    path.write_text(before["content"])
    os.utime(path, ns=(before["modified_ns"], before["modified_ns"]))
    await plant(tmp_path / "data", pieces={before["stream"]: "one\n"})
    config = {"path": str(folder), "poll": "20ms", "stable_for": 0}
    async with Frame(tmp_path / "data", Directory, config, Setup(interceptors_in=LINES)) as frame:
        assert [event.value for event in await stored_in(frame, 2)] == [b"one", b"two"]
