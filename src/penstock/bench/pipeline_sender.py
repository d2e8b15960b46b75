"""The program that sends: a process of its own, with several sessions of one source, as fast as credits allow."""

import selectors
import socket
import time
from dataclasses import dataclass, field

from penstock.bench.contender import BenchmarkFailed
from penstock.bench.contenders import connector_frames as frames
from penstock.bench.contenders.connector_frames import Answers
from penstock.bench.contenders.ingest import WINDOW, open_streams, receive, spread
from penstock.bench.drive import SILENCE_SECONDS_MAX
from penstock.bench.pipeline_events import Part, last_of_all
from penstock.bench.process import connect

SESSIONS = 4
"""One session alone has no more in flight than its window: it would wait for fsyncs."""


@dataclass(slots=True)
class Session:
    """With one stream, whose number is the session's."""

    number: int
    sock: socket.socket
    answers: Answers = field(default_factory=Answers)
    spent: int = 0
    granted: int = 0

    @property
    def in_flight(self) -> int:
        return self.granted - (self.answers.credits - self.spent)

    def send(self, data: memoryview | bytes, count: int) -> None:
        self.sock.sendall(data)
        self.spent += count

    def receive(self) -> None:
        receive(self.sock, self.answers)


def open_session(port: int, source: str, number: int) -> Session:
    session = Session(number, connect(port))
    session.sock.settimeout(SILENCE_SECONDS_MAX)
    session.sock.sendall(frames.hello(source))
    while not session.answers.credits:
        session.receive()
    open_streams(session.sock, session.answers, [spread(number)])
    session.spent, session.granted = 1, session.answers.credits - 1
    return session


@dataclass(frozen=True, slots=True)
class Sent:
    """On the monotonic clock, which all processes of a machine share: the first send, and the last acknowledgement."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class SendJob:
    """A generator's job. All is durable when it returns; `is_last` sends what ends all minutes, after everything
    else is durable.
    """

    port: int
    source: str
    part: Part
    is_last: bool

    def __call__(self) -> Sent:
        sessions = [open_session(self.port, self.source, number) for number in range(SESSIONS)]
        try:
            with selectors.DefaultSelector() as selector:
                for session in sessions:
                    selector.register(session.sock, selectors.EVENT_READ, session)
                return self._send(selector, sessions)
        finally:
            for session in sessions:
                session.sock.close()

    def _send(self, selector: selectors.BaseSelector, sessions: list[Session]) -> Sent:
        granted = min(session.granted for session in sessions)
        size = max(1, granted // WINDOW)
        began = 0.0
        for batch in self.part.batches(size):
            began = began or time.monotonic()
            session = _free(selector, sessions, granted - len(batch))
            batch["stream"] = spread(session.number)
            session.send(memoryview(batch.view("u1").data), len(batch))
        _wait_for_all(selector, sessions)
        if self.is_last:
            sessions[0].send(last_of_all(self.part.events, 0), 1)
            _wait_for_all(selector, sessions)
        return Sent(began, time.monotonic())


def _free(selector: selectors.BaseSelector, sessions: list[Session], in_flight_max: int) -> Session:
    """The one that has least in flight, as soon as that is little enough."""
    while True:
        session = min(sessions, key=lambda session: session.in_flight)
        if session.in_flight <= in_flight_max:
            return session
        _receive(selector)


def _wait_for_all(selector: selectors.BaseSelector, sessions: list[Session]) -> None:
    while any(session.in_flight > 0 for session in sessions):
        _receive(selector)


def _receive(selector: selectors.BaseSelector) -> None:
    ready = selector.select(SILENCE_SECONDS_MAX)
    if not ready:
        raise BenchmarkFailed(f"nothing acknowledged for {SILENCE_SECONDS_MAX:.0f} s")
    for key, _ in ready:
        key.data.receive()
