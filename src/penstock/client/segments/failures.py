"""Failures as the caller sees them: replies and operating system errors become penstock's own errors."""

import ssl
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from tenacity import AsyncRetrying, Retrying

from penstock.core import errors
from penstock.core.address import Address
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.core.retry import RetryPolicy
from penstock.protocol.segment import (
    HEADER_SIZE,
    WRITER_ID_SIZE,
    AuthCode,
    AuthTokenCheckFailed,
    ConditionalCheckFailed,
    ErrorCode,
    ErrorMessage,
    Failure,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    WrongHost,
)


class Interrupted(Unavailable):
    """Probably temporary: the clients retry, and raise it when their `retry_seconds` are over."""


class WrongProcess(Interrupted):
    """Another process of the cluster has the segment."""

    def __init__(self, segment: str, address: str) -> None:
        super().__init__(f"segment {segment!r} is on another host", f"Connect to {address}.")
        self.address = address


_CODES: dict[int, type[PenstockError]] = {
    ErrorCode.ILLEGAL_ARGUMENT: errors.RequestError,
    ErrorCode.PROTOCOL_ERROR: errors.ProtocolError,
    ErrorCode.QUOTA_REACHED: errors.QuotaReached,
    ErrorCode.DISK_FULL: errors.DiskFull,
    ErrorCode.DAMAGED: errors.Damaged,
    ErrorCode.LIMIT_EXCEEDED: errors.LimitExceeded,
    ErrorCode.CONDITION_FAILED: errors.ConditionFailed,
    ErrorCode.FENCED: errors.Fenced,
}


def error_of(reply: Failure) -> PenstockError:
    """The error that a reply reports."""
    match reply:
        case ErrorMessage():
            return _coded(reply)
        case NoSuchSegment():
            return _with_server_text(errors.NoSuchSegment, reply.stack_trace, f"segment {reply.segment!r} not found")
        case SegmentAlreadyExists():
            return _with_server_text(
                errors.SegmentExists, reply.stack_trace, f"segment {reply.segment!r} exists already"
            )
        case SegmentIsSealed():
            return _with_server_text(errors.SegmentSealed, reply.stack_trace, f"segment {reply.segment!r} is sealed")
        case SegmentIsTruncated():
            text = reply.stack_trace.removesuffix(errors.SegmentTruncated.hint).strip()
            text = text or f"segment {reply.segment!r} starts at {reply.start_offset}"
            return errors.SegmentTruncated(text, reply.start_offset)
    return _rare(reply)


def _rare(reply: Failure) -> PenstockError:
    """Replies that a penstock worker sends only to other clients, or that only other servers send."""
    match reply:
        case ConditionalCheckFailed():
            return errors.ConditionFailed(f"another writer appended before event {reply.event_number}")
        case InvalidEventNumber():
            return _with_server_text(
                errors.ConditionFailed, reply.stack_trace, f"event number {reply.event_number} is refused"
            )
        case WrongHost():
            return WrongProcess(reply.segment, reply.correct_host)
        case OperationUnsupported():
            text = f"the server does not support {reply.operation} {reply.stack_trace}".strip()
            return errors.RequestError(text, "Update the worker, or use what it supports.")
        case AuthTokenCheckFailed():
            forbidden = reply.error_code == AuthCode.UNSPECIFIED
            kind = errors.Forbidden if forbidden else errors.Unauthenticated
            return _with_server_text(kind, reply.stack_trace, "the server refused the client's credentials")
    return errors.RequestError(f"the server refused: {reply}", "Look at the worker's log.")


def _coded(reply: ErrorMessage) -> PenstockError:
    kind = _CODES.get(reply.error_code)
    if kind is None:  # for example a failed store: a restarted worker may succeed
        return Interrupted(f"the worker failed: {reply.message}", "Look at the worker's log.")
    return _with_server_text(kind, reply.message, "the server refused")


def _with_server_text(kind: type[PenstockError], text: str, otherwise: str) -> PenstockError:
    """The server's own text. The server appends the hint to it; here they are separated again."""
    return kind(text.removesuffix(kind.hint).strip() or otherwise)


def unreachable(
    address: Address, error: Exception, *, port: str = "segment", interrupted: type[Interrupted] = Interrupted
) -> Unavailable:
    """The error for one of the operating system or of TLS: `interrupted`, unless a retry cannot help."""
    passing = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if isinstance(error, ssl.SSLError) and not isinstance(error, passing):
        return Unavailable(
            f"no TLS connection to the worker at {address}: {error}",
            f"Check certificates and authorities, and that the worker's {port} port speaks TLS.",
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return interrupted(f"the worker at {address} cannot be reached: {reason}")


def no_answer(address: Address, seconds: float) -> Interrupted:
    return Interrupted(f"the worker at {address} has not answered for {seconds:g} s")


# When to try again.

TIMEOUT_SECONDS = 30.0
"""How long a worker that owes a reply may be silent: a slow disk takes seconds, a dead worker never replies."""

RETRY_SECONDS = 60.0
"""How long to retry before the error is raised: enough for a worker to restart and recover."""

RETRIES = RetryPolicy(first_seconds=0.05, max_seconds=2.0, jitter=1.0)
"""Full jitter: many clients lose a worker at once."""


def retrying(retry_seconds: float, *on: type[Exception]) -> Retrying:
    """An iterable of attempts, each a context manager. Raises the last error when the time is up."""
    return RETRIES.retrying(retry_seconds, *on)


def async_retrying(retry_seconds: float, *on: type[Exception]) -> AsyncRetrying:
    """As `retrying`, with `async for`."""
    return RETRIES.async_retrying(retry_seconds, *on)


# Arguments and results of the clients' methods.


class _Any(Enum):
    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any.ANY
"""As an expected value: any present value."""

Expected: TypeAlias = int | Literal[_Any.ANY] | None
"""The value that an attribute must have to be changed; None: it must not exist."""

Key: TypeAlias = UUID | bytes
"""16 bytes: the name of an attribute, or of a writer."""


def key_bytes(key: Key) -> bytes:
    data = key.bytes if isinstance(key, UUID) else bytes(key)
    if len(data) != WRITER_ID_SIZE:
        raise RequestError(f"{key!r} has {len(data)} bytes", f"Use a uuid.UUID or {WRITER_ID_SIZE} bytes.")
    return data


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The bytes from `start` to `length` can be read; those before `start` were truncated."""

    name: str
    start: int
    length: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`data` is a view that keeps its whole receive buffer in memory: copy what you store for long.

    `at_tail`: there was no more when the worker answered. `end_of_segment`: nor will there be, the segment is sealed.
    """

    data: memoryview
    at_tail: bool
    end_of_segment: bool


class Event(NamedTuple):
    """`offset` is where the event starts in its segment, `end` where the next one starts: where to continue."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + HEADER_SIZE + len(self.data)


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """A change of an attribute of the target, atomic with a merge."""

    key: Key
    value: int
    expected: Expected = ANY
