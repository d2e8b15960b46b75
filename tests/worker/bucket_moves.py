"""Workers on one bucket, between which the shard moves while sources send."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from penstock.client import Message, Source
from penstock.core.errors import PenstockError
from tests.client.source.stored import stored_messages
from tests.support import http
from tests.support.bucket_worker import BucketWorker
from tests.support.waiting import SECONDS_MAX, until

SOURCE = "letters"
RETRY_SECONDS = 900.0
"""Longer than any test waits: on a busy machine a shard is away for longer than programs usually wait for a worker, and
a program that has given up would look like one that is not acknowledged.
"""
EVERY_SECONDS = 0.03
"""Between two messages of a stream."""


def cluster(http_port: int) -> dict[str, Any]:
    """Asked again if the connection is closed: a worker's HTTP port changes hands when it takes over, or is drained."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        with suppress(ConnectionError, HTTPException):
            found.append(http.get(http_port, "/cluster"))
        return bool(found)

    until(asked)
    return found[0]


class Workers:
    """The first one owns the shard, the others are standbys."""

    def __init__(self, folder: Path, url: str, count: int, *options: str) -> None:
        self.url = url
        self.all = [BucketWorker(folder / f"worker-{number}", url, *options) for number in range(count)]
        self.names: dict[BucketWorker, str] = {}

    def start(self) -> None:
        first, *others = self.all
        first.start()
        until(lambda: len(cluster(first.http_port)["workers"]) == 1)
        self.names[first] = cluster(first.http_port)["worker"]
        for other in others:
            self.join(other)

    def join(self, other: BucketWorker) -> None:
        """Start it, and wait until it is a standby."""
        other.begin()
        connector = f"127.0.0.1:{other.connector_port}"

        def listed() -> dict[str, Any] | None:
            found = cluster(self.any_port())["workers"]
            return next((one for one in found if one["addresses"].get("connector") == connector), None)

        until(listed, lambda: other.said)
        one = listed()
        assert one is not None
        self.names[other] = one["worker"]
        other.http_port = int(one["addresses"]["http"].rpartition(":")[2])

    def any_port(self) -> int:
        return next(one.http_port for one in self.all if one.is_running and one.http_port)

    def owner(self) -> BucketWorker:
        """As the first worker that answers sees it."""
        name = cluster(self.any_port())["shards"][0]["owner"]
        return next(one for one in self.all if self.names.get(one) == name)

    def serving(self) -> BucketWorker:
        """The owner, when it serves."""
        until(lambda: self.owner().has_ports(), lambda: [one.said for one in self.all])
        owner = self.owner()
        owner.read_ports()
        return owner

    @property
    def seeds(self) -> str:
        return ",".join(f"127.0.0.1:{one.connector_port}" for one in self.all)

    def begin_drain(self, worker: BucketWorker, to: str = "") -> None:
        status, body = http.ask(worker.http_port, "POST", "/cluster/drain", {"worker": self.names[worker], "to": to})
        assert status == 200, body

    def drain(self, to: str = "") -> BucketWorker:
        """Move the shard away from its owner; returns the new one, which serves."""
        before = self.owner()
        self.begin_drain(before, to)
        until(lambda: self.owner() is not before, lambda: [one.said for one in self.all])
        return self.serving()

    def close(self) -> None:
        for one in self.all:
            one.close()


@contextmanager
def workers(
    folder: Path, url: str, count: int = 2, *options: str, others: dict[str, str] | None = None
) -> Iterator[Workers]:
    """`others`: variables of all but the first one."""
    made = Workers(folder, url, count, *options)
    for one in made.all[1:]:
        one.environment = others or {}
    try:
        made.start()
        yield made
    finally:
        made.close()


class Gaps(NamedTuple):
    """The longest time of each stream without an acknowledgement, in seconds."""

    streams: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"{self.streams} streams: gap p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, longest {self.longest:.2f} s"


class Move(NamedTuple):
    gaps: Gaps
    repeated: int
    """Messages that were sent twice."""
    unacknowledged: int
    """Those that were sent, and not acknowledged, when the streams were opened again."""

    def __str__(self) -> str:
        return f"{self.gaps}; {self.repeated} messages sent again, of {self.unacknowledged} without an acknowledgement"


class Sending:
    """A program with many streams, each with a message every few milliseconds, until it is stopped."""

    def __init__(self, seeds: str, streams: int, name: str = SOURCE, every_seconds: float = EVERY_SECONDS) -> None:
        self.name = name
        self._every_seconds = every_seconds
        self._source = Source(seeds, source=name, on_ack=self._acked, poll_seconds=0.005, retry_seconds=RETRY_SECONDS)
        names = [f"stream {number}" for number in range(streams)]
        self._streams = [self._source.stream(name, partial(self._opened_after, name)) for name in names]
        self._by_name = {one.name: one for one in self._streams}
        self._opened: dict[str, tuple[int, int]] = {}
        """The id from which a stream goes on, and how many of its messages had been sent by then."""
        self.repeated = self.unacknowledged = 0
        """As in Move, from the start."""
        self._has_ended = threading.Event()
        self._last_ack: dict[str, float] = {}
        self._gaps: dict[str, float] = {}
        self._error: PenstockError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._source.run()
        except PenstockError as error:
            self._error = error

    def _messages(self, after: int | None) -> Iterator[Message | None]:
        number, due = 0 if after is None else after + 1, 0.0
        while not self._has_ended.is_set():
            if time.monotonic() < due:
                yield None
            else:
                yield Message(number, b"%d" % number, 1000 + number)
                number, due = number + 1, time.monotonic() + self._every_seconds

    def _opened_after(self, name: str, after: int | None) -> Iterator[Message | None]:
        """What was sent, and is not stored, is sent again."""
        stream, number = self._by_name[name], 0 if after is None else after + 1
        first, sent = self._opened.get(stream.name, (number, stream.sent))
        end = first + stream.sent - sent
        self.repeated += end - number
        self.unacknowledged += end - (0 if stream.acknowledged is None else stream.acknowledged + 1)
        self._opened[stream.name] = number, stream.sent
        return self._messages(after)

    @property
    def sent(self) -> int:
        """Messages, those sent again too."""
        return sum(one.sent for one in self._streams)

    def _acked(self, name: str, _: int) -> None:
        now = time.monotonic()
        if name in self._last_ack:
            self._gaps[name] = max(self._gaps.get(name, 0.0), now - self._last_ack[name])
        self._last_ack[name] = now

    def start(self) -> None:
        self._thread.start()
        self.wait_for_acks()

    def wait_for_acks(self, seconds: float = SECONDS_MAX) -> None:
        """Each stream gets a new one."""
        before = dict(self._last_ack)
        until(
            lambda: all(self._last_ack.get(one.name, 0.0) > before.get(one.name, 0.0) for one in self._streams),
            lambda: self._error or "no acknowledgement",
            seconds,
        )

    def acknowledged_ids(self) -> dict[str, int]:
        return {one.name: -1 if one.acknowledged is None else one.acknowledged for one in self._streams}

    def stream_ids(self) -> dict[str, int]:
        return {one.name: one.stream_id for one in self._streams}

    def forget_gaps(self) -> None:
        self._gaps.clear()

    def gaps(self) -> Gaps:
        found = sorted(self._gaps.values())
        p50, p99 = (quantiles(found, n=100)[at] for at in (49, 98))
        return Gaps(len(found), p50, p99, found[-1])

    def end(self) -> None:
        """Nothing more is sent."""
        self._has_ended.set()

    def finish(self, seconds: float = SECONDS_MAX) -> dict[int, int]:
        """All streams end. Returns their last ids, all of which are acknowledged."""
        self.end()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self.name} is not acknowledged: {self.acknowledged_ids()}"
        assert self._error is None, self._error
        assert all(one.is_done for one in self._streams)
        return {one.stream_id: one.acknowledged or 0 for one in self._streams}

    def close(self) -> None:
        self._has_ended.set()
        self._source.stop()
        with suppress(RuntimeError):  # it was never started
            self._thread.join(SECONDS_MAX)

    def check(self, worker: BucketWorker) -> int:
        """Every message is stored once, in order, and up to the last one that was acknowledged. Returns how many."""
        last = self.finish()
        stored = stored_messages(worker.address, self.name)
        assert set(stored) == set(last)
        for stream_id, messages in stored.items():
            assert [one.id for one in messages] == list(range(last[stream_id] + 1))
        return sum(map(len, stored.values()))


@contextmanager
def sending(seeds: str, streams: int, name: str = SOURCE, every_seconds: float = EVERY_SECONDS) -> Iterator[Sending]:
    made = Sending(seeds, streams, name, every_seconds)
    try:
        made.start()
        yield made
    finally:
        made.close()


def move_while_sending(folder: Path, url: str, streams: int, moves: int) -> list[Move]:
    """From worker to worker, and back. No message is sent twice unless it was not acknowledged."""
    found = []
    with ExitStack() as stack:
        two = stack.enter_context(workers(folder, url))
        program = stack.enter_context(sending(two.seeds, streams))
        for _ in range(moves):
            program.wait_for_acks()
            program.forget_gaps()
            repeated, unacknowledged = program.repeated, program.unacknowledged
            to = next(two.names[one] for one in two.all if one is not two.owner())
            owner = two.drain(to)
            program.wait_for_acks()
            again, open_ones = program.repeated - repeated, program.unacknowledged - unacknowledged
            found.append(Move(program.gaps(), again, open_ones))
        stored = program.check(owner)
        assert program.sent - stored == program.repeated <= program.unacknowledged
    return found
