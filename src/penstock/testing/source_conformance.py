"""What the port `out` of every connector must pass."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from penstock.connectors.api import Pause, Port
from penstock.testing.conforming import (
    IN_BUFFERS_BYTES,
    LONG_SECONDS,
    PAUSE_SECONDS,
    QUOTA_BYTES,
    RECORD_BYTES_MAX,
    Conforming,
    at_rest,
    by_stream,
    ids_by_stream,
    in_lines,
    say_two,
    send_many,
    take_all,
    until_letters,
)
from penstock.testing.frame import Frame
from penstock.testing.peer import Peer


class SourceConformance(Conforming):
    def test_events_of_a_line_are_one_stream_in_order_with_their_ids(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            lines = [await peer.line(frame) for _ in range(self.lines_max)]
            said = {number: [b"%d: event %d" % (number, n) for n in range(300)] for number in range(len(lines))}
            for start in range(0, 300, 100):
                for number, line in enumerate(lines):
                    await line.send(in_lines(said[number][start : start + 100]))
            events = await frame.until_stored(300 * len(lines))
            assert sorted(by_stream(events).values()) == sorted(said.values())
            for ids in ids_by_stream(events).values():
                assert ids == sorted(set(ids))
                assert ids[0] > 0
            assert await frame.letters() == []

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_a_line_that_ends_in_the_middle_of_a_record_loses_nothing(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"whole\nthe end")
            await frame.until_stored(1)
            await line.end()
            await frame.until_stored(2)
            assert await frame.values() == [b"whole", b"the end"]
            await frame.until(lambda: not frame.streams(), "the end of the stream")

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.streams_end)

    def test_a_peer_that_goes_away_in_the_middle_of_a_record_leaves_a_letter(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"whole\nhal")
            await frame.until_stored(1)
            await line.break_off()
            await until_letters(frame, 1)
            assert await frame.values() == [b"whole"]
            (letter,) = await frame.letters()
            assert letter.value == b"hal"
            assert letter.metadata["reason"]
            await frame.until(lambda: not frame.streams(), "the end of the stream")
            await (await peer.line(frame)).send(b"another\n")
            await frame.until_stored(2)

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.breaks_off)

    def test_garbage_is_a_letter_and_ends_that_stream_alone(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            good = await peer.line(frame) if self.lines_max > 1 else None
            bad = await peer.line(frame)
            await bad.send(b"fine\n")
            await frame.until_stored(1)
            with suppress(OSError):  # it may be gone before all of it is said
                await bad.send(b"\x00garbage" * (RECORD_BYTES_MAX // 8 + 1))
            await until_letters(frame, 1)
            (letter,) = await frame.letters()
            assert b"\x00garbage" in letter.value
            assert "record_bytes_max" in letter.metadata["reason"]
            await (good or await peer.line(frame)).send(b"still here\n")
            events = await frame.until_stored(2)
            assert {event.value for event in events} == {b"fine", b"still here"}

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.streams_end)

    def test_at_the_quota_nobody_reads_and_nothing_is_lost(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            record = b"x" * 1000
            count = IN_BUFFERS_BYTES // len(record)
            sending = asyncio.create_task(send_many(line, record, count))
            try:
                await frame.until(lambda: not frame.instance.host.room.there, "the quota")
                assert await at_rest(frame) < count, "all was stored though there was no room"
                assert not (sending.done() and self.feels_it), "it was read though there was no room"
                await take_all(frame, count)
                await asyncio.wait_for(sending, LONG_SECONDS)
            finally:
                sending.cancel()
            numbers = [int(event.value.split(b" ", 1)[0]) for event in frame.taken]
            assert numbers == list(range(count))

        self.run(tmp_path, scenario, needs=Port.OUT, setup=replace(self.deployed(), quota_bytes=QUOTA_BYTES))

    def test_a_drain_loses_nothing_that_was_read(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"one\ntwo\nhal")
            await frame.until_stored(2)
            await frame.drain()
            assert frame.streams() == []
            kept = await frame.values() + [letter.value for letter in await frame.letters()]
            if not self.capabilities(peer).resumes:
                assert kept == [b"one", b"two", b"hal"]
            assert kept[:2] == [b"one", b"two"]

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_a_stream_that_one_sink_closes_is_paused_as_finely_as_is_declared(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            pauses = self.capabilities(peer).pauses
            closed, free = await peer.line(frame), await peer.line(frame) if self.lines_max > 1 else None
            await closed.send(b"closed: 0\n")
            (event,) = await frame.until_stored(1)
            stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
            frame.other.close(stream)
            said = asyncio.create_task(say_two(closed, free))
            await frame.until(
                lambda: free is None or pauses is not Pause.STREAM or frame.instance.host.counters.events == 2
            )
            await asyncio.sleep(PAUSE_SECONDS)
            expected = {b"closed: 0"} | ({b"free: 1"} if free is not None and pauses is Pause.STREAM else set())
            assert set(await frame.values()) == expected
            frame.other.open(stream)
            await frame.until_stored(2 if free is None else 3)
            await said

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_after_a_crash_nothing_is_missing_and_no_id_is_used_again(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"before\n")
            before = await frame.until_stored(1)
            frame.image(tmp_path / "crashed")
            await frame.stop()
            with suppress(OSError):
                await line.break_off()
            async with Frame(tmp_path / "crashed", self.connector, peer.config(), self.deployed()) as after:
                line = await peer.line(after)
                await line.send(b"after\n")
                await after.until_stored(1)
                events = await after.events()
                assert [event.value for event in events if event in before] == [b"before"]
                keys = [(event.stream_id, event.event_id) for event in events]
                assert len(set(keys)) == len(keys) == 2
                await line.end()

        self.run(tmp_path, scenario, needs=Port.OUT, stops_itself=True)

    def test_a_peer_that_was_down_is_read_again(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await (await peer.line(frame)).send(b"before\n")
            await frame.until_stored(1)
            await peer.stop()
            await frame.until(lambda: frame.instance.host.counters.failures > 0, "the failure")
            await peer.start()
            await (await peer.line(frame)).send(b"after\n")
            await frame.until_stored(2)
            assert sorted(await frame.values()) == [b"after", b"before"]

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.is_dialled)
