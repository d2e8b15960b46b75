"""How an error of the store is said in the segment protocol."""

from penstock.core import errors
from penstock.protocol.segment import (
    ErrorMessage,
    NoSuchSegment,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
)
from penstock.protocol.segment.codes import ErrorCode
from penstock.protocol.segment.messages import Failure

_CODES: list[tuple[type[errors.PenstockError], ErrorCode]] = [
    (errors.QuotaReached, ErrorCode.QUOTA_REACHED),
    (errors.DiskFull, ErrorCode.DISK_FULL),
    (errors.Damaged, ErrorCode.DAMAGED),
    (errors.LimitExceeded, ErrorCode.LIMIT_EXCEEDED),
    (errors.ConditionFailed, ErrorCode.CONDITION_FAILED),
    (errors.RequestError, ErrorCode.ILLEGAL_ARGUMENT),
]


def failure(error: errors.PenstockError, segment: str, request_id: int, offset: int = -1) -> Failure:
    """The reply that tells the client what went wrong, and what to do."""
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
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNSPECIFIED)
    return ErrorMessage(segment, text, code, request_id)
