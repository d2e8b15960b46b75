"""Source logs when the store fails, or when somebody else has changed their segments."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.access.principals import Principal, Role
from penstock.core.errors import DiskFull
from penstock.ingest import known_streams, source_log
from penstock.ingest.batch import Batch
from penstock.ingest.settings import SourceSettings
from penstock.ingest.source_log import SourceLog, streams_segment
from penstock.protocol.connector import NOTHING_YET, Ack, EndOfStream, Error, Hello, Message, Notify, Ok
from penstock.protocol.stored.names import connector_segment
from penstock.store.operations import Append as WriteTo
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve

Append = Callable[..., Any]


def streams_on(running: RunningServer, route: int, count: int = 1) -> list[int]:
    """Ids of streams that belong to this segment."""
    log = running.sources.log("source")
    found = [stream_id for stream_id in range(1000) if log.find(stream_id, "s").route == route][:count]
    for stream_id in range(1000):
        del log.streams[stream_id]
    return found


def fail_appends(running: RunningServer, *names: str) -> Callable[[], None]:
    """Make the disk full for these segments only, until the returned function is called."""
    write: Append = running.store.write

    def failing(operations: Any, *args: Any, **options: Any) -> Any:
        numbers = {running.store.info(name).number for name in names if running.store.exists(name)}
        if any(isinstance(operation, WriteTo) and operation.segment in numbers for operation in operations):
            raise DiskFull("for a test")
        return write(operations, *args, **options)

    running.store.write = failing  # type: ignore[method-assign]

    def mend() -> None:
        running.store.write = write  # type: ignore[method-assign]

    return mend


async def acked(peer: Peer, stream_id: int, last_id: int) -> None:
    while True:
        frame = await peer.frame()
        assert isinstance(frame, Ack), frame
        if (stream_id, last_id) in frame.acked:
            return


@pytest.mark.parametrize("snapshot_bytes", [1, 1 << 26])
async def test_a_run_that_cannot_be_stored_leaves_every_stream_at_its_position(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, snapshot_bytes: int
) -> None:
    monkeypatch.setattr(source_log, "_SNAPSHOT_BYTES_PER_STREAM", 0)
    running = await serve(snapshot_bytes=snapshot_bytes)
    (there,), (lost, fresh) = streams_on(running, 0), streams_on(running, 1, 2)
    peer = await connect(running)
    for stream_id in (there, lost, fresh):
        await peer.open(stream_id)
    peer.send(Message(there, 10, 0, b"", b"x"), Message(lost, 10, 0, b"", b"x"))
    await acked(peer, lost, 10)
    mend = fail_appends(running, connector_segment("source", 1))
    peer.send(b"".join(map(_encoded, [(lost, 5), (lost, 20), (there, 20), (lost, 30), (fresh, 7)])))
    frames = await peer.frames_until_closed()
    assert not any(isinstance(frame, Error) for frame in frames), "closed plainly: it resumes"
    mend()
    points = {there: 10, lost: 10, fresh: NOTHING_YET}
    again = await connect(running)
    assert {stream_id: await again.open(stream_id) for stream_id in points} == points
    running.sources.log("source").snapshot()
    await running.crash()
    after_crash = await connect(await serve())
    assert {stream_id: await after_crash.open(stream_id) for stream_id in points} == points


def _encoded(message: tuple[int, int]) -> bytes:
    from penstock.protocol.connector import encode

    return encode(Message(*message, 0, b"", b"x"))


async def test_a_snapshot_that_cannot_be_written_is_harmless(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_log, "_SNAPSHOT_BYTES_PER_STREAM", 0)
    running = await serve(snapshot_bytes=1)
    fail_appends(running, streams_segment("source"))
    peer = await connect(running)
    await peer.open(7)
    for number in range(5):
        peer.send(Message(7, number, 0, b"", b"x"))
        await acked(peer, 7, number)
    await running.crash()
    again = await serve()
    assert await (await connect(again)).open(7) == 4
    assert [event.event_id for event in again.events()] == [0, 1, 2, 3, 4]


def full_after(calls: int, operation: Append) -> Append:
    """The operation of a store whose disk is full after this many calls."""
    count = 0

    def limited(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            raise DiskFull("for a test")
        return operation(*args, **options)

    return limited


async def test_a_snapshot_of_many_streams_is_written_in_parts_and_counts_only_when_complete(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_streams, "_PART_ROWS", 3)
    running = await serve()
    peer = await connect(running)
    for stream_id in range(10):
        await peer.open(stream_id)
        peer.send(Message(stream_id, stream_id, 0, b"", b"x"))
        await acked(peer, stream_id, stream_id)
    log = running.sources.log("source")
    log.snapshot()
    running.store.append = full_after(2, running.store.append)  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        log.snapshot()
    await running.crash()
    again = await connect(await serve())
    assert [await again.open(stream_id) for stream_id in range(10)] == list(range(10))


async def test_on_a_full_disk_a_source_continues_with_fewer_segments_than_configured(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serve(source=SourceSettings(segments=1))
    await (await connect(running)).open(7)
    from penstock.store.store import SegmentStore

    def no_room(*_: Any, **__: Any) -> None:
        raise DiskFull("for a test")

    monkeypatch.setattr(SegmentStore, "create", no_room)
    again = await serve(source=SourceSettings(segments=3))
    assert again.sources.log("source").segments == [connector_segment("source", 0)]
    peer = await connect(again)
    for stream_id in range(5):
        await peer.open(stream_id)


async def test_a_source_half_created_on_a_full_disk_is_completed_later(serve: Serve, connect: Connect) -> None:
    running = await serve()
    running.store.create = full_after(1, running.store.create)  # type: ignore[method-assign]
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "p", "source"))
    assert await peer.frames_until_closed() == []
    again = await serve()
    assert await (await connect(again)).open(7) == NOTHING_YET


async def test_foreign_records_in_a_segment_do_not_break_recovery(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(segments=1))
    name = connector_segment("source", 0)
    peer = await connect(running)
    await peer.open(7)
    for number in range(3):
        peer.send(Message(7, number, 0, b"", b"x"))
        await acked(peer, 7, number)
        running.store.append(name, [b"\0\0\0\0\0\0\0\7foreign"], writer=bytes(16), number=number + 1)
    await running.crash()
    assert await (await connect(await serve())).open(7) == 2


async def test_an_unreadable_stream_table_locks_out_only_its_own_source(serve: Serve, connect: Connect) -> None:
    running = await serve()
    running.store.create(streams_segment("odd"))
    running.store.append(streams_segment("odd"), [b"\0\0\0\3???"])
    running.store.create(streams_segment("cut"))
    running.store.append(streams_segment("cut"), [b"\0"])
    await (await connect(running, "good")).open(7)
    again = await serve()
    assert await (await connect(again, "good")).open(7) == NOTHING_YET
    for name in ("odd", "cut"):
        peer = await connect(again, hello=False)
        peer.send(Hello("0.0.1", b"", "p", name))
        (error,) = await peer.frames_until_closed()
        assert isinstance(error, Error)
        assert "not a valid table of streams" in error.text
    assert sorted(again.programs.view.damaged()) == ["cut", "odd"]


@pytest.mark.parametrize("name", ["streams", "0", "mit Leerzeichen", "ölpreis", "..", "a" * 200, "💧" * 200, "-"])
async def test_unusual_source_names_survive_a_restart(serve: Serve, connect: Connect, name: str) -> None:
    peer = await connect(await serve(), name)
    await peer.open(7)
    peer.send(Message(7, 3, 0, b"", b"x"))
    await acked(peer, 7, 3)
    again = await serve(auto_create=False)
    assert await (await connect(again, name)).open(7) == 3


@pytest.mark.parametrize("name", ["", "a/b", "/", "a\nb", "\0", "a" * 201, "a,b", "a=b", 'a"b', " a"])
async def test_an_invalid_name_is_refused(running: RunningServer, connect: Connect, name: str) -> None:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "p", name))
    (error,) = await peer.frames_until_closed()
    assert isinstance(error, Error)
    assert "not a valid source name" in error.text


async def test_more_sources_than_the_limit_are_refused(serve: Serve, connect: Connect) -> None:
    running = await serve(sources_max=2)
    await connect(running, "a")
    await connect(running, "b")
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "p", "c"))
    (error,) = await peer.frames_until_closed()
    assert isinstance(error, Error)
    assert "sources_max" in error.text
    await connect(running, "a")


async def test_stream_names_may_be_anything_and_long_ones_are_truncated(serve: Serve, connect: Connect) -> None:
    running = await serve()
    peer = await connect(running)
    names = ["", "a\0b", "ö" * 30_000, "\ud7ff💧"]
    for number, name in enumerate(names):
        assert await peer.open(number, name) == NOTHING_YET
    await running.crash()
    streams = (await serve()).sources.log("source").streams
    assert [streams[number].name for number in range(len(names))] == ["", "a\0b", "ö" * 200, "\ud7ff💧"]


async def test_a_quota_counts_all_segments_of_a_source_together(serve: Serve, connect: Connect) -> None:
    settings = SourceSettings(segments=2, quota_bytes=2000)
    running = await serve(window_bytes=4096 * 4, source=settings)
    (left,), (right,) = streams_on(running, 0), streams_on(running, 1)
    peer = await connect(running)
    await peer.open(left)
    await peer.open(right)
    peer.send(Message(left, 1, 0, b"", bytes(1200)))
    await acked(peer, left, 1)
    assert running.sources.log("source").has_room()
    peer.send(Message(right, 1, 0, b"", bytes(1200)))
    await acked(peer, right, 1)
    assert not running.sources.log("source").has_room()
    late = await connect(running, hello=False)
    late.send(Hello("0.0.1", b"", "p", "source"))
    assert await late.frame() == Ok(0), "none for a new session either"
    running.store.truncate(connector_segment("source", 0), running.store.length(connector_segment("source", 0)))
    frame = await late.frame()
    assert isinstance(frame, Ack)
    assert frame.credits == 4


async def test_a_failed_store_closes_sources_without_an_error_frame(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    await peer.open(7)
    running.journal.crash_after(1)
    peer.send(Message(7, 1, 0, b"", b"x"))
    await asyncio.sleep(0.1)
    peer.send(Message(7, 2, 0, b"", b"x"), EndOfStream(7))
    assert not any(isinstance(frame, Error) for frame in await peer.frames_until_closed())
    await running.crash()


async def test_streams_beyond_the_lifetime_limit_of_a_source_are_refused(serve: Serve, connect: Connect) -> None:
    running = await serve(streams_per_source_max=2)
    peer = await connect(running)
    await peer.open(1)
    await peer.open(2)
    peer.send(Notify(3, "s"))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "streams_per_source_max" in frames[-1].text
    again = await connect(running)
    assert await again.open(2) == NOTHING_YET
    assert sum(running.sources.registry.counts().values()) == 1


@pytest.mark.parametrize("route", [0, 1])
async def test_a_deleted_segment_affects_only_its_own_streams(serve: Serve, connect: Connect, route: int) -> None:
    settings = SourceSettings(segments=2, quota_bytes=1 << 20)
    running = await serve(source=settings)
    (gone,), (there,) = streams_on(running, route), streams_on(running, 1 - route)
    peer = await connect(running)
    for stream_id in (gone, there):
        await peer.open(stream_id)
        peer.send(Message(stream_id, 5, 0, b"", bytes(1000)))
        await acked(peer, stream_id, 5)
    running.sources.log("source").snapshot()
    running.store.delete(connector_segment("source", route))
    peer.send(Message(there, 6, 0, b"", b"x"))
    await acked(peer, there, 6)
    peer.send(Message(gone, 6, 0, b"", b"x"))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "not found" in frames[-1].text
    assert len(running.programs.sessions) == 1
    good = await connect(running, "another")
    await good.open(1)
    again = await connect(await serve(source=settings))
    assert await again.open(there) == 6
    assert await again.open(gone) == 5
    again.send(Message(gone, 6, 0, b"", b"x"))
    await acked(again, gone, 6)
    last = await serve(source=settings)
    assert await (await connect(last)).open(gone) == 6


async def test_a_recreated_data_segment_is_read_from_its_start(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(segments=1))
    peer = await connect(running)
    await peer.open(1)
    peer.send(Message(1, 5, 0, b"", bytes(100)))
    await acked(peer, 1, 5)
    await peer.close()
    running = await serve(source=SourceSettings(segments=1))
    running.store.delete("connector/source/0")
    running = await serve(source=SourceSettings(segments=1))
    peer = await connect(running)
    await peer.open(2)
    peer.send(*(Message(2, number, 0, b"", bytes(1000)) for number in range(1, 10)))
    await acked(peer, 2, 9)
    await running.crash()
    again = await connect(await serve(source=SourceSettings(segments=1)))
    assert await again.open(2) == 9


class CountedLooks:
    """Counts reads of what pipelines have completed of these sources."""

    def __init__(self, logs: list[SourceLog]) -> None:
        self.count = 0
        for log in logs:
            log.data_segments.finished = self._counted(log.data_segments.finished)

    def _counted(self, finished: Callable[[int], float]) -> Callable[[int], float]:
        def counted(route: int) -> float:
            self.count += 1
            return finished(route)

        return counted


async def test_at_the_quota_of_a_principal_its_sources_are_summed_once_per_tick(serve: Serve) -> None:
    """However many sources ask for room, and however often they ask."""
    running = await serve(source=SourceSettings(segments=1))
    tenant = Principal("tenant", Role.WRITE, ("tenant-",), quota_bytes=4000)
    logs = [running.sources.joined_by_program(f"tenant-{number}", tenant) for number in range(5)]
    for log in logs:
        log.append([Batch(0, [], 0, bytes(900))])
    looks, asked = CountedLooks(logs), 20
    assert not any(log.has_room() for _ in range(asked) for log in logs)
    each_at_its_own = asked * len(logs)
    assert looks.count == each_at_its_own + len(logs)

    running.sources.completion("tenant-0").hold({"connector/tenant-0/0": 900})
    running.sources.tick()
    assert all(log.has_room() for log in logs), "what pipelines have completed does not count"
    assert running.programs.view.full_sources() == {}
