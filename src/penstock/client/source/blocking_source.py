"""The blocking source: for programs without an event loop."""

import select
import time
from math import isinf

from penstock.client.source.base import SourceBase, reason_of
from penstock.client.source.blocking_connection import BlockingConnection
from penstock.client.source.failures import Lost
from penstock.client.source.iterator_feed import IteratorFeed
from penstock.client.source.message import Factory
from penstock.client.source.outflow import BATCH_BYTES, Outflow
from penstock.client.source.sockets import Waker
from penstock.core.errors import Unavailable


class Source(SourceBase[Factory]):
    """Sends streams of messages to a worker, each message once in effect: after any interruption the worker says what
    it has stored, and the factory is asked for what comes after it. Nothing is kept in memory for that.

        source = Source("127.0.0.1:7100", source="numbers")
        source.stream("even", lambda after: (Message(n, b"%d" % n) for n in range(0, 100, 2)))
        source.run()

    `on_ack(stream name, id)` is called when everything up to that id is complete; ids only grow. `timeout_seconds`: how
    long a worker may take to answer. `retry_seconds`: how long to try again, without progress, before Unavailable is
    raised, `math.inf` for ever; a stream that another connection uses is asked for as long. An ERROR from the worker is
    raised at once, as Refused. What a factory or an iterator raises is told to the worker and raised.

    Factories, iterators and `on_ack` run in the thread that called `run`: while an iterator waits, nothing is sent and
    no ACK is read. One that has nothing now should yield None. No threads are started.

    `http` is the worker's HTTP address, which `finish` and `declare_watermark` talk to; unless it is given, port 7102
    of the same machine.
    """

    _waker: Waker | None = None

    def run(self) -> None:
        """Send every stream until its iterator ends and its last message is acknowledged. Ctrl-C closes the connection,
        ends the iterators and goes on as KeyboardInterrupt.
        """
        self._begin()
        self._waker = waker = Waker()
        try:
            while not self._is_over():
                self._attempt(waker)
        finally:
            self._end()
            self._waker = None
            waker.close()

    def finish(self) -> None:
        """Say that the source has ended for good, so that the windows of whoever reads it close; to be called when
        `run` has returned. What it sends later is stored, and late.
        """
        self._finish()

    def declare_watermark(self, time_us: int, stream: str | None = None, *, after: int | None = None) -> None:
        """Say that no more events before this time, in microseconds since 1970, come on the stream; without a stream,
        on all that this source has open. From any thread. What was sent before may still be on its way: give the id of
        the stream's last message as `after`, and the worker waits for it. Inside of an iterator it would wait in vain.
        """
        self._declare(time_us, stream, after)

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _attempt(self, waker: Waker) -> None:
        """One connection, and the pause after it if it was lost."""
        try:
            connection = self._connect(waker)
            try:
                self._serve(connection)
            finally:
                connection.close()
                if connection.session.was_useful(time.monotonic()):
                    self._reconnecting.progressed()
        except Lost as error:
            if not self._is_over():
                self._sleep(self._pause(error, time.monotonic()), waker)

    def _connect(self, waker: Waker) -> BlockingConnection:
        try:
            return BlockingConnection(self._terms, self._reconnecting.address, self._ssl, waker)
        except Unavailable:
            self._reconnecting.not_connected()
            raise

    def _sleep(self, seconds: float, waker: Waker) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_over() and (left := deadline - time.monotonic()) > 0:
            select.select([waker], [], [], left)
            waker.clear()

    def _serve(self, connection: BlockingConnection) -> None:
        outflow = Outflow(connection.session, time.monotonic)
        try:
            while not self._is_over():
                self._exchange(connection, self._advance(connection, outflow))
            connection.farewell()
        except Exception as error:
            if not connection.session.is_over and not isinstance(error, Lost):
                connection.session.fail(reason_of(error))
                connection.farewell()
            raise
        finally:
            outflow.close()

    def _exchange(self, connection: BlockingConnection, wait_seconds: float | None) -> None:
        try:
            connection.exchange(wait_seconds)
        finally:
            self._tell_acks(connection.session)

    def _advance(self, connection: BlockingConnection, outflow: Outflow) -> float | None:
        """Give the connection what may be sent, and say how long it may wait for more to do."""
        session = connection.session
        self._look(time.monotonic())
        self._offer(session, time.monotonic())
        opened, session.opened = session.opened, []
        for stream in opened:
            outflow.add(IteratorFeed(stream, self._poll_seconds, time.monotonic))
        due = session.poll(time.monotonic())
        outflow.fill(BATCH_BYTES - connection.unsent_bytes)
        if connection.unsent_bytes < BATCH_BYTES:
            due = min(due, outflow.due())
        due = min(due, self._look_at)
        return None if isinf(due) else max(due - time.monotonic(), 0.0)
