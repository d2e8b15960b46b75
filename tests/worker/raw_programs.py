"""Programs on plain sockets that go on whatever happens to workers. Some follow RESTART with an address."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Restart,
    Use,
    announce_window,
    encode,
)
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import EVERY_SECONDS

STREAM, STREAM_ID = "one", 1
PAUSE_SECONDS = 0.05


class RawProgram:
    """Version 0.0.1 on a plain socket, with one stream, as it was before there was MIGRATE. `follows`: it knows that
    RESTART may have an address; otherwise it connects to the seed that it has, again and again.
    """

    def __init__(
        self, seeds: str, name: str, *, follows: bool, every_seconds: float = EVERY_SECONDS, stream_id: int = STREAM_ID
    ) -> None:
        self.name = name
        self.stream, self.stream_id = STREAM, stream_id
        self._every_seconds = every_seconds
        self.acknowledged = self.stored = -1
        self.restarts = 0
        self._seeds = seeds.split(",")
        self._follows = follows
        self._is_ending = threading.Event()
        self._has_ended = threading.Event()
        self._next = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wait_for_acks()

    def _run(self) -> None:
        number, chosen = 0, self._seeds[0]
        while not self._is_finished():
            address = ""
            host, _, port = chosen.rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
                address = self._session(connection)
            number += 1
            chosen = address or self._seeds[number % len(self._seeds)]
            time.sleep(self._pause())

    def _is_finished(self) -> bool:
        return self._has_ended.is_set()

    def _pause(self) -> float:
        return PAUSE_SECONDS

    def _session(self, connection: socket.socket) -> str:
        """Until the connection ends. Returns the address to which it is sent."""
        connection.settimeout(0.02)
        decoder = Decoder(Use.SOURCE)
        hello = Hello("0.0.1", b"", announce_window(self.name), self.name)
        connection.sendall(encode(hello) + encode(Notify(self.stream_id, self.stream)))
        is_open, due = False, 0.0
        while not self._is_over(connection):
            for frame in self._received(connection, decoder):
                match frame:
                    case NotifyAck():
                        if not frame.success:
                            return ""
                        stored = -1 if frame.point_of_reference == NOTHING_YET else frame.point_of_reference
                        self._next, is_open = stored + 1, True
                        self.stored = max(self.stored, stored)
                        self._opened()
                    case Ack():
                        self._acked(max((last for _, last in frame.acked), default=-1))
                    case Restart():
                        self.restarts += 1
                        return frame.address if self._follows else ""
            if is_open and not self._is_ending.is_set() and time.monotonic() >= due:
                payload = self._payload(self._next)
                connection.sendall(encode(Message(self.stream_id, self._next, 1000 + self._next, b"", payload)))
                self._next, due = self._next + 1, time.monotonic() + self._every_seconds
        return ""

    def _is_over(self, _: socket.socket) -> bool:
        """Whether the session is not wanted any more."""
        return self._has_ended.is_set()

    def _opened(self) -> None: ...

    def _acked(self, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)

    def _payload(self, message_id: int) -> bytes:
        return b"%d" % message_id

    def _received(self, connection: socket.socket, decoder: Decoder) -> Iterator[Frame]:
        try:
            data = connection.recv(65536)
        except TimeoutError:
            return
        if not data:
            raise ConnectionResetError
        yield from decoder.feed(data)

    def wait_for_acks(self, seconds: float = SECONDS_MAX) -> None:
        before = self.acknowledged
        until(lambda: self.acknowledged > before, lambda: f"{self.name} gets no acknowledgement", seconds)

    def end(self) -> None:
        """Nothing more is sent."""
        self._is_ending.set()

    def finish(self, seconds: float = SECONDS_MAX) -> dict[int, int]:
        self.end()
        until(
            lambda: max(self.acknowledged, self.stored) >= self._next - 1,
            lambda: f"{self.name} is not acknowledged: {self.acknowledged} of {self._next - 1}",
            seconds,
        )
        self._has_ended.set()
        self._thread.join(SECONDS_MAX)
        return {self.stream_id: self.acknowledged}

    def acknowledged_ids(self) -> dict[str, int]:
        return {self.stream: self.acknowledged}

    def stream_ids(self) -> dict[str, int]:
        return {self.stream: self.stream_id}

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join(SECONDS_MAX)


@contextmanager
def raw_program(seeds: str, name: str, *, follows: bool, every_seconds: float) -> Iterator[RawProgram]:
    made = RawProgram(seeds, name, follows=follows, every_seconds=every_seconds)
    try:
        made.start()
        yield made
    finally:
        made.close()
