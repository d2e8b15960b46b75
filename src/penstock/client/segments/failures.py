"""What a failure means for the caller: replies and operating system errors as penstock's own errors."""

import ssl

from penstock.client.segments.address import Address
from penstock.core import errors
from penstock.core.errors import PenstockError, Unavailable
from penstock.protocol.segment import (
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
    """It may be over in a moment: the clients try again, and raise it when their `retry_seconds` are over."""


_CODES: dict[int, type[PenstockError]] = {
    ErrorCode.ILLEGAL_ARGUMENT: errors.RequestError,
    ErrorCode.PROTOCOL_ERROR: errors.ProtocolError,
    ErrorCode.QUOTA_REACHED: errors.QuotaReached,
    ErrorCode.DISK_FULL: errors.DiskFull,
    ErrorCode.DAMAGED: errors.Damaged,
    ErrorCode.LIMIT_EXCEEDED: errors.LimitExceeded,
    ErrorCode.CONDITION_FAILED: errors.ConditionFailed,
}


def error_of(reply: Failure) -> PenstockError:
    """The error that a reply tells of."""
    match reply:
        case ErrorMessage():
            return _coded(reply)
        case NoSuchSegment():
            return _said(errors.NoSuchSegment, reply.stack_trace, f"there is no segment {reply.segment!r}")
        case SegmentAlreadyExists():
            return _said(errors.SegmentExists, reply.stack_trace, f"segment {reply.segment!r} exists already")
        case SegmentIsSealed():
            return _said(errors.SegmentSealed, reply.stack_trace, f"segment {reply.segment!r} is sealed")
        case SegmentIsTruncated():
            text = reply.stack_trace.removesuffix(errors.SegmentTruncated.hint).strip()
            text = text or f"segment {reply.segment!r} begins at {reply.start_offset}"
            return errors.SegmentTruncated(text, reply.start_offset)
    return _rare(reply)


def _rare(reply: Failure) -> PenstockError:
    """Replies that a penstock worker gives to other clients only, or that come from another server."""
    match reply:
        case ConditionalCheckFailed():
            return errors.ConditionFailed(f"the append of event {reply.event_number} lost its race")
        case InvalidEventNumber():
            return _said(errors.ConditionFailed, reply.stack_trace, f"event number {reply.event_number} is refused")
        case WrongHost():
            return Unavailable(f"{reply.segment!r} is elsewhere", f"Connect to {reply.correct_host}.")
        case OperationUnsupported():
            text = f"the server does not support {reply.operation} {reply.stack_trace}".strip()
            return errors.RequestError(text, "Update the worker, or use what it supports.")
        case AuthTokenCheckFailed():
            return errors.RequestError("the server does not let us in", "Check the server's authorization settings.")
    return errors.RequestError(f"the server refused: {reply}", "Look at the worker's log.")


def _coded(reply: ErrorMessage) -> PenstockError:
    kind = _CODES.get(reply.error_code)
    if kind is None:  # among them a store that has failed: a restarted worker may do it
        return Interrupted(f"the worker failed: {reply.message}", "Look at the worker's log.")
    return _said(kind, reply.message, "the server refused")


def _said(kind: type[PenstockError], text: str, otherwise: str) -> PenstockError:
    """The server's own words. It puts the hint behind them, where it belongs into the error."""
    return kind(text.removesuffix(kind.hint).strip() or otherwise)


def unreachable(address: Address, error: Exception) -> Unavailable:
    """What an error of the operating system or of TLS means. Interrupted, unless trying again cannot help."""
    passing = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if isinstance(error, ssl.SSLError) and not isinstance(error, passing):
        return Unavailable(
            f"no TLS connection to the worker at {address}: {error}",
            "Check certificates and authorities, and that the worker's segment port speaks TLS.",
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Interrupted(f"the worker at {address} cannot be reached: {reason}")


def no_answer(address: Address, seconds: float) -> Interrupted:
    return Interrupted(f"the worker at {address} has not answered for {seconds:g} s")
