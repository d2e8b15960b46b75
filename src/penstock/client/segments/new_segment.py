"""Appends to a segment that the writer makes itself: nothing is waited for before the first block is sent. No I/O."""

from uuid import uuid4

from penstock.client.segments.appending import Appending
from penstock.client.segments.session import Session
from penstock.client.segments.window import AppendWindow
from penstock.core.errors import ConditionFailed
from penstock.protocol.segment import (
    NO_EVENT_NUMBER,
    VERSIONED,
    AppendSetup,
    CreateSegment,
    Reply,
    SegmentAlreadyExists,
    SegmentCreated,
)


class NewSegment(Appending):
    """The request to make the segment, the set-up and the blocks leave together: one round trip, one fsync.

    That is right because both the segment's name and the writer are new: nothing can be stored of it. After a failure
    or a loss the segment may be there, and the set-up is waited for, as ever. `SegmentExists` if the name was taken.

    The worker ends a connection that brings blocks of a writer whose set-up it has refused: after any failure, go on
    over a new one.
    """

    def __init__(self, segment: str, window: AppendWindow) -> None:
        super().__init__(segment, uuid4().bytes, window)
        window.set_up(None)
        self._tries = 0

    def set_up(self, session: Session) -> bytes:
        begin = super().set_up(session)
        self._tries += 1
        self.is_open = self._tries == 1
        return VERSIONED.encode(CreateSegment(self.segment, request_id=self._request_id)) + begin

    def _take_reply(self, reply: Reply) -> None:
        match reply:
            case SegmentCreated():
                pass
            case SegmentAlreadyExists() if self._tries > 1:
                pass
            case AppendSetup() if self._tries == 1:
                if reply.acknowledged != NO_EVENT_NUMBER:
                    raise ConditionFailed(f"segment {self.segment!r} knows a writer that has just been made up")
            case _:
                super()._take_reply(reply)
