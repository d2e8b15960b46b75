"""Shared by tests of pending acknowledgements: where messages are stored, and what was acknowledged."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from penstock.ingest.completion import Completion
from penstock.protocol.connector import NOTHING_YET, Ack, EndOfStream, Frame, Message, Notify, NotifyAck, encode
from tests.ingest.conftest import Connect, Peer, RunningServer
from tests.support.heads import decode_head
from tests.support.waiting import SECONDS_MAX, eventually


def message(stream_id: int, message_id: int, size: int = 0) -> Message:
    return Message(stream_id, message_id, 0, b"", b"%d of %d" % (message_id, stream_id) + bytes(size))


def completion(running: RunningServer, source: str = "source") -> Completion:
    return running.sources.completion(source)


def ends(running: RunningServer, source: str = "source") -> dict[str, int]:
    """Where the source's segments end now, durably."""
    return {name: running.store.info(name).length for name in running.sources.log(source).segments}


def record_ends(running: RunningServer, segment: str) -> list[int]:
    info = running.store.info(segment)
    return [int(end) for end, _ in running.store.heads(segment, info.start, info.length)]


def last_ids(running: RunningServer, released: dict[str, int]) -> dict[int, int]:
    """The last message id of each stream in the records up to these offsets: what may be acknowledged then."""
    last: dict[int, int] = {}
    for segment, offset in released.items():
        for end, data in running.store.heads(segment, running.store.info(segment).start, offset):
            head = decode_head(data)
            if end <= offset and head is not None:
                last |= head.last
    return last


class Listener:
    """A peer whose frames are read continuously."""

    def __init__(self, peer: Peer, on_ack: Callable[[int, int], object] = lambda *_: None) -> None:
        self.peer = peer
        self.acked: dict[int, int] = {}
        self.opened: dict[int, int] = {}
        self.refused: list[int] = []
        self.credits = 0
        self.is_closed = False
        self._on_ack = on_ack
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                self._take(await self.peer.frame(60))
        self.is_closed = True

    def _take(self, frame: Frame) -> None:
        match frame:
            case NotifyAck(success=True):
                self.opened[frame.stream_id] = frame.point_of_reference
            case NotifyAck():
                self.refused.append(frame.stream_id)
            case Ack():
                self.credits += frame.credits
                for stream_id, last_id in frame.acked:
                    assert last_id != NOTHING_YET
                    self._check(stream_id, last_id)
                    self.acked[stream_id] = last_id
                    self._on_ack(stream_id, last_id)
            case _:
                raise AssertionError(frame)

    def _check(self, stream_id: int, last_id: int) -> None:
        point = self.opened.get(stream_id, NOTHING_YET)
        assert point == NOTHING_YET or last_id >= point, "below what NOTIFY_ACK said"
        assert last_id >= self.acked.get(stream_id, 0), "an acknowledgement went back"

    def check(self) -> None:
        """Raise what was wrong with a frame."""
        if self._task.done():
            self._task.result()

    async def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.check()
            return condition()

        await eventually(holds)

    async def open(self, *stream_ids: int) -> None:
        """Retries while they are refused."""
        for stream_id in stream_ids:
            self.opened.pop(stream_id, None)
        self.refused.clear()
        self._notify(stream_ids)
        async with asyncio.timeout(SECONDS_MAX):
            while not all(stream_id in self.opened for stream_id in stream_ids):
                refused, self.refused = self.refused, []
                self._notify(refused)
                self.check()
                await asyncio.sleep(0.005)

    def _notify(self, stream_ids: Iterable[int]) -> None:
        self.peer.send(b"".join(encode(Notify(stream_id, f"stream {stream_id}")) for stream_id in stream_ids))

    def send(self, messages: Iterable[tuple[int, int]]) -> None:
        self.peer.send(b"".join(encode(message(*pair)) for pair in messages))

    def end(self, stream_id: int) -> None:
        self.peer.send(EndOfStream(stream_id))

    async def close(self) -> None:
        await self.peer.close()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def blocked_source(running: RunningServer, connect: Connect, *stream_ids: int) -> Listener:
    """A source with these streams open. Its messages are acknowledged only when they are released."""
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(*stream_ids)
    return source


async def release(running: RunningServer, source: Listener, acked: dict[int, int]) -> None:
    """Release everything that is stored, and wait until the source has these acknowledgements."""
    completion(running).advance(ends(running))
    await source.until(lambda: source.acked == acked)


async def until_stored(running: RunningServer, count: int, source: str = "source") -> None:
    """Wait until this many messages are durable, and their sessions know it."""
    await eventually(lambda: len(running.events(source)) >= count)
    await running.sources.durability.caught_up()


async def quiet(seconds: float = 0.1) -> None:
    """Wait long enough for anything that would be sent to arrive."""
    await asyncio.sleep(seconds)
