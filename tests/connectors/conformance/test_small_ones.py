"""stdio, metronome and null in the real frame."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.metronome import Metronome
from penstock.connectors.null import Null
from penstock.connectors.stdio import Stdio
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer


class PipeLine:
    """The writing end of a standard input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    async def break_off(self) -> None:
        await self.end()

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


class Pipes(Peer):
    """Standard input and output of a process, for each frame."""

    def __init__(self) -> None:
        self.lines: list[PipeLine] = []
        self.outputs = os.pipe()
        self._got = bytearray()
        self._inputs: list[int] = []
        os.set_blocking(self.outputs[0], False)
        Stdio.stdin, Stdio.stdout = self._next_input(), self.outputs[1]

    def _next_input(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._inputs.append(reading)
        self.lines.append(PipeLine(writing))
        self._fresh = True
        return reading

    async def line(self, frame: Frame) -> Line:
        if not self._fresh:
            Stdio.stdin = self._next_input()
        self._fresh = False
        return self.lines[-1]

    def received(self) -> bytes:
        while True:
            try:
                self._got += os.read(self.outputs[0], 1 << 16)
            except BlockingIOError:
                return bytes(self._got)

    async def stop(self) -> None:
        for line in self.lines:
            await line.end()
        Stdio.stdin, Stdio.stdout = 0, 1
        for descriptor in (*self._inputs, *self.outputs):
            os.close(descriptor)


class TestStdio(ConnectorConformance):
    connector = Stdio
    lines_max = 1
    breaks_off = False  # a pipe whose writer is killed has ended

    def make_peer(self, folder: Path) -> Peer:
        return Pipes()

    def test_garbage_is_a_dead_letter_and_ends_only_its_stream(self, tmp_path: Path) -> None:
        pytest.skip("there is no other stream")

    def test_after_a_crash_nothing_is_missing_and_no_id_is_reused(self, tmp_path: Path) -> None:
        pytest.skip("a standard input ends with its process")


class TestNull(ConnectorConformance):
    connector = Null
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Peer()

    def test_values_reach_the_peer_in_order(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            epoch = frame.give(None, [b"a", b"b", b"c"])
            await frame.until(lambda: frame.has_left(epoch))
            assert frame.instance.host.counts["discarded"] == 1  # joined
            assert await frame.events() == []

        self.run(tmp_path, scenario)

    def test_buffered_values_are_sent_in_a_drain(self, tmp_path: Path) -> None:
        pytest.skip("nobody sees what leaves")


class Clock(Peer):
    def config(self) -> dict[str, Any]:
        return {"interval": "20ms"}


class TestMetronome(ConnectorConformance):
    connector = Metronome
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Clock()

    def test_a_restart_repeats_no_tick(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until_stored(3)
            frame.image(tmp_path / "crashed")
            await frame.stop()
            async with Frame(tmp_path / "crashed", Metronome, peer.config()) as after:
                await after.until_stored(3)
                ids = [event.event_id for event in await after.events()]
                assert len(ids) >= 6
                assert ids == sorted(set(ids))

        self.run(tmp_path, scenario, stops_itself=True)

    def test_a_metronome_pauses_and_drains(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until_stored(2)
            (stream,) = frame.streams()
            frame.other.close(stream)
            await asyncio.sleep(0.1)
            paused = len(await frame.events())
            await asyncio.sleep(0.2)
            assert len(await frame.events()) == paused
            frame.other.open(stream)
            await frame.until_stored(paused + 2)
            await frame.drain()
            assert frame.streams() == []

        self.run(tmp_path, scenario)
