"""The client raises the error that the server reports."""

import pytest

from penstock.client.segments.failures import Interrupted, error_of
from penstock.core import errors
from penstock.protocol.segment import (
    AuthTokenCheckFailed,
    ConditionalCheckFailed,
    ErrorMessage,
    Failure,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    WrongHost,
)
from penstock.segment_server.appends import failure

SAME = [
    errors.NoSuchSegment("it is not there"),
    errors.SegmentExists("it is there"),
    errors.SegmentSealed("it is sealed"),
    errors.SegmentTruncated("it begins later", start=12),
    errors.ConditionFailed("lost the race"),
    errors.LimitExceeded("too long"),
    errors.QuotaReached("full"),
    errors.DiskFull("very full"),
    errors.Damaged("checksum of file x"),
]


@pytest.mark.parametrize("error", SAME, ids=lambda error: type(error).__name__)
def test_an_error_of_the_store_arrives_as_itself(error: errors.PenstockError) -> None:
    arrived = error_of(failure(error, "s", 1))
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.hint) == (str(error), error.hint)
    assert getattr(arrived, "start", None) == getattr(error, "start", None)


def test_a_failed_store_is_worth_another_try_when_the_worker_is_back() -> None:
    arrived = error_of(failure(errors.StoreFailed("fsync"), "s", 1))
    assert isinstance(arrived, Interrupted)
    assert "fsync" in str(arrived)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (NoSuchSegment("s"), errors.NoSuchSegment),
        (ErrorMessage("s", "bad", 0), errors.RequestError),
        (ErrorMessage("s", "bad", 12345), errors.Unavailable),
        (ConditionalCheckFailed(bytes(16), 4), errors.ConditionFailed),
        (InvalidEventNumber(bytes(16), "", 4), errors.ConditionFailed),
        (WrongHost("s", "other:1"), errors.Unavailable),
        (OperationUnsupported("merge"), errors.RequestError),
        (AuthTokenCheckFailed("", 0), errors.Unauthenticated),
        (AuthTokenCheckFailed("", 1), errors.Unauthenticated),
        (AuthTokenCheckFailed("", -1), errors.Forbidden),
    ],
)
def test_other_replies_have_a_message(reply: Failure, kind: type[errors.PenstockError]) -> None:
    arrived = error_of(reply)
    assert isinstance(arrived, kind)
    assert str(arrived)
