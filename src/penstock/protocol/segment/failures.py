"""Errors, as replies. The document's dialect has no ConditionalCheckFailed, and the others without their request ids.

`stack_trace` is the public protocol's name for text that is meant for people.
"""

from dataclasses import dataclass

from penstock.protocol.segment.messages import NO_REQUEST, Failure


@dataclass(frozen=True, slots=True)
class ConditionalCheckFailed(Failure):
    """The segment did not end at the expected offset; nothing was appended."""

    writer_id: bytes
    event_number: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class WrongHost(Failure):
    segment: str
    correct_host: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentIsSealed(Failure):
    """`offset`: where the segment ends."""

    segment: str
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentAlreadyExists(Failure):
    segment: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class NoSuchSegment(Failure):
    """`offset`: the one that was asked for."""

    segment: str
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class InvalidEventNumber(Failure):
    writer_id: bytes
    stack_trace: str = ""
    event_number: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentIsTruncated(Failure):
    """`offset` was asked for, `start_offset` is the first one still there."""

    segment: str
    start_offset: int
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class OperationUnsupported(Failure):
    operation: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class AuthTokenCheckFailed(Failure):
    """`error_code`: -1 unspecified, 0 the check failed, 1 the token has expired."""

    stack_trace: str = ""
    error_code: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ErrorMessage(Failure):
    """Any other error. `error_code`: -1 unspecified, 0 an illegal argument."""

    segment: str
    message: str
    error_code: int = -1
    request_id: int = NO_REQUEST
