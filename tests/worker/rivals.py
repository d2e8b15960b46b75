"""Programs that want the same streams of a source, again and again: on plain sockets, and one with the SDK."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random

from penstock.client import Message, Source
from penstock.core.errors import PenstockError
from penstock.protocol.connector import EndOfStream, encode
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import RETRY_SECONDS
from tests.worker.raw_programs import RawProgram

PAUSE_SECONDS = (0.1, 0.5)
HOLD_SECONDS = (1.0, 6.0)
"""How long a rival has the stream before it lets go of it."""


def name_of(stream_id: int) -> str:
    """The same from every rival: it is what the sinks show."""
    return f"stream {stream_id}"


class Rival(RawProgram):
    """One of several programs that want the same stream. It has the stream for some seconds, then it ends it, or just
    goes.
    """

    def __init__(
        self,
        seeds: str,
        source: str,
        stream_id: int,
        label: str,
        random: Random,
        every_seconds: float,
        *,
        follows: bool = True,
    ) -> None:
        super().__init__(seeds, source, follows=follows, every_seconds=every_seconds, stream_id=stream_id)
        self.stream = name_of(stream_id)
        self.confirmed: dict[int, bytes] = {}
        """Its own messages that were acknowledged in the session in which it has sent them."""
        self.sessions = 0
        self._label = label
        self._random = random
        self._sent: dict[int, bytes] = {}
        """In this session, without an acknowledgement."""
        self._leaves_at: float | None = None
        """None: the stream is not open here."""

    def start(self) -> None:
        self._thread.start()

    def finish(self, seconds: float = SECONDS_MAX) -> dict[int, int]:
        self.end()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self._label} is not acknowledged: {[*self._sent]}"
        return {self.stream_id: self.acknowledged}

    def _is_finished(self) -> bool:
        return self._has_ended.is_set() or self._is_ending.is_set()

    def _pause(self) -> float:
        return self._random.uniform(*PAUSE_SECONDS)

    def _session(self, connection: socket.socket) -> str:
        self._sent, self._leaves_at = {}, None
        return super()._session(connection)

    def _is_over(self, connection: socket.socket) -> bool:
        if self._has_ended.is_set():
            return True
        if self._leaves_at is None:
            return self._is_ending.is_set()
        if self._is_ending.is_set():
            leaves = ends = not self._sent
        else:
            leaves, ends = time.monotonic() > self._leaves_at, self._random.random() < 0.5
        if leaves and ends:
            connection.sendall(encode(EndOfStream(self.stream_id)))
        return leaves

    def _opened(self) -> None:
        self.sessions += 1
        self._leaves_at = time.monotonic() + self._random.uniform(*HOLD_SECONDS)

    def _acked(self, last: int) -> None:
        super()._acked(last)
        for message_id in [one for one in self._sent if one <= last]:
            self.confirmed[message_id] = self._sent.pop(message_id)

    def _payload(self, message_id: int) -> bytes:
        payload = self._sent[message_id] = b"%d of %s" % (message_id, self._label.encode())
        return payload


class SdkRival:
    """The same with the SDK, a new Source each time."""

    def __init__(
        self, seeds: str, source: str, stream_id: int, label: str, random: Random, every_seconds: float
    ) -> None:
        self.stream_id = stream_id
        self.confirmed: dict[int, bytes] = {}
        """As a Rival's."""
        self.sessions = 0
        self.acknowledged = -1
        self._make = partial(Source, seeds, source=source, poll_seconds=0.005, retry_seconds=RETRY_SECONDS)
        self._label = label
        self._random = random
        self._every_seconds = every_seconds
        self._sent: dict[int, bytes] = {}
        """In this session, without an acknowledgement."""
        self._source: Source | None = None
        self._is_ending, self._has_ended = threading.Event(), threading.Event()
        self._error: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_ending.is_set():
                source = self._source = self._make(on_ack=self._acked)
                self._stream = source.stream(name_of(self.stream_id), self._messages, stream_id=self.stream_id)
                source.run()
                self._source = None
                self._is_ending.wait(self._random.uniform(*PAUSE_SECONDS))
        except PenstockError as error:
            self._error = error

    def _messages(self, after: int | None) -> Iterator[Message | None]:
        """Whoever had the stream since the last session may have sent what this one has sent before."""
        self._sent = {}
        self.sessions += 1
        number, due = 0 if after is None else after + 1, 0.0
        leaves_at, ends = time.monotonic() + self._random.uniform(*HOLD_SECONDS), self._random.random() < 0.5
        while not self._is_ending.is_set():
            now = time.monotonic()
            if now > leaves_at:
                if ends:
                    return
                assert self._source is not None
                self._source.stop()
            if now < due or now > leaves_at:
                yield None
            else:
                payload = self._sent[number] = b"%d of %s" % (number, self._label.encode())
                yield Message(number, payload, 1000 + number)
                number, due = number + 1, now + self._every_seconds

    def _acked(self, _: str, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)
        stored = -1 if self._stream.stored is None else self._stream.stored  # when the session began
        for message_id in [one for one in self._sent if stored < one <= last]:
            self.confirmed[message_id] = self._sent.pop(message_id)

    def end(self) -> None:
        """What it has sent is acknowledged first."""
        self._is_ending.set()

    def finish(self, seconds: float) -> None:
        self.end()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self._label} is not acknowledged: {[*self._sent]}"
        assert self._error is None, self._error

    def close(self) -> None:
        self._is_ending.set()
        if (source := self._source) is not None:
            source.stop()
        with suppress(RuntimeError):  # it was never started
            self._thread.join(SECONDS_MAX)


class Rivals:
    """Programs of one source that want the same streams, whose sessions change all the time: for each stream some on
    plain sockets, the last of which knows no RESTART with an address, and one with the SDK.
    """

    def __init__(self, seeds: str, name: str, streams: int, count: int, random: Random, every_seconds: float) -> None:
        """`count`: on plain sockets, for each stream."""
        self.name = name
        self._streams = {name_of(number): number for number in range(1, streams + 1)}
        self.all: list[Rival | SdkRival] = []
        for stream_id in self._streams.values():
            for number in range(count):
                given = Random(random.randrange(1 << 30))
                label, follows = f"rival {number}", number < count - 1
                self.all.append(Rival(seeds, name, stream_id, label, given, every_seconds, follows=follows))
            given = Random(random.randrange(1 << 30))
            self.all.append(SdkRival(seeds, name, stream_id, "the rival with the SDK", given, every_seconds))

    @property
    def sessions(self) -> int:
        return sum(one.sessions for one in self.all)

    def of(self, stream_id: int) -> "list[Rival | SdkRival]":
        return [one for one in self.all if one.stream_id == stream_id]

    def acknowledged_ids(self) -> dict[str, int]:
        return {
            stream: max(one.acknowledged for one in self.of(stream_id)) for stream, stream_id in self._streams.items()
        }

    def stream_ids(self) -> dict[str, int]:
        return self._streams

    def start(self) -> None:
        for one in self.all:
            one.start()
        self.wait_for_acks()

    def wait_for_acks(self, seconds: float = SECONDS_MAX) -> None:
        before = self.acknowledged_ids()
        until(
            lambda: all(now > before[stream] for stream, now in self.acknowledged_ids().items()),
            lambda: f"{self.name} gets no acknowledgement: {before}, {self.acknowledged_ids()}",
            seconds,
        )

    def end(self) -> None:
        for one in self.all:
            one.end()

    def finish(self, seconds: float = SECONDS_MAX) -> None:
        """Everything that the last sessions have sent is acknowledged."""
        for one in self.all:
            one.finish(seconds)

    def close(self) -> None:
        for one in self.all:
            one.close()


@contextmanager
def rivals(seeds: str, name: str, streams: int, count: int, random: Random, every_seconds: float) -> Iterator[Rivals]:
    made = Rivals(seeds, name, streams, count, random, every_seconds)
    try:
        made.start()
        yield made
    finally:
        made.close()
