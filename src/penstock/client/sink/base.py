"""What both sinks share: limits, the state directory, and the handling of failures."""

import logging
import os
import ssl as tls
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.client.sink.log import open_log
from penstock.client.sink.participant import AsyncParticipant, Data, Encode, Participant, payloads, target_of
from penstock.client.sink.session import Desk, Terms
from penstock.client.sink.transactions import OnCommit, Transactions
from penstock.core.address import Address
from penstock.core.errors import RequestError
from penstock.protocol.connector import FRAME_SIZE_CEILING, FRAME_SIZE_MAX

UNCOMMITTED_BYTES_MAX = 2**30
"""Bytes of frames of an uncommitted transaction: they are stored until the decision, and an abort discards them."""

CONNECTIONS_MAX = 16
"""One has the session; the others are connecting or closing. Beyond the limit, the one that has waited longest without
a session is closed, so that silent peers do not keep the worker out."""

HANDSHAKE_SECONDS = 10.0
"""For TLS and HELLO."""

LAST_WORDS_SECONDS = 2.0
"""How long a peer may take to read its ERROR."""

RECEIVE_BYTES = 256 * 1024
"""Received at once: hundreds of messages per call of `write`, if they arrive that fast."""

UNSENT_BYTES_MAX = 64 * 1024
"""Answers that a worker has not read yet; beyond this, nothing more is read from it."""

logger = logging.getLogger("penstock.sink")

OnReady = Callable[[str], object]


class SinkBase(ABC):
    """Receives one output of one pipeline from a worker. See `Sink`."""

    _can_await = False

    def __init__(
        self,
        address: str,
        target: Participant | AsyncParticipant | Data,
        *,
        state: str | os.PathLike[str],
        encode: Encode = payloads,
        cookie: bytes = b"",
        program: str | None = None,
        instance: str | None = None,
        ssl: tls.SSLContext | None = None,
        on_commit: OnCommit | None = None,
        uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX,
        frame_size_max: int = FRAME_SIZE_MAX,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        if not 0 < frame_size_max <= FRAME_SIZE_CEILING:
            raise RequestError(f"frame_size_max: {frame_size_max} is not between 1 and {FRAME_SIZE_CEILING}")
        self._address = Address.parse(address, default_port=0)
        self._target = target_of(target, encode, can_await=self._can_await)
        self._terms = Terms(cookie, program, instance, frame_size_max)
        self._state = state
        self._ssl = ssl
        self._on_commit = on_commit
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._handshake_seconds = handshake_seconds
        self._is_running = False
        self._is_stopped = False

    def stop(self) -> None:
        """Let `run` close the connections and return, soon. What was not voted on is sent again to the next run; a
        transaction in doubt is decided then. May be called from any thread.
        """
        self._is_stopped = True
        self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Wake up a waiting `run`."""

    @contextmanager
    def _running(self) -> Iterator[Desk]:
        """The log is open meanwhile. However the run ends, nothing is discarded: the next start does that, from what is
        durable.
        """
        if self._is_running:
            raise RequestError("this sink is running already", "Create another one.")
        self._is_running = True
        try:
            log = open_log(self._state)
            try:
                transactions = Transactions(log, self._target, self._uncommitted_bytes_max, self._on_commit)
                yield Desk(self._terms, transactions)
            finally:
                log.close()
        finally:
            self._is_running = self._is_stopped = False


def reason_of(error: Exception) -> str:
    """The text that the worker receives when the sink ends with this error."""
    return f"the sink has failed: {type(error).__name__}: {error}"
