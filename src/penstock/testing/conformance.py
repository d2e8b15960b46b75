"""The tests that every connector must pass, including ours: `class TestMine(ConnectorConformance)` in a pytest file.

    from penstock.testing.conformance import ConnectorConformance
    from penstock.testing.peer import Peer

    class TestMine(ConnectorConformance):
        connector = MyConnector

        def make_peer(self, folder: Path) -> Peer:
            return MyPeer()            # the real other side, as `penstock.testing.peer` describes it

The connector runs in the real frame (`penstock.testing.frame`) on a real store, with lines of text: `split` before the
port `out`, `join` after the port `in`. A peer's line sends lines of text, and records the bytes it receives. Each test
starts with an empty folder and a new peer. Tests of a port that the connector does not have, and of features that the
attributes below declare unsupported, are skipped: document such limits for the connector. Needs pytest, but none of its
plugins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop

from penstock.connectors.api import Capabilities, Connector, Pause, Port
from penstock.connectors.registry import parse_options
from penstock.core.types import Guarantee
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.testing.frame import Event, Frame, Setup
from penstock.testing.peer import Line, Peer

# What conformance tests share: a connector's declared properties, its frame and its peer.

Scenario = Callable[[Frame, Peer], Awaitable[None]]

RECORD_BYTES_MAX = 64 << 10
QUOTA_BYTES = 256 << 10

IN_BUFFERS_BYTES = 32 << 20
"""More than the buffers of the kernel, the peer and the connector together: a peer that has sent this much is being
read."""

LONG_SECONDS = 60.0
"""How long to wait for something on a busy machine."""

PAUSE_SECONDS = 0.3
"""How long to wait to see that something does not happen."""


class Conforming:
    """A class of tests for one connector."""

    connector: ClassVar[type[Connector[Any]]]
    speaks: ClassVar[bool] = True
    """Whether peers send what becomes events, over lines."""
    lines_max: ClassVar[int] = 2
    """How many lines can exist at the same time: 1 or 2."""
    breaks_off: ClassVar[bool] = True
    """Whether the connector can distinguish a line that breaks off from one that ends."""
    streams_end: ClassVar[bool] = True
    """Whether the end of a line is the end of its stream."""
    is_dialled: ClassVar[bool] = False
    """Whether the connector connects to the peer, and connects again after the peer was down."""
    feels_it: ClassVar[bool] = True
    """Whether a line that is not read notices: what it sends beyond some buffers is not accepted. False for files."""
    in_buffers_bytes: ClassVar[int] = IN_BUFFERS_BYTES
    """What a line sends to see that it is not read: more than all buffers, and no more than the peer keeps."""
    interceptors_in: ClassVar[Sequence[InterceptorSpec]] = (
        InterceptorSpec(type="split", config={"record_bytes_max": RECORD_BYTES_MAX}),
    )
    interceptors_out: ClassVar[Sequence[InterceptorSpec]] = (InterceptorSpec(type="join"),)

    def make_peer(self, folder: Path) -> Peer:
        """A new peer that is not started; `folder` is its own."""
        raise AssertionError(f"{type(self).__name__} has no peer: override make_peer ({folder})")

    def given(self, value: bytes) -> bytes:
        """What a pipeline must emit for the peer to receive this value: for a table, an object that contains it."""
        return value

    def deployed(self) -> Setup:
        """How it runs."""
        return Setup(interceptors_in=self.interceptors_in, interceptors_out=self.interceptors_out)

    @property
    def is_linked(self) -> bool:
        return self.connector.about.capabilities.is_linked

    def capabilities(self, peer: Peer) -> Capabilities:
        about = self.connector.about
        return self.connector.capabilities(parse_options(about.options, peer.config(), about.name))

    def votes(self, peer: Peer) -> bool:
        return self.capabilities(peer).votes

    def run(
        self,
        folder: Path,
        scenario: Scenario,
        *,
        needs: Port | None = None,
        when: bool = True,
        setup: Setup | None = None,
        stops_itself: bool = False,
    ) -> None:
        """Runs it in an event loop like the worker's."""
        ports = self.connector.about.capabilities.ports
        if (needs is not None and needs not in ports) or not when or (needs is Port.OUT and not self.speaks):
            pytest.skip(f"{self.connector.about.name} does not support this")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._perform(folder, scenario, needs, setup or self.deployed(), stops_itself))

    async def _perform(
        self, folder: Path, scenario: Scenario, needs: Port | None, setup: Setup, stops_itself: bool
    ) -> None:
        (folder / "peer").mkdir()
        peer = self.make_peer(folder / "peer")
        await peer.start()
        try:
            if needs is not None and needs not in self.capabilities(peer).ports:
                pytest.skip("not with these options")
            frame = Frame(folder / "data", self.connector, peer.config(), setup)
            await frame.start()
            try:
                await scenario(frame, peer)
            finally:
                if not stops_itself:
                    await frame.stop()
        finally:
            await peer.stop()


def in_lines(values: Sequence[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in values)


def ids_by_stream(events: Sequence[Event]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in events:
        found.setdefault(event.stream_id, []).append(event.event_id)
    return found


def by_stream(events: Sequence[Event]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for event in events:
        found.setdefault(event.stream_id, []).append(event.value)
    return found


async def send_many(line: Line, record: bytes, count: int) -> None:
    for start in range(0, count, 100):
        await line.send(in_lines([b"%d %s" % (n, record) for n in range(start, min(start + 100, count))]))


async def send_two(closed: Line, free: Line | None) -> None:
    await closed.send(b"closed: 1\n")
    if free is not None:
        await free.send(b"free: 1\n")


async def take_all(frame: Frame, count: int) -> None:
    """Like pipelines: some pieces at the quota, and the rest when it is lifted."""
    async with asyncio.timeout(LONG_SECONDS):
        for _ in range(5):
            await frame.take()
            await frame.until(lambda: not frame.instance.host.room.there, "the quota, once more")
        frame.lift_quota()
        await frame.until(lambda: frame.instance.host.counters.events == count, "the last event", LONG_SECONDS)
        await frame.take()


async def at_rest(frame: Frame) -> int:
    """The number of stored events, once it no longer changes."""
    before, stored = -1, frame.instance.host.counters.events
    while before != stored:
        await asyncio.sleep(PAUSE_SECONDS)
        before, stored = stored, frame.instance.host.counters.events
    return stored


async def until_dead_letters(frame: Frame, count: int) -> None:
    await frame.until(lambda: frame.instance.host.dead_letters.count >= count, "the dead letter")


# What the port `in` of every connector must pass.


class SinkConformance(Conforming):
    def test_values_reach_the_peer_in_order(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            stream = None
            if self.capabilities(peer).is_linked:
                line = await peer.line(frame)
                await line.send(b"hello\n")
                (event,) = await frame.until_stored(1)
                stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
            values = [b"value %d" % number for number in range(500)]
            for start in range(0, 500, 100):
                last = frame.give(stream, [*map(self.given, values[start : start + 100])])
            await frame.until(lambda: frame.has_left(last), "the last epoch")
            await frame.until(lambda: peer.received() == in_lines(values), "the last value")
            assert frame.dead_letters == 0

        self.run(tmp_path, scenario, needs=Port.IN)

    def test_a_reply_goes_to_the_connection_that_its_event_came_from(self, tmp_path: Path) -> None:
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

    def test_a_peer_that_stops_reading_blocks_no_other_and_finally_gets_everything(self, tmp_path: Path) -> None:
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
            await frame.until(lambda: quick.received() == b"answer\n", "the answer after the slow line's")
            slow.continue_reading()
            await frame.until(lambda: len(slow.received()) == count * 1_000_000, "all of the slow line's", LONG_SECONDS)
            assert frame.dead_letters == 0

        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_linked and self.lines_max > 1)

    def test_a_reply_to_a_connection_that_is_gone_is_a_dead_letter(self, tmp_path: Path) -> None:
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
            frame.give(None, [self.given(b"before")])
            await frame.until(lambda: peer.received() == b"before\n", "the first value")
            await peer.stop()
            values = [b"value %d" % number for number in range(100)]
            last = [frame.give(None, [self.given(value)]) for value in values][-1]
            await asyncio.sleep(PAUSE_SECONDS)
            assert not frame.has_left(last)
            await peer.start()
            await frame.until(lambda: frame.has_left(last), "the last epoch", LONG_SECONDS)
            await frame.until(lambda: peer.received().endswith(values[-1] + b"\n"), "the last value")
            came = peer.received().splitlines()
            assert (came if self.votes(peer) else list(dict.fromkeys(came))) == [b"before", *values]

        promised = self.connector.about.capabilities.sink is not Guarantee.AT_MOST_ONCE
        self.run(tmp_path, scenario, needs=Port.IN, when=self.is_dialled and promised)

    def test_a_transaction_in_doubt_is_committed_only_if_that_was_decided(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            if not self.votes(peer):
                pytest.skip("it does not vote")
            first, sink = frame.epoch([self.given(b"first")]), frame.voting_sink()
            await sink.open(b"")
            assert (await sink.prepare(first)).yes
            assert peer.received() == b""
            await sink.close()
            sink = frame.voting_sink()
            await sink.open(first.transaction_id)
            await frame.until(lambda: peer.received() == b"first\n", "what was decided")
            frame.committed(first)
            assert (await sink.prepare(frame.epoch([self.given(b"never")]))).yes
            await sink.close()
            sink, again = frame.voting_sink(), frame.epoch([self.given(b"again")])
            await sink.open(first.transaction_id)
            assert (await sink.prepare(again)).yes
            await sink.commit(again.transaction)
            await frame.until(lambda: peer.received() == b"first\nagain\n", "the second epoch")
            await sink.close()

        self.run(tmp_path, scenario, needs=Port.IN)

    def test_an_aborted_epoch_leaves_nothing(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            if not self.votes(peer):
                pytest.skip("it does not vote")
            sink, aborted = frame.voting_sink(), frame.epoch([self.given(b"never")])
            await sink.open(b"")
            assert (await sink.prepare(aborted)).yes
            await sink.abort(aborted.transaction_id)
            committed = frame.epoch([self.given(b"value")])
            assert (await sink.prepare(committed)).yes
            assert peer.received() == b""
            await sink.commit(committed.transaction)
            await frame.until(lambda: peer.received() == b"value\n", "the value")
            await sink.close()

        self.run(tmp_path, scenario, needs=Port.IN)

    def test_buffered_values_are_sent_in_a_drain(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            if self.capabilities(peer).takes_epochs:
                pytest.skip("its events pass no interceptors")
            stream = None
            if self.capabilities(peer).is_linked:
                await (await peer.line(frame)).send(b"hello\n")
                await frame.until_stored(1)
                (stream,) = frame.streams()
            epoch = frame.give(stream, [b"one", b"two"])
            await frame.until(lambda: frame.instance.sink is not None and frame.instance.sink.buffered == 2)
            assert peer.received() == b""
            await frame.drain()
            await frame.until(lambda: frame.has_left(epoch) and peer.received() == b"one\ntwo\n", "what waited")

        patient = InterceptorSpec(type="join", config={"max_elements": 1000, "max_wait_ms": 60_000})
        has_own = self.connector.about.capabilities.own_interceptors
        setup = replace(self.deployed(), interceptors_out=(patient,))
        self.run(tmp_path, scenario, needs=Port.IN, setup=setup, when=not has_own)


# What the port `out` of every connector must pass.


class SourceConformance(Conforming):
    def test_events_of_a_connection_are_one_stream_in_order_with_their_ids(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            lines = [await peer.line(frame) for _ in range(self.lines_max)]
            sent = {number: [b"%d: event %d" % (number, n) for n in range(300)] for number in range(len(lines))}
            for start in range(0, 300, 100):
                for number, line in enumerate(lines):
                    await line.send(in_lines(sent[number][start : start + 100]))
            events = await frame.until_stored(300 * len(lines))
            assert sorted(by_stream(events).values()) == sorted(sent.values())
            for ids in ids_by_stream(events).values():
                assert ids == sorted(set(ids))
                assert ids[0] > 0
            assert await frame.dead_letter_events() == []

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_a_connection_that_ends_in_the_middle_of_a_record_loses_nothing(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"whole\nthe end")
            await frame.until_stored(1)
            await line.end()
            await frame.until_stored(2)
            assert await frame.values() == [b"whole", b"the end"]
            await frame.until(lambda: not frame.streams(), "the end of the stream")

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.streams_end)

    def test_a_peer_that_disconnects_in_the_middle_of_a_record_leaves_a_dead_letter(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"whole\nhal")
            await frame.until_stored(1)
            await line.break_off()
            await until_dead_letters(frame, 1)
            assert await frame.values() == [b"whole"]
            (dead_letter,) = await frame.dead_letter_events()
            assert dead_letter.value == b"hal"
            assert dead_letter.metadata["reason"]
            await frame.until(lambda: not frame.streams(), "the end of the stream")
            await (await peer.line(frame)).send(b"another\n")
            await frame.until_stored(2)

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.breaks_off)

    def test_garbage_is_a_dead_letter_and_ends_only_its_stream(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            good = await peer.line(frame) if self.lines_max > 1 else None
            bad = await peer.line(frame)
            await bad.send(b"fine\n")
            await frame.until_stored(1)
            with suppress(OSError):  # it may be gone before everything is sent
                await bad.send(b"\x00garbage" * (RECORD_BYTES_MAX // 8 + 1))
            await until_dead_letters(frame, 1)
            (dead_letter,) = await frame.dead_letter_events()
            assert b"\x00garbage" in dead_letter.value
            assert "record_bytes_max" in dead_letter.metadata["reason"]
            await (good or await peer.line(frame)).send(b"still here\n")
            events = await frame.until_stored(2)
            assert {event.value for event in events} == {b"fine", b"still here"}

        self.run(tmp_path, scenario, needs=Port.OUT, when=self.streams_end)

    def test_at_the_quota_nothing_is_read_and_nothing_is_lost(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            record = b"x" * 1000
            count = self.in_buffers_bytes // len(record)
            sending = asyncio.create_task(send_many(line, record, count))
            try:
                await frame.until(lambda: not frame.instance.host.room.there, "the quota")
                assert await at_rest(frame) < count, "everything was stored although there was no room"
                assert not (sending.done() and self.feels_it), "it was read although there was no room"
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
            stored = await frame.values() + [dead_letter.value for dead_letter in await frame.dead_letter_events()]
            if not self.capabilities(peer).resumes:
                assert stored == [b"one", b"two", b"hal"]
            assert stored[:2] == [b"one", b"two"]

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_a_stream_that_a_sink_closes_is_paused_as_precisely_as_declared(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            pauses = self.capabilities(peer).pauses
            closed, free = await peer.line(frame), await peer.line(frame) if self.lines_max > 1 else None
            await closed.send(b"closed: 0\n")
            (event,) = await frame.until_stored(1)
            stream = next(ref for ref in frame.streams() if ref.stream_id == event.stream_id)
            frame.other.close(stream)
            sending = asyncio.create_task(send_two(closed, free))
            await frame.until(
                lambda: free is None or pauses is not Pause.STREAM or frame.instance.host.counters.events == 2
            )
            await asyncio.sleep(PAUSE_SECONDS)
            expected = {b"closed: 0"} | ({b"free: 1"} if free is not None and pauses is Pause.STREAM else set())
            assert set(await frame.values()) == expected
            frame.other.open(stream)
            await frame.until_stored(2 if free is None else 3)
            await sending

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_after_a_crash_nothing_is_missing_and_no_id_is_reused(self, tmp_path: Path) -> None:
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


class ConnectorConformance(SourceConformance, SinkConformance):
    """What every connector has to pass: derive a test class from it, and write what it leaves open."""

    def test_ports_are_as_declared(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until(lambda: frame.instance.host.status().state in ("connected", "ended"), "the connection")
            about, found = self.connector.about, self.capabilities(peer)
            assert found.ports <= about.capabilities.ports
            assert about.name
            assert about.text
            undocumented = [name for name, info in about.options.model_fields.items() if not info.description]
            assert undocumented == [], "every option has a docstring"
            assert frame.instance.built.guarantee.keys() <= {port.value for port in found.ports}

        self.run(tmp_path, scenario)
