"""A stream that resumes stores every record once, however its bytes are chunked and wherever the worker crashes."""

import asyncio
import gzip
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import DiskFull, StoreFailed
from penstock.ingest import batch
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.store.file_journal import FileJournal
from tests.ingest.conftest import CrashingJournal
from tests.ingest.out_ports.life import Life
from tests.ingest.out_ports.scene import PREFIXED, SPLIT, Scene
from tests.support.waiting import eventually


def prefixed(record: bytes) -> bytes:
    return len(record).to_bytes(4, "big") + record


@st.composite
def journeys(draw: st.DrawFn) -> tuple[tuple[InterceptorSpec, ...], list[bytes], bytes, list[list[int]], list[int]]:
    """Interceptors, records, the bytes that hold them, for each life of the worker how they come, and after how many
    records of its journal it crashes.
    """
    chain: tuple[InterceptorSpec, ...]
    kind = draw(st.sampled_from(["split", "prefixed", "split in prefixed", "compressed"]))
    records = draw(st.lists(st.binary(min_size=1, max_size=20).map(lambda b: b.replace(b"\n", b".")), max_size=30))
    if kind == "prefixed":
        data, chain = b"".join(map(prefixed, records)), PREFIXED
    elif kind == "split":
        data, chain = b"".join(record + b"\n" for record in records), SPLIT
    elif kind == "compressed":
        halves = records[: len(records) // 2], records[len(records) // 2 :]
        data = b"".join(gzip.compress(b"".join(record + b"\n" for record in half)) for half in halves)
        chain = (InterceptorSpec(type="decompress"), *SPLIT)
    else:
        lines = b"".join(record + b"\n" for record in records)
        cuts = draw(st.lists(st.integers(1, 25), max_size=20))
        frames, at = [], 0
        for cut in cuts:
            frames.append(lines[at : at + cut])
            at += cut
        frames = [frame for frame in (*frames, lines[at:]) if frame]
        data, chain = b"".join(map(prefixed, frames)), (*PREFIXED, *SPLIT)
    lives = draw(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1, max_size=4))
    crashes = draw(st.lists(st.integers(1, 12), min_size=len(lives), max_size=len(lives)))
    return chain, records, data, lives, crashes


async def travel(
    folder: Path,
    chain: tuple[InterceptorSpec, ...],
    data: bytes,
    lives: list[list[int]],
    crashes: list[int],
) -> list[bytes]:
    for chunks, records in zip(lives, crashes, strict=True):
        life = Life(folder, CrashingJournal)
        host = await life.host(interceptors_in=chain)
        life.journal.crash_after(records)
        stream_task = asyncio.create_task(host.open_stream("file", resume=True))
        await eventually(lambda: stream_task.done() or life.journal.failed)  # noqa: B023
        await asyncio.sleep(0)
        if stream_task.done() and stream_task.exception() is None:
            stream = stream_task.result()
            at = stream.position
            for chunk in chunks:
                with suppress(StoreFailed):
                    await stream.send(data[at : at + chunk])
                at += chunk
                await asyncio.sleep(0)
        stream_task.cancel()
        await asyncio.gather(stream_task, return_exceptions=True)
        await life.end()
    life = Life(folder, CrashingJournal)
    host = await life.host(interceptors_in=chain)
    stream = await host.open_stream("file", resume=True)
    await stream.send(data[stream.position :])
    await stream.finish()
    await life.sources.durability.caught_up()
    found = life.events()
    await life.end()
    ids = [event.event_id for event in found]
    assert ids == sorted(set(ids))
    return [event.payload for event in found]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(journeys())
def test_every_record_is_stored_once_with_any_chunking_and_a_crash_at_any_point(
    journey: tuple[tuple[InterceptorSpec, ...], list[bytes], bytes, list[list[int]], list[int]],
) -> None:
    chain, records, data, lives, crashes = journey
    with TemporaryDirectory(prefix="penstock-resume-") as folder:
        found = asyncio.run(travel(Path(folder), chain, data, lives, crashes))
    assert found == records


async def test_a_compressed_stream_is_read_from_its_beginning_and_stores_nothing_twice(scene: Scene) -> None:
    data = gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n")
    host = await scene.host(interceptors=(InterceptorSpec(type="decompress"), *SPLIT))
    stream = await host.open_stream("file", resume=True)
    await stream.send(data[:-10])
    await stream.close()
    again = await host.open_stream("file", resume=True)
    assert again.position == 0
    await again.send(data)
    await again.finish()
    await again.close()
    assert await scene.values() == [b"one", b"two", b"three"]


async def test_a_record_that_cannot_be_converted_is_a_dead_letter_once_and_the_stream_continues(scene: Scene) -> None:
    host = await scene.host(interceptors=(*SPLIT, InterceptorSpec(type="base64")))
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"YQ==\n")
    await stream.send(b"?\n")
    assert stream.position == 7
    await stream.close()
    again = await host.open_stream("file", resume=True)
    await again.send(b"Yg==\n")
    assert await scene.values() == [b"a", b"b"]
    (dead_letter,) = await scene.events("source.err")
    assert dead_letter.payload == b"?"
    assert "base64" in dead_letter.metadata["reason"]


async def test_records_that_were_collected_are_events_when_a_stream_is_cut_off(scene: Scene) -> None:
    host = await scene.host(interceptors=(*SPLIT, InterceptorSpec(type="collect", config={"delimiter": ","})))
    stream = await host.open_stream("peer")
    await stream.send(b"a\nb\npart")
    await stream.cut_off("the peer went away")
    assert await scene.values() == [b"a,b"]
    (dead_letter,) = await scene.events("source.err")
    assert (dead_letter.payload, dead_letter.metadata["reason"]) == (b"part", "the peer went away")


async def test_a_stream_is_opened_again_at_its_exact_position(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    assert stream.position == 0
    await stream.send(b"one\ntwo\nthr")
    assert stream.position == 8
    await stream.close()
    assert scene.gate.of(stream.ref) == ["started"]
    await scene.running.sources.durability.caught_up()
    await scene.crash()
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    assert stream.position == 8
    await stream.send(b"three\n")
    assert await scene.values() == [b"one", b"two", b"three"]


async def test_a_finished_stream_has_ended_and_can_be_opened_again(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"one\ntwo")
    await stream.finish()
    await stream.close()
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended", "completed"])
    assert stream.ref.stream_id in host.log.streams
    again = await host.open_stream("file", resume=True)
    assert again.position == 7
    await again.send(b"\nthree\n")
    assert await scene.values() == [b"one", b"two", b"three"]


async def test_a_send_split_into_several_records_is_stored_once_if_a_crash_comes_between_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "RECORD_BYTES", 1000)
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    lines = [b"%03d" % number for number in range(200)]
    data = b"".join(line + b"\n" for line in lines)
    await scene.running.sources.durability.caught_up()
    scene.running.journal.crash_after(3)
    with suppress(StoreFailed):  # it comes before the last record was queued, or behind it
        await stream.send(data)
    await eventually(lambda: scene.running.journal.failed)
    await scene.running.crash()
    await scene.leave()
    await scene.open()
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    stored = len(await scene.values())
    assert 0 < stored < 200
    assert stream.position == 0
    for start in range(0, len(data), 7):
        await stream.send(data[start : start + 7])
    assert await scene.values() == lines
    assert stream.position == len(data)
    assert host.status().duplicates == stored


async def test_bad_bytes_become_a_single_dead_letter_and_are_skipped_after_a_restart(scene: Scene) -> None:
    host = await scene.host(interceptors=PREFIXED)
    stream = await host.open_stream("file", resume=True)
    data = prefixed(b"good") + b"\xff\xff\xff\xffgarbage"
    with pytest.raises(BadBytes):
        await stream.send(data)
    await scene.running.sources.durability.caught_up()
    await scene.crash()
    host = await scene.host(interceptors=PREFIXED)
    stream = await host.open_stream("file", resume=True)
    assert stream.position == len(data)
    assert await scene.values() == [b"good"]
    assert await scene.values("source.err") == [b"\xff\xff\xff\xffgarbage"]


async def test_bytes_of_a_send_that_is_cancelled_on_a_full_disk_are_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"one\n")
    append = host.log.append
    monkeypatch.setattr(host.log, "append", lambda *_: (_ for _ in ()).throw(DiskFull("full")))
    sending = asyncio.create_task(stream.send(b"two\n"))
    await asyncio.sleep(0.1)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    monkeypatch.setattr(host.log, "append", append)
    again = await host.open_stream("file", resume=True)
    assert again.position == 4
    await again.send(b"two\nthree\n")
    assert await scene.values() == [b"one", b"two", b"three"]


async def test_a_stream_reopened_before_its_end_is_complete_is_not_reported_as_completed(
    scene: Scene,
) -> None:
    host = await scene.host(interceptors=SPLIT, segments=1)
    completion = scene.running.sources.completion("source")
    completion.hold({})
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"one\n")
    await stream.finish()
    await stream.close()
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended"])
    again = await host.open_stream("file", resume=True)
    completion.advance(scene.ends())
    await asyncio.sleep(0.1)
    assert scene.gate.of(stream.ref) == ["started", "ended", "started"]
    await again.finish()
    await again.close()
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended", "started", "ended", "completed"])


async def test_an_end_that_was_incomplete_at_a_crash_is_reported_once_it_completes(tmp_path: Path) -> None:
    life = Life(tmp_path, FileJournal)
    life.sources.completion("source").hold({})
    host = await life.host(interceptors_in=SPLIT, segments=1)
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"one\n")
    await stream.finish()
    await stream.close()
    await life.sources.durability.caught_up()
    await life.end()
    life = Life(tmp_path, FileJournal)
    life.sources.completion("source").hold({})
    await life.programs.start()
    await asyncio.sleep(0.05)
    assert life.sources.knows(stream.ref)
    assert life.gate.reports == []
    life.sources.completion("source").advance(life.ends())
    await eventually(lambda: life.gate.reports == [("completed", stream.ref)])
    assert not life.sources.knows(stream.ref)
    await life.programs.stop()
    await life.end()
