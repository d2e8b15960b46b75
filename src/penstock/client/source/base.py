"""What both sources share: the streams, what was ordered from outside, and what to do about an end."""

import logging
import ssl as tls
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Any, Generic, TypeVar

from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.worker_client import PORT as HTTP_PORT
from penstock.client.segments.address import Address
from penstock.client.segments.retrying import RETRY_SECONDS, TIMEOUT_SECONDS
from penstock.client.source.failures import PORT, Lost, SourceFailed, parse_address
from penstock.client.source.reconnecting import Reconnecting
from penstock.client.source.session import SourceSession, Terms
from penstock.client.source.stream import SourceStream
from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.connector import FRAME_SIZE_MAX, SOURCE_VERSION, Hello, encode, stream_id_of

F = TypeVar("F", bound=Callable[[int | None], Any])

STREAMS_MAX = 1000
"""Of one source: each may hold a file, and in the asyncio version a thread and `supply.SUPPLY_BYTES`."""

POLL_SECONDS = 0.2
"""How long after "nothing now" an iterator is asked again."""

DISCOVER_SECONDS = 1.0
"""How often new streams are looked for."""

logger = logging.getLogger("penstock.source")

OnAck = Callable[[str, int], object]


class SourceBase(ABC, Generic[F]):
    """Streams under one name. See `Source`."""

    def __init__(
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        source: str,
        program: str = "penstock",
        cookie: bytes = b"",
        ssl: tls.SSLContext | None = None,
        on_ack: OnAck | None = None,
        poll_seconds: float = POLL_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        frame_size_max: int = FRAME_SIZE_MAX,
        http: str | None = None,
    ) -> None:
        hello = Hello(SOURCE_VERSION, cookie, program, source)
        encode(hello)  # raises for what does not fit
        self.name = source
        self._terms = Terms(hello, frame_size_max, timeout_seconds, retry_seconds)
        self._reconnecting = Reconnecting(parse_address(address), retry_seconds)
        self._ssl = ssl
        self._http = http
        self._on_ack = on_ack
        self._poll_seconds = poll_seconds
        self._streams: dict[str, SourceStream] = {}
        self._find: Callable[[], Iterable[tuple[str, F]]] | None = None
        self._look_at = 0.0
        self._is_running = False
        self._is_stopped = False
        self._failure: str | None = None

    @property
    def streams(self) -> tuple[SourceStream, ...]:
        """Every stream so far, in the order in which they were given."""
        return tuple(self._streams.values())

    def stream(self, name: str, factory: F, *, stream_id: int | None = None) -> SourceStream:
        """Send what this factory gives as a stream; at any time, from any thread. The worker knows a stream by its id,
        which is made from its name unless it is given.
        """
        if len(self._streams) >= STREAMS_MAX:
            raise LimitExceeded(f"{STREAMS_MAX} streams are the limit of a source", "Spread them over several sources.")
        added = SourceStream(name, stream_id_of(name) if stream_id is None else stream_id, factory)
        for other in self.streams:
            if other.name == name or other.stream_id == added.stream_id:
                raise RequestError(f"stream {name!r}: {other.name!r} has the same name or id", "Each needs its own.")
        self._streams[name] = added
        self._wake()
        return added

    def discover(self, find: Callable[[], Iterable[tuple[str, F]]]) -> None:
        """Look for streams again and again: `find` gives the name and the factory of each that exists now, and those
        that are new are added. `run` then goes on for ever.
        """
        self._find = find

    def fail(self, reason: str) -> None:
        """Tell the worker why this source cannot go on (an ERROR frame), close, and let `run` raise SourceFailed. From
        any thread, from factories, iterators and `on_ack` as well.
        """
        self._failure = reason
        self._wake()

    def stop(self) -> None:
        """Let `run` close the connection and return, soon. What is not acknowledged is sent again by the next run.
        From any thread.
        """
        self._is_stopped = True
        self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Let a `run` that waits look again."""

    def _begin(self) -> None:
        if self._is_running:
            raise RequestError("this source is running already", "Make another one.")
        if not self._streams and self._find is None:
            raise RequestError("this source has no streams", "Add one first: source.stream(name, factory)")
        self._is_running = True
        self._look_at = 0.0

    def _end(self) -> None:
        self._is_running = self._is_stopped = False
        self._failure = None

    def _look(self, now: float) -> None:
        """Add what `discover` finds, if it is time to look."""
        if self._find is None:
            self._look_at = inf
        elif now >= self._look_at:
            self._look_at = now + DISCOVER_SECONDS
            for name, factory in islice(self._find(), STREAMS_MAX + 1):
                if name not in self._streams:
                    self.stream(name, factory)

    def _offer(self, session: SourceSession, now: float) -> None:
        """Let the session ask for the streams that it does not know yet."""
        streams = self.streams
        for stream in streams[session.offered :]:
            session.add(stream, now)
        session.offered = len(streams)

    def _is_over(self) -> bool:
        """Whether there is nothing more to do. Raises what `fail` ordered."""
        if self._failure is not None:
            raise SourceFailed(self._failure)
        return self._is_stopped or (self._find is None and all(stream.is_done for stream in self.streams))

    def _worker(self) -> CoordinatorClient:
        """The worker's HTTP side."""
        address = self._http or str(Address(self._reconnecting.address.host, HTTP_PORT))
        return CoordinatorClient(address, self._terms.retry_seconds, timeout_seconds=self._terms.timeout_seconds)

    def _declare(self, time_us: int, stream: str | None, after: int | None) -> None:
        known = self._streams.get(stream or "")
        with self._worker() as worker:
            worker.declare_watermark(self.name, time_us, stream if known is None else known.stream_id, after=after)

    def _finish(self) -> None:
        with self._worker() as worker:
            worker.end_source(self.name)

    def _tell_acks(self, session: SourceSession) -> None:
        acked, session.acked = session.acked, {}
        if self._on_ack is not None:
            for stream, point_of_reference in acked.items():
                self._on_ack(stream.name, point_of_reference)

    def _pause(self, error: Lost, now: float) -> float:
        """How long to wait before the next connection. Raises the error when that is of no use any more."""
        pause = self._reconnecting.pause(error, now)
        logger.warning("source %r: %s; trying again in %.2f s", self.name, error, pause)
        return pause


def reason_of(error: Exception) -> str:
    """What the worker is told when the source ends with this error."""
    return str(error) if isinstance(error, SourceFailed) else f"{type(error).__name__}: {error}"
