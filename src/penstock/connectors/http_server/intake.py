"""A client's stream: opened once, and asked before each request whether it may send now.

Clients wait for an answer, so none of these waits is longer than its limit: a client that is refused for now has sent
nothing that was stored, and sends it again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.connectors.api import Downstream, Host, Stream
from penstock.connectors.http_server.options import IntakeOptions
from penstock.connectors.streams import first_of
from penstock.core.errors import PenstockError

_FIRST_EPOCH_SECONDS_MAX = 600.0
"""How long a request waits for a pipeline's first epoch since Spark started. That epoch compiles what later ones use
and starts Spark's Python processes: seconds, or minutes on a busy machine. A pipeline that fails meanwhile is noticed;
this limit is for one that is alive and stuck.
"""


class NotNow(Exception):
    """Nothing of the request was stored: it can be sent again, in `seconds` if that is known."""

    def __init__(self, why: str, *, seconds: int | None = None, is_draining: bool = False) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.is_draining = is_draining


class ClientGone(Exception):
    """The client has disconnected while it was being served."""


class Intake:
    """`downstream` are the pipelines that a request waits for; `by_all`: for each of them."""

    def __init__(
        self, peer: str, host: Host, options: IntakeOptions, downstream: Downstream, *, by_all: bool = True
    ) -> None:
        self._peer = peer
        self._host = host
        self._options = options
        self._downstream = downstream
        self._by_all = by_all
        self._opening: asyncio.Task[Stream] | None = None
        self.on_opened: Callable[[int], None] = lambda _: None
        """Gets the stream's id."""
        self.gone = asyncio.Event()
        """The client has disconnected."""
        self._attendance: Attendance | None = None
        self.is_cut = False
        """Whether a request was not stored completely."""

    def begin(self) -> None:
        """Open the stream: the client has connected."""
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(_retrieve)

    async def _open(self) -> Stream:
        stream = await self._host.open_stream(self._peer, metadata={"peer": self._peer})
        self.on_opened(stream.ref.stream_id)
        return stream

    def leave(self) -> None:
        """The client has disconnected: what is done for its request ends."""
        self.gone.set()
        if self._attendance is not None:
            self._attendance.interrupt(ClientGone())

    async def end(self) -> None:
        """Close the stream, once no request is in progress."""
        if self._opening is None:
            return
        try:
            stream = await self._opening
        except PenstockError:
            return
        if self.is_cut:
            await stream.cut_off("the request ended before all of it was stored")
        await stream.close()

    async def admitted(self) -> Stream:
        """The stream, when it may send. Raises NotNow, ClientGone."""
        if self._host.is_draining:
            raise NotNow("shutting down: not accepting requests", is_draining=True)
        if not self._host.has_out:
            raise NotNow("no pipeline reads this connector")
        if self._downstream.is_waited_for(by_all=self._by_all):
            await self._pipelines_ready()
        opening = self._opening
        if opening is None or (opening.done() and opening.exception() is not None):
            self.begin()
        elif opening.done() and (stream := opening.result()).may_send:
            return stream
        assert self._opening is not None
        try:
            async with asyncio.timeout(self._options.admission):
                stream = await asyncio.shield(self._opening)
                await stream.ready()
        except TimeoutError:
            raise NotNow("temporarily not accepting requests") from None
        except PenstockError as error:
            raise NotNow(str(error)) from None
        return stream

    def stream_now(self) -> Stream | None:
        """The stream, if a request waits at most for room before it is stored; None: `admitted` says why not."""
        downstream, by_all, opening = self._downstream, self._by_all, self._opening
        if self._host.is_draining or not self._host.has_out or opening is None or not opening.done():
            return None
        if downstream.is_waited_for(by_all=by_all) or downstream.is_on_first_epoch(by_all=by_all):
            return None
        return opening.result() if not opening.cancelled() and opening.exception() is None else None

    async def _pipelines_ready(self) -> None:
        """While Spark is starting, the request waits, unread and not stored: a client that is refused in the end can
        send it again, and nothing is processed twice.
        """
        downstream, by_all = self._downstream, self._by_all
        self._host.count("early_requests")
        try:
            async with asyncio.timeout(self._options.timeout):
                first = await first_of(downstream.ready(by_all=by_all), self.gone.wait(), self._host.draining())
        except TimeoutError:
            if (why := downstream.not_ready()) is not None and downstream.is_waited_for(by_all=by_all):
                raise NotNow(f"{why.text}; nothing was stored", seconds=why.seconds) from None
            return
        if first == 1:
            raise ClientGone
        if first == 2:
            raise NotNow("shutting down: not accepting requests", is_draining=True)

    def attended(self) -> "Attendance":
        """`async with` it for what is done with an admitted request: it raises ClientGone when the client disconnects,
        and TimeoutError when the request has waited too long.
        """
        if self.gone.is_set():
            raise ClientGone
        self._attendance = Attendance(self._options.timeout, self._first_epoch())
        return self._attendance

    def _first_epoch(self) -> asyncio.Task[None] | None:
        """Ends with the pipelines' first epoch, whose time does not count; None: they have had it."""
        if not self._downstream.is_on_first_epoch(by_all=self._by_all):
            return None
        self._host.count("first_epoch_requests")
        return asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_EPOCH_SECONDS_MAX):
                await self._downstream.warm(by_all=self._by_all)

    @property
    def waits_for(self) -> str:
        """Why no reply has come, in parentheses; "" if it is not known."""
        why = self._downstream.not_ready()
        if why is not None:
            return f" ({why.text})"
        if self._downstream.is_on_first_epoch(by_all=self._by_all):
            return " (the first epoch since Spark was started is not complete)"
        return ""


class Attendance:
    """Interrupts the task that has entered it, with an error of its own, or with TimeoutError. One timer and no task:
    every request has one.
    """

    def __init__(self, seconds: float, before: "asyncio.Task[None] | None") -> None:
        """The seconds count from the end of `before`, if there is one."""
        self._seconds = seconds
        self._before = before
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._before is None:
            self._count()
        else:
            self._before.add_done_callback(self._count)
        return self

    def _count(self, _: object = None) -> None:
        if self._task is not None:
            self._timer = self._loop.call_later(self._seconds, self.interrupt, TimeoutError())

    def interrupt(self, error: Exception) -> None:
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._before is not None:
            self._before.cancel()
        if self._error is None or task is None:
            return
        if task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise self._error from None


def _retrieve(opening: asyncio.Task[Stream]) -> None:
    """Marks an error as seen: the next request reports it, but there may be none."""
    if not opening.cancelled():
        opening.exception()
