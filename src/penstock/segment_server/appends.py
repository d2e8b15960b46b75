"""The appenders of one connection: a writer and its segment, and what was acknowledged to it."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import errors
from penstock.core.types import Buffer
from penstock.protocol.segment import (
    NO_EVENT_NUMBER,
    NO_REQUEST,
    AppendByNumber,
    AppendByOffset,
    AppendSetup,
    AuthTokenCheckFailed,
    ConditionalCheckFailed,
    DataAppended,
    ErrorMessage,
    InvalidEventNumber,
    Message,
    NoSuchSegment,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    SetupAppend,
)
from penstock.protocol.segment.messages import AuthCode, ErrorCode, Failure
from penstock.segment_server.caller import Caller
from penstock.segment_server.settings import Counters
from penstock.store.reader import Appended
from penstock.store.store import SegmentStore

# How errors of the store are expressed in the segment protocol.

_CODES: list[tuple[type[errors.PenstockError], ErrorCode]] = [
    (errors.QuotaReached, ErrorCode.QUOTA_REACHED),
    (errors.DiskFull, ErrorCode.DISK_FULL),
    (errors.Damaged, ErrorCode.DAMAGED),
    (errors.LimitExceeded, ErrorCode.LIMIT_EXCEEDED),
    (errors.ConditionFailed, ErrorCode.CONDITION_FAILED),
    (errors.Fenced, ErrorCode.FENCED),
    (errors.RequestError, ErrorCode.ILLEGAL_ARGUMENT),
]


def failure(error: errors.PenstockError, segment: str, request_id: int, offset: int = -1) -> Failure:
    """The reply that describes what went wrong, and what to do."""
    text = f"{error} {error.hint}".strip()
    match error:
        case errors.NoSuchSegment():
            return NoSuchSegment(segment, text, offset, request_id)
        case errors.SegmentExists():
            return SegmentAlreadyExists(segment, text, request_id)
        case errors.SegmentSealed():
            return SegmentIsSealed(segment, text, offset, request_id)
        case errors.SegmentTruncated():
            return SegmentIsTruncated(segment, error.start, text, offset, request_id)
        case errors.TokenExpired():
            return AuthTokenCheckFailed(text, AuthCode.TOKEN_EXPIRED, request_id)
        case errors.Unauthenticated():
            return AuthTokenCheckFailed(text, AuthCode.TOKEN_CHECK_FAILED, request_id)
        case errors.Forbidden():
            return AuthTokenCheckFailed(text, AuthCode.UNSPECIFIED, request_id)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNSPECIFIED)
    return ErrorMessage(segment, text, code, request_id)


Pieces = tuple[memoryview, ...]
Answer = Callable[[Message, int, int], None]
"""Send this reply once the journal is durable up to that position; so many bytes wait for it."""


@dataclass(slots=True)
class _Appender:
    segment: str
    acknowledged: int
    failed: errors.PenstockError | None = None


class Appending:
    """An append that fails ends its appender until the next SetupAppend: a later append must not be stored in its
    place, or the failed one would count as a duplicate when it is sent again.
    """

    def __init__(
        self, store: SegmentStore, counters: Counters, appenders_max: int, caller: Caller, answer: Answer
    ) -> None:
        self._appenders_max = appenders_max
        self._store = store
        self._caller = caller
        self._counters = counters
        self._answer = answer
        self._appenders: dict[bytes, _Appender] = {}

    def set_up(self, request: SetupAppend, *, by_offset: bool) -> None:
        """Report to the writer what is stored from it; in the document's dialect this also creates the segment."""
        store, segment = self._store, request.segment
        unknown = 0 if by_offset else NO_EVENT_NUMBER
        if by_offset and not store.exists(segment):
            self._caller.check_count(segment)
            store.create(segment, self._caller.attributes_of_new(segment))
        if request.writer_id not in self._appenders and len(self._appenders) >= self._appenders_max:
            raise errors.LimitExceeded(f"{self._appenders_max} writers on one connection (appenders_max)")
        last = store.last_number(segment, request.writer_id)
        if last is None:  # a known writer may resend what it has no acknowledgement for
            store.check_writable(segment)
        acknowledged = unknown if last is None else last
        self._appenders[request.writer_id] = _Appender(segment, acknowledged)
        self._reply(AppendSetup(segment, request.writer_id, acknowledged, request.request_id))

    def append(self, append: AppendByNumber | AppendByOffset) -> None:
        appender = self._appender(append.writer_id)
        request_id = append.request_id if isinstance(append, AppendByNumber) else NO_REQUEST
        try:
            if appender.failed is not None:
                raise appender.failed
            if isinstance(append, AppendByNumber):
                self._by_number(appender, append)
            else:
                self._by_offset(appender, append)
        except errors.PenstockError as error:
            appender.failed = error
            self._counters.refused += 1
            self._reply(failure(error, appender.segment, request_id))

    def _by_number(self, appender: _Appender, append: AppendByNumber) -> None:
        if self._caller.has_quota:
            last = self._store.last_number(appender.segment, append.writer_id)
            if last is None or append.event_number > last:  # what is stored already is acknowledged again
                self._caller.check_room(appender.segment, append.size)
        try:
            appended = self._store.append(
                appender.segment,
                append.pieces,
                writer=append.writer_id,
                number=append.event_number,
                expected_offset=append.expected_offset,
            )
        except errors.ConditionFailed:
            self._reply(ConditionalCheckFailed(append.writer_id, append.event_number, append.request_id))
            return
        previous = min(appender.acknowledged, append.event_number)
        reply = DataAppended(append.writer_id, append.event_number, previous, appended.end, append.request_id)
        self._stored(appender, appended, append.event_number, reply, append.size)

    def _by_offset(self, appender: _Appender, append: AppendByOffset) -> None:
        last = self._store.last_number(appender.segment, append.writer_id) or 0
        if append.offset > last:
            self._gap(appender, append, last)
            return
        # "What lies below the acknowledged offset was stored already and is not stored again."
        rest = _without(append.pieces, last - append.offset)
        if rest and self._caller.has_quota:
            self._caller.check_room(appender.segment, sum(map(len, rest)))
        appended = self._store.append(appender.segment, rest, writer=append.writer_id, number=append.end_offset)
        acknowledged = max(last, append.end_offset)
        reply = DataAppended(append.writer_id, acknowledged)
        self._stored(appender, appended, acknowledged, reply, append.size)

    def _appender(self, writer_id: bytes) -> _Appender:
        appender = self._appenders.get(writer_id)
        if appender is None:
            raise errors.ProtocolError(f"an append of writer {writer_id.hex()} before its SetupAppend")
        return appender

    def _stored(self, appender: _Appender, appended: Appended, number: int, reply: Message, size: int) -> None:
        appender.acknowledged = max(appender.acknowledged, number)
        counters = self._counters
        if appended.stored:
            counters.appends += 1
            counters.appended_bytes += size
        else:
            counters.duplicates += 1
        self._answer(reply, appended.position, size)

    def _gap(self, appender: _Appender, append: AppendByOffset, last: int) -> None:
        text = f"a gap: the block starts at {append.offset}, but only {last} bytes of this writer are stored"
        appender.failed = errors.ConditionFailed(text)
        self._counters.refused += 1
        self._reply(InvalidEventNumber(append.writer_id, text, append.offset))

    def _reply(self, message: Message) -> None:
        self._answer(message, self._store.journal.end, 0)


def _without(pieces: Pieces, skip: int) -> list[Buffer]:
    """The pieces without their first `skip` bytes."""
    rest: list[Buffer] = []
    for piece in pieces:
        if skip < len(piece):
            rest.append(piece[skip:])
        skip = max(0, skip - len(piece))
    return rest
