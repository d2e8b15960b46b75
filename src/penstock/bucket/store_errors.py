"""What an object store's error means for the caller.

obstore has a few exception types and puts everything else into their text: the HTTP status and the store's own error
code are found there. Messages name the store's answer, never the request: its address may contain a signature.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.bucket.objects import NoSuchObject, ObjectExists, VersionChanged
from penstock.core.errors import (
    BucketFailed,
    BucketForbidden,
    BucketFull,
    BucketThrottled,
    BucketTimedOut,
    BucketUnavailable,
    BucketUnreachable,
    BucketUnsuitable,
)

_STATUS = re.compile(r"status code: (\d{3}) ?([^:<{\n]*)")
_CODE = re.compile(r"<Code>\s*([^<\s]+)\s*</Code>")
_CODE_OF_ONE = re.compile(r"request failed for key .*: (.*) \(code: (\w+)\)")
"""In the answer to a deletion of many objects, whose status is 200."""

_MESSAGE = re.compile(r"<Message>\s*([^<]{1,200})")
_CAUSE = re.compile(
    r"kind: (?:Uncategorized|Other|InvalidData),\s+error: \"([^\"]{1,200})\"|message: \"([^\"]{1,200})\""
)
_NO_ANSWER = "no answer in time"
_NO_CONNECTION = "no connection in time"
_METADATA_SERVICES = ("//169.254.169.254", "//169.254.170.2", "//metadata.google.internal", "/latest/api/token")
"""A machine in a cloud gets its credentials there. Elsewhere nothing answers, which means that there are none."""

_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
"""What to do on a machine that has none."""

_NO_SUCH_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_NO_SUCH_OBJECT = frozenset({"NoSuchKey", "BlobNotFound"})
"""S3's and Google's, and Azure's. A 404 without one is a proxy's, or that of another server: nothing was looked for."""
_CODES: Mapping[type[BucketFailed], str] = {
    BucketThrottled: "SlowDown SlowDownRead SlowDownWrite ServerBusy Throttling ThrottlingException "
    "RequestLimitExceeded TooManyRequests TooManyRequestsException rateLimitExceeded",
    BucketUnreachable: "RequestTimeout InternalError ConditionalRequestConflict OperationAborted IncompleteBody "
    "BadDigest InvalidDigest XAmzContentSHA256Mismatch XAmzContentChecksumMismatch Md5Mismatch Crc64Mismatch",
    BucketFull: "QuotaExceeded QuotaExceededException XMinioAdminBucketQuotaExceeded XMinioStorageFull "
    "InsufficientStorage InsufficientCapacity NoSpaceLeft",
    BucketForbidden: "AccessDenied ExpiredToken InvalidToken TokenRefreshRequired InvalidAccessKeyId "
    "SignatureDoesNotMatch RequestTimeTooSkewed AuthorizationHeaderMalformed",
    BucketUnsuitable: "NotImplemented",
}
"""S3's, and those of stores that speak its protocol, of Google and of Azure. ConditionalRequestConflict and
OperationAborted mean that another request on the same key is under way: unlike the other errors with status 409, not
that the key is taken. A body that has arrived incomplete or changed is sent again.
"""
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_BY_STATUS: Mapping[int, type[BucketFailed]] = {
    401: BucketForbidden,
    403: BucketForbidden,
    408: BucketUnreachable,
    429: BucketThrottled,
    501: BucketUnsuitable,
    507: BucketFull,
}
_BAD_REQUEST, _NOT_FOUND = 400, 404
_SERVER_ERRORS = range(500, 600)


class StoreAnswer(NamedTuple):
    """What the store has answered, if it has."""

    status: int | None
    reason: str
    code: str

    @staticmethod
    def of(text: str) -> "StoreAnswer":
        status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
        if (one := _CODE_OF_ONE.search(text)) is not None:
            return StoreAnswer(None, f"the store answered {one[2]}: {one[1]}", one[2])
        if status is None:
            return StoreAnswer(None, _cause(text), "")
        words = [status[1], status[2].strip()]
        if code:
            words.append(f"({code[1]}: {message[1].strip()})" if message else f"({code[1]})")
        return StoreAnswer(
            int(status[1]), "the store answered " + " ".join(filter(None, words)), code[1] if code else ""
        )


def _cause(text: str) -> str:
    """Why there was no answer, in a few words."""
    if "kind: Timeout" in text or "TimedOut" in text:
        return _NO_CONNECTION if "ConnectError(" in text else _NO_ANSWER
    if causes := _CAUSE.findall(text):
        return "no connection: " + "".join(causes[-1])
    if "IncompleteMessage" in text or "kind: Interrupted" in text or "IncompleteBody" in text:
        return "the connection ended before the answer was complete"
    return text.partition("\n")[0].rpartition(" - ")[2]


def means_beyond_the_end(error: Exception) -> bool:
    """Whether a range was refused because it starts at the end of the object or after it."""
    text = str(error)
    return "StartTooLarge" in text or StoreAnswer.of(text).status == 416


def means_absent(error: Exception) -> bool:
    """Whether it is about an object, in a bucket that exists."""
    answer = StoreAnswer.of(str(error))
    return isinstance(error, FileNotFoundError) and (answer.status is None or answer.code in _NO_SUCH_OBJECT)


def translate(error: Exception, url: str, key: str, has_answered: bool) -> Exception:
    """The error to raise instead. Whatever is not known for certain is BucketUnavailable: a write may have had effect.

    `has_answered`: whether the store has carried out a request before.
    """
    text = str(error)
    answer = StoreAnswer.of(text)
    if any(each in text for each in _METADATA_SERVICES):
        return _no_credentials(url, has_answered)
    if answer.code in _NO_SUCH_BUCKET:
        return BucketForbidden(
            f"{url}: the bucket does not exist", "Create it, or check its name, region and endpoint."
        )
    if answer.code in _BY_CODE:
        return _BY_CODE[answer.code](f"{url}: {answer.reason}")
    if answer.status == _NOT_FOUND and answer.code not in _NO_SUCH_OBJECT:
        return BucketForbidden(
            f"{url}: {answer.reason}, and does not say what is missing",
            "Check the bucket's name and the endpoint, and what is in between.",
        )
    if (condition := _by_condition(error, key)) is not None:
        return condition
    if answer.status is not None:
        return _by_status(answer, url)
    return _without_answer(text, answer, url)


def _by_condition(error: Exception, key: str) -> Exception | None:
    match type(error).__name__:
        case "AlreadyExistsError":
            return ObjectExists(key)
        case "PreconditionError":
            return VersionChanged(key)
        case "FileNotFoundError":
            return NoSuchObject(key)
    return None


def _by_status(answer: StoreAnswer, url: str) -> BucketFailed:
    assert answer.status is not None
    message = f"{url}: {answer.reason}"
    if (found := _BY_STATUS.get(answer.status)) is not None:
        return found(message)
    if answer.status in _SERVER_ERRORS or (answer.status == _BAD_REQUEST and not answer.code):
        return BucketUnreachable(message)
    return BucketFailed(message, "Check the address of the store and its settings.")


def _without_answer(text: str, answer: StoreAnswer, url: str) -> BucketFailed:
    if "ETag Header missing" in text:
        return BucketUnsuitable(f"{url}: the store sends no ETag, so objects cannot be compared and set")
    if "redirect without LOCATION" in text:
        return BucketForbidden(f"{url}: the bucket is in another region", "Set AWS_REGION.")
    if "BadScheme" in text:
        return BucketForbidden(
            f"{url}: the endpoint uses http, which sends data in clear text", "Use https, or set AWS_ALLOW_HTTP=true."
        )
    return (BucketTimedOut if answer.reason == _NO_ANSWER else BucketUnreachable)(f"{url}: {answer.reason}")


def _no_credentials(url: str, has_answered: bool) -> BucketFailed:
    if has_answered:
        return BucketUnavailable(f"{url}: the credentials could not be renewed: the metadata service does not answer")
    return BucketForbidden(
        f"{url}: no credentials were found, and this machine has no metadata service that provides them",
        _CREDENTIALS[url.partition(":")[0]],
    )
