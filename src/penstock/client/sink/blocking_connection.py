"""A connection of the blocking sink: one socket, no thread."""

import selectors
import socket
import ssl
import time

from penstock.client.segments.outgoing import Outgoing
from penstock.client.sink.base import LAST_WORDS_SECONDS, RECEIVE_BYTES, UNSENT_BYTES_MAX
from penstock.client.sink.effects import perform
from penstock.client.sink.session import SinkSession

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BlockingConnection:
    """Moves bytes when it is told that it can; `is_closed` when it is of no use any more. What it raises comes from the
    author's code or from the log, never from the peer.

    After an ERROR it reads on, and discards, until the peer has closed: to close with bytes unread would reset the
    connection, and the ERROR with it.
    """

    def __init__(self, accepted: socket.socket, session: SinkSession, handshake_seconds: float) -> None:
        self._socket = accepted
        self._tls = accepted if isinstance(accepted, ssl.SSLSocket) else None
        self._shakes_hands = self._tls is not None
        self._handshake_seconds = handshake_seconds
        self._outgoing = Outgoing()
        self.session = session
        self.deadline: float | None = time.monotonic() + handshake_seconds
        """When `expire` is of use."""
        self.events = selectors.EVENT_READ
        """What to wait for."""
        self.is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def advance(self) -> None:
        """Receive and send what is possible."""
        if self.is_closed or (self._shakes_hands and not self._shake_hands()):
            return
        while data := self._receive():
            if not self.session.is_over:
                perform(self.session.receive(data))
                self._note_progress()
            if self._tls is None or not self._tls.pending():  # of which no `select` would tell
                break
        self.send()

    def expire(self, now: float) -> None:
        """Look at the clock: no HELLO in time, or an ERROR that nobody fetches."""
        if self.deadline is None or now < self.deadline:
            return
        if self.session.is_over or self._shakes_hands:
            self.close()
        else:
            self.session.fail(f"no HELLO within {self._handshake_seconds:g} s")
            self._note_progress()
            self.send()

    def send(self) -> None:
        """What the session has to say, as far as that is possible now."""
        self._outgoing.add(self.session.take())
        try:
            while self._outgoing.size and not self.is_closed:
                self._outgoing.sent(self._socket.send(self._outgoing.next()[0]))
            if self.session.is_over and not self.is_closed:
                self._say_no_more()
        except _NOT_NOW:
            pass
        except OSError:
            self.close()
        reading = selectors.EVENT_READ if self._outgoing.size <= UNSENT_BYTES_MAX else 0
        self.events = reading | (selectors.EVENT_WRITE if self._outgoing.size else 0)

    def close(self) -> None:
        self.is_closed = True
        self.session.close()
        self._socket.close()

    def _say_no_more(self) -> None:
        if self._tls is None:
            self._socket.shutdown(socket.SHUT_WR)
        else:
            self._tls.unwrap()
            self.close()

    def _shake_hands(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.events = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
            return False
        except OSError:
            self.close()
            return False
        self._shakes_hands = False
        return True

    def _receive(self) -> bytes:
        """Nothing: not now, or never again."""
        if self.is_closed or self._outgoing.size > UNSENT_BYTES_MAX:
            return b""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except _NOT_NOW:
            return b""
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    def _note_progress(self) -> None:
        if self.session.is_over:
            self.deadline = time.monotonic() + LAST_WORDS_SECONDS
        elif self.session.is_greeted:
            self.deadline = None
