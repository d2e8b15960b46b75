"""What conformance tests share: what a connector says of itself, its frame and its peer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.config.deployment import InterceptorSpec
from penstock.connectors.api import Capabilities, Connector, Port
from penstock.connectors.making import parse_options
from penstock.testing.frame import Event, Frame, Setup
from penstock.testing.peer import Line, Peer

Scenario = Callable[[Frame, Peer], Awaitable[None]]

RECORD_BYTES_MAX = 64 << 10
QUOTA_BYTES = 256 << 10

IN_BUFFERS_BYTES = 32 << 20
"""More than the kernel's buffers, the peer's and the connector's together: who has sent so much is being read."""

LONG_SECONDS = 60.0
"""For what takes its time on a busy machine."""

PAUSE_SECONDS = 0.3
"""Long enough for what is not to happen."""


class Conforming:
    """A class of tests, for one connector."""

    connector: ClassVar[type[Connector[Any]]]
    speaks: ClassVar[bool] = True
    """Whether peers say what becomes events, over lines."""
    lines_max: ClassVar[int] = 2
    """How many lines there can be at a time: 1 or 2."""
    breaks_off: ClassVar[bool] = True
    """Whether the connector can tell a line that breaks off from one that ends."""
    streams_end: ClassVar[bool] = True
    """Whether a line's end is its stream's."""
    is_dialled: ClassVar[bool] = False
    """Whether the connector comes to the peer, and comes again when that was down."""
    feels_it: ClassVar[bool] = True
    """Whether a line that is not read notices: what it says beyond some buffers is not taken from it. Not of files."""
    interceptors_in: ClassVar[Sequence[InterceptorSpec]] = (
        InterceptorSpec(type="split", config={"record_bytes_max": RECORD_BYTES_MAX}),
    )
    interceptors_out: ClassVar[Sequence[InterceptorSpec]] = (InterceptorSpec(type="join"),)

    def make_peer(self, folder: Path) -> Peer:
        """A fresh one that is not started; `folder` is its own."""
        raise AssertionError(f"{type(self).__name__} says nothing of its peer: override make_peer ({folder})")

    def deployed(self) -> Setup:
        """How it runs."""
        return Setup(interceptors_in=self.interceptors_in, interceptors_out=self.interceptors_out)

    @property
    def is_linked(self) -> bool:
        return self.connector.about.capabilities.is_linked

    def capabilities(self, peer: Peer) -> Capabilities:
        about = self.connector.about
        return self.connector.capabilities(parse_options(about.options, peer.config(), about.name))

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
        """In a loop as the worker's."""
        ports = self.connector.about.capabilities.ports
        if (needs is not None and needs not in ports) or not when or (needs is Port.OUT and not self.speaks):
            pytest.skip(f"{self.connector.about.name} has no such thing")
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
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


async def say_two(closed: Line, free: Line | None) -> None:
    await closed.send(b"closed: 1\n")
    if free is not None:
        await free.send(b"free: 1\n")


async def take_all(frame: Frame, count: int) -> None:
    """As pipelines do: some pieces at the quota, and the rest when it is lifted."""
    async with asyncio.timeout(LONG_SECONDS):
        for _ in range(5):
            await frame.take()
            await frame.until(lambda: not frame.instance.host.room.there, "the quota, once more")
        frame.lift_quota()
        await frame.until(lambda: frame.instance.host.counters.events == count, "the last event", LONG_SECONDS)
        await frame.take()


async def at_rest(frame: Frame) -> int:
    """How many events are stored, once that is as many as a while before: what was under way has come."""
    before, stored = -1, frame.instance.host.counters.events
    while before != stored:
        await asyncio.sleep(PAUSE_SECONDS)
        before, stored = stored, frame.instance.host.counters.events
    return stored


async def until_letters(frame: Frame, count: int) -> None:
    await frame.until(lambda: frame.instance.host.letters.count >= count, "the letter")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
