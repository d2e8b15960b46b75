"""What the port `in` of every connector must pass."""

import asyncio
from dataclasses import replace
from pathlib import Path

from penstock.config.deployment import InterceptorSpec
from penstock.connectors.api import Port
from penstock.core.guarantee import Guarantee
from penstock.testing.conforming import IN_BUFFERS_BYTES, LONG_SECONDS, PAUSE_SECONDS, Conforming, in_lines
from penstock.testing.frame import Frame
from penstock.testing.peer import Peer


class SinkConformance(Conforming):
    def test_what_leaves_reaches_the_peer_in_order(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            stream = None
            if self.capabilities(peer).is_linked:
                line = await peer.line(frame)
                await line.send(b"hello\n")
                (event,) = await frame.until_stored(1)
                stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
            values = [b"value %d" % number for number in range(500)]
            for start in range(0, 500, 100):
                last = frame.give(stream, values[start : start + 100])
            await frame.until(lambda: frame.has_left(last), "the last epoch")
            await frame.until(lambda: peer.received() == in_lines(values), "the last value")
            assert frame.dead_letters == 0

        self.run(tmp_path, scenario, needs=Port.IN)

    def test_a_reply_goes_to_the_line_that_its_event_came_from(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            lines = {b"first": await peer.line(frame), b"second": await peer.line(frame)}
            for name, line in lines.items():
                await line.send(name + b"\n")
            for event in await frame.until_stored(2):
                stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
                frame.give(stream, [b"to " + event.value], [event.event_id])
            for name, line in lines.items():
                await frame.until(lambda name=name, line=line: line.received() == b"to " + name + b"\n")  # type: ignore[misc]

        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_linked and self.lines_max > 1)

    def test_a_line_that_takes_nothing_holds_up_no_other_and_gets_all_in_the_end(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            slow, quick = await peer.line(frame), await peer.line(frame)
            await slow.send(b"slow\n")
            (first,) = await frame.until_stored(1)
            await quick.send(b"quick\n")
            second = next(event for event in await frame.until_stored(2) if event != first)
            refs = {ref.stream_id: ref for ref in frame.streams()}
            slow.stop_reading()
            record, count = b"x" * 999_999, IN_BUFFERS_BYTES // 1_000_000
            for number in range(count):
                frame.give(refs[first.stream_id], [record], [first.event_id + number])
            frame.give(refs[second.stream_id], [b"answer"], [second.event_id])
            await frame.until(lambda: quick.received() == b"answer\n", "the answer behind the slow line's")
            slow.go_on_reading()
            await frame.until(lambda: len(slow.received()) == count * 1_000_000, "all of the slow line's", LONG_SECONDS)
            assert frame.dead_letters == 0

        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_linked and self.lines_max > 1)

    def test_a_reply_to_a_line_that_is_gone_is_a_dead_letter(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"question\n")
            (event,) = await frame.until_stored(1)
            stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
            await line.break_off()
            await frame.until(lambda: not frame.streams(), "the end of the stream")
            epoch = frame.give(stream, [b"answer"], [event.event_id])
            await frame.until(lambda: frame.has_left(epoch) and frame.dead_letters == 1, "the dead letter")

        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_linked)

    def test_a_peer_that_was_down_gets_everything_when_it_is_back(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            frame.give(None, [b"before"])
            await frame.until(lambda: peer.received() == b"before\n", "the first value")
            await peer.stop()
            values = [b"value %d" % number for number in range(100)]
            last = [frame.give(None, [value]) for value in values][-1]
            await asyncio.sleep(PAUSE_SECONDS)
            assert not frame.has_left(last)
            await peer.start()
            await frame.until(lambda: frame.has_left(last), "the last epoch", LONG_SECONDS)
            await frame.until(lambda: peer.received().endswith(values[-1] + b"\n"), "the last value")
            came = peer.received().splitlines()
            assert list(dict.fromkeys(came)) == [b"before", *values]

        promised = self.connector.about.capabilities.sink in (Guarantee.AT_LEAST_ONCE, Guarantee.IDEMPOTENT)
        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_dialled and promised)

    def test_what_waits_for_company_leaves_in_a_drain(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            stream = None
            if self.capabilities(peer).is_linked:
                await (await peer.line(frame)).send(b"hello\n")
                await frame.until_stored(1)
                (stream,) = frame.streams()
            epoch = frame.give(stream, [b"one", b"two"])
            await frame.until(lambda: frame.instance.sink is not None and frame.instance.sink.waiting == 2)
            assert peer.received() == b""
            await frame.drain()
            await frame.until(lambda: frame.has_left(epoch) and peer.received() == b"one\ntwo\n", "what waited")

        patient = InterceptorSpec(type="join", config={"max_elements": 1000, "max_wait_ms": 60_000})
        has_own = self.connector.about.capabilities.own_interceptors
        setup = replace(self.deployed(), interceptors_out=(patient,))
        self.run(tmp_path, scenario, needs=Port.IN, setup=setup, when=not has_own)
