"""A proxy between a worker and a sink that parses frames: at the chosen one it kills a process, then disconnects."""

import asyncio
import fcntl
import struct
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.protocol.connector import Decoder, Frame, Phase1, Phase2, Reply, Use, encode
from penstock.protocol.connector.two_phase import TwoPhase
from tests.support.threaded_proxy import ThreadedProxy
from tests.support.waiting import SECONDS_MAX

POLL_SECONDS = 0.001


class Wire(NamedTuple):
    """The first frame of this kind about a transaction whose id starts with this prefix."""

    kind: type[Phase1] | type[Reply] | type[Phase2]
    txn_prefix: bytes
    passes: bool
    """It is passed on, and arrives; else it is kept back for ever."""
    arrived: Callable[[bytes], bool] = lambda _: True
    """Given the transaction's id: whether who got it has taken it up. It is polled."""

    def touches(self, frame: Frame) -> bool:
        return isinstance(frame, self.kind) and frame.txn_id.startswith(self.txn_prefix)


class TrippingProxy(ThreadedProxy):
    """At the first match `pulled` is called, in a thread, and both connections are cut. After that it
    only forwards.
    """

    def __init__(self, sink_port: int, wire: Wire, pulled: Callable[[], None]) -> None:
        self.tripped: bytes | None = None
        """The transaction at which it did."""
        self.done = threading.Event()
        self.seen: list[TwoPhase] = []
        """All two-phase messages that were passed on since, of either side."""
        self._sink_port = sink_port
        self._wire = wire
        self._pulled = pulled
        self.start()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._sink_port)
        except OSError:  # the sink is not running, so its port is closed
            writer.transport.abort()
            return
        cut = asyncio.Event()
        ways = [asyncio.create_task(self._pass(*way, cut)) for way in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            back.transport.abort()
        for ended in await asyncio.gather(*ways, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        """Forward until one side closes, or the wire is tripped: then nothing more passes in either direction."""
        decoder = Decoder(Use.SINK)
        with suppress(ConnectionError):
            while data := await source.read(65536):
                for frame in decoder.feed(data):
                    if cut.is_set():
                        await asyncio.Event().wait()  # until the other direction has finished
                    if self.tripped is None and self._wire.touches(frame):
                        cut.set()
                        await self._trip(frame, target)
                        return
                    if self.tripped is not None and isinstance(frame, TwoPhase):
                        self.seen.append(frame)
                    target.write(encode(frame))
                await target.drain()

    async def _trip(self, frame: Frame, target: asyncio.StreamWriter) -> None:
        assert isinstance(frame, Phase1 | Reply | Phase2)
        self.tripped = frame.txn_id
        if self._wire.passes:
            target.write(encode(frame))
            async with asyncio.timeout(SECONDS_MAX):
                while _unacknowledged(target) or not self._wire.arrived(frame.txn_id):  # noqa: ASYNC110 (no event)
                    await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(self._strike)

    def _strike(self) -> None:
        """Runs to its end, even if the connection ends in the meantime because a process was killed."""
        self._pulled()
        self.done.set()


def _unacknowledged(writer: asyncio.StreamWriter) -> int:
    """Bytes that the kernel of the other end has not acknowledged."""
    queued = fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    waiting: int = struct.unpack("i", queued)[0]
    return waiting + writer.transport.get_write_buffer_size()
