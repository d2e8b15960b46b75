"""A writer's appends to one segment, over as many connections as that takes. No I/O."""

from collections.abc import Callable

from penstock.client.segments.failures import error_of
from penstock.client.segments.session import Session
from penstock.client.segments.window import AppendWindow
from penstock.core.errors import NoRoom, PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import (
    NO_EVENT_NUMBER,
    VERSIONED,
    AppendSetup,
    DataAppended,
    Failure,
    Reply,
    SetupAppend,
    encode_append,
)


def _ignore() -> None:
    pass


class Appending:
    """Set up, send blocks, take acknowledgements; after a failure or a loss, set up again: the server takes no more
    from an appender that has failed, and says then what it has stored.

    Each set-up has a request id of its own, which its blocks carry: replies to blocks of an earlier one are dropped.
    """

    def __init__(
        self, segment: str, writer_id: bytes, window: AppendWindow, on_change: Callable[[], None] = _ignore
    ) -> None:
        self.segment = segment
        self.writer_id = writer_id
        self.window = window
        self.is_open = False
        self.failure: PenstockError | None = None
        """Why it must be set up again; None before the first time, and when all is well."""
        self._on_change = on_change
        self._session: Session | None = None
        self._request_id = 0

    @property
    def must_set_up(self) -> bool:
        return self._session is None

    @property
    def is_healthy(self) -> bool:
        """Open, and there was room when we last heard."""
        return self.is_open and not self.window.is_probing

    def set_up(self, session: Session) -> bytes:
        """What to send to begin, or to begin again."""
        self.close()
        self.failure = None
        self._session = session
        self._request_id = session.expect(self)
        return VERSIONED.encode(SetupAppend(self.writer_id, self.segment, request_id=self._request_id))

    def take(self) -> list[Buffer]:
        """The next block, as it is sent; nothing if there is none, or it may not be sent now."""
        block = self.window.take() if self.is_open else None
        if block is None:
            return []
        return encode_append(
            self.writer_id,
            block.data,
            event_count=block.event_count,
            event_number=block.event_number,
            request_id=self._request_id,
        )

    def close(self) -> None:
        """Take no more replies."""
        if self._session is not None:
            self._session.forget(self._request_id)
            self._session = None
        self.is_open = False

    def on_reply(self, reply: Reply) -> None:
        try:
            self._take_reply(reply)
        except PenstockError as error:
            self._fail(error)
        self._on_change()

    def on_lost(self, error: PenstockError) -> None:
        self._fail(error)
        self._on_change()

    def _take_reply(self, reply: Reply) -> None:
        match reply:
            case DataAppended() if self.is_open:
                self.window.acknowledge(reply.acknowledged)
            case AppendSetup() if not self.is_open:
                self.window.set_up(None if reply.acknowledged == NO_EVENT_NUMBER else reply.acknowledged)
                self.is_open = True
            case Failure():
                raise error_of(reply)
            case _:
                raise ProtocolError(f"{type(reply).__name__} is no reply to an append")

    def _fail(self, error: PenstockError) -> None:
        self.close()
        self.failure = error
        if isinstance(error, NoRoom):
            self.window.probe()
