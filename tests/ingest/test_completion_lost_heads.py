"""Record heads that cannot be read for acknowledgements: they are reported, and no source waits forever."""

import pytest

from penstock.core.errors import Damaged
from penstock.ingest.settings import SourceSettings
from penstock.store.chapters import chapter_name, file_offset
from tests.ingest.completion_scene import Listener, completion, ends, quiet, record_ends, until_stored
from tests.ingest.conftest import Connect, RunningServer, Serve

SEGMENT = "connector/source/0"


async def held_source(serve: Serve, connect: Connect, messages: int) -> tuple[RunningServer, Listener]:
    """A source whose messages are in one record each, all of them waiting for their acknowledgement."""
    running = await serve(source=SourceSettings(segments=1))
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(1, 2)
    for number in range(messages):
        source.send([(1 + number % 2, number)])
        await until_stored(running, number + 1)
    return running, source


def flip_head(running: RunningServer, number: int) -> None:
    """Damage the head of the record with this number in the segment."""
    piece = running.store.locate_heads(SEGMENT, 0, ends(running)[SEGMENT])[number]
    path = running.journal._files._directory / chapter_name(piece.chapter)  # type: ignore[attr-defined]
    with path.open("r+b") as file:
        file.seek(file_offset(piece.chapter, piece.row.position) + 10)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


async def test_a_damaged_head_is_reported_and_its_streams_are_acknowledged_when_everything_is_released(
    serve: Serve, connect: Connect
) -> None:
    running, source = await held_source(serve, connect, 4)
    flip_head(running, 3)
    with pytest.raises(Damaged, match=r"the head at .*\.journal.* fails its checksum"):
        running.store.heads(SEGMENT, 0, ends(running)[SEGMENT])
    completion(running).advance({SEGMENT: record_ends_undamaged(running)[-2]})
    await quiet()
    assert any("fails its checksum" in text for text in running.store.damage)
    assert source.acked == {1: 0, 2: 1}, "the third message is in no head"
    completion(running).advance(ends(running))
    await source.until(lambda: source.acked == {1: 2, 2: 3})
    source.send([(1, 10), (2, 10)])
    await until_received(running, source, 6)
    completion(running).advance(ends(running))
    await source.until(lambda: source.acked == {1: 10, 2: 10})


async def until_received(running: RunningServer, source: Listener, count: int) -> None:
    """Like `until_stored`, for events that cannot be read."""
    await source.until(lambda: running.sources.counters.messages == count)
    await running.sources.durability.caught_up()


def record_ends_undamaged(running: RunningServer) -> list[int]:
    pieces = running.store.locate_heads(SEGMENT, 0, ends(running)[SEGMENT])
    return [piece.offset + piece.row.length for piece in pieces]


async def test_truncated_heads_do_not_block_acknowledgements(serve: Serve, connect: Connect) -> None:
    running, source = await held_source(serve, connect, 6)
    running.store.truncate(SEGMENT, record_ends(running, SEGMENT)[-2])
    completion(running).advance({SEGMENT: record_ends(running, SEGMENT)[0] - 1})
    await quiet()
    assert source.acked == {}
    completion(running).advance(ends(running))
    await source.until(lambda: source.acked == {1: 4, 2: 5})


async def test_a_deleted_segment_does_not_block_acknowledgements_of_others(serve: Serve, connect: Connect) -> None:
    running, _ = await held_source(serve, connect, 3)
    completion(running, "other").hold({})
    other = Listener(await connect(running, "other"))
    await other.open(1)
    other.send([(1, 5)])
    await until_stored(running, 1, "other")
    released = ends(running) | ends(running, "other")
    running.store.delete(SEGMENT)
    completion(running).advance(released)
    completion(running, "other").advance(released)
    await other.until(lambda: other.acked == {1: 5})


async def test_foreign_records_without_a_head_are_skipped(serve: Serve, connect: Connect) -> None:
    running, source = await held_source(serve, connect, 1)
    running.store.append(SEGMENT, [b"\0\0\0\0\0\0\0\7foreign"])
    source.send([(2, 1)])
    await until_received(running, source, 2)
    completion(running).advance(ends(running))
    await source.until(lambda: source.acked == {1: 0, 2: 1})
