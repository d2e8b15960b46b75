"""The blocking sink: for programs without an event loop."""

import socket
from contextlib import closing

from penstock.client.segments.address import Address
from penstock.client.sink.base import OnReady, SinkBase
from penstock.client.sink.blocking_loop import Entrance, Loop
from penstock.client.sink.effects import perform
from penstock.client.source.sockets import Waker


class Sink(SinkBase):
    """Receives a pipeline's output, each epoch exactly once: a worker connects to `address` and delivers.

        sink = Sink("127.0.0.1:7200", DataFile("out.txt"), state="out.state", encode=lines)
        sink.run()

    The target is a `Participant`, or a place for bytes (`Data`), to which the bytes that `encode` makes of the messages
    are written. `state` is a directory of its own for the log of votes and decisions: it belongs to the target's data,
    and to the first instance that connects. Program and instance are checked where they are given. A cookie, and
    `ssl`, a server's context with or without certificates of clients, keep strangers out.

    `on_commit(transaction)` is called when a transaction is committed and applied. One worker has the session at a
    time; when it connects again, its old session ends. A transaction of more than `uncommitted_bytes_max` bytes, and a
    frame of more than `frame_size_max`, are refused with an ERROR.

    The target and `on_commit` are called in the thread that called `run`. No threads are started.
    """

    _waker: Waker | None = None

    def run(self, on_ready: OnReady | None = None) -> None:
        """Recover, listen, serve until `stop`. `on_ready` is told the address when workers may connect. Ctrl-C closes
        all and goes on as KeyboardInterrupt; what the target raises is told to the worker and raised.
        """
        with self._running() as desk, closing(Waker()) as waker:
            self._waker = waker
            try:
                perform(desk.transactions.recover())
                with listen(self._address) as listener:
                    loop = Loop(desk, Entrance(listener, self._ssl, self._handshake_seconds), waker)
                    if on_ready is not None:
                        on_ready(address_of(listener))
                    loop.run(lambda: self._is_stopped)
            finally:
                self._waker = None

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()


def listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return str(Address(host, port))
