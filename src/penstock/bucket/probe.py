"""Whether a store does what the journal depends on: conditional writes, reads of what was just written, deletions.

Stores that ignore a condition answer as if all were well: nothing but a try shows it.
"""

import time
from contextlib import suppress
from uuid import uuid4

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.core.errors import BucketFailed, BucketForbidden, BucketUnsuitable

PREFIX = "cluster/probe-"

LEFT_BEHIND_SECONDS = 3600
"""A probe takes seconds. An object that is older was left by a process that died."""


def probe(bucket: Bucket) -> None:
    """Eight requests on an object of its own, which is deleted afterwards. Raises BucketUnsuitable, or what the store
    raises: after BucketUnavailable nothing is known, and the probe can be run again.
    """
    key = f"{PREFIX}{int(time.time())}-{uuid4().hex}"
    try:
        _check_conditions(bucket, key)
        left_behind = [each.key for each in bucket.list(PREFIX) if _is_left_behind(each.key)]
    except BaseException:
        with suppress(BucketFailed):
            bucket.delete([key])
        raise
    try:
        bucket.delete([key])
    except BucketForbidden as error:
        raise BucketForbidden(f"objects must not be deleted: {error}") from error
    except BucketUnsuitable as error:
        raise BucketUnsuitable(f"objects cannot be deleted: {error}") from error
    bucket.delete(left_behind)


def _check_conditions(bucket: Bucket, key: str) -> None:
    first, second, stale = b"first", b"second", b"stale"
    try:
        version = bucket.create(key, [first])
    except ObjectExists:
        raise _unsuitable(bucket, "refuses to create an object that does not exist") from None
    with suppress(ObjectExists):
        bucket.create(key, [second])
        raise _unsuitable(bucket, "overwrites an object that was to be created only (If-None-Match is ignored)")
    _expect(bucket, key, first)
    try:
        bucket.replace(key, second, version)
    except VersionChanged:
        raise _unsuitable(bucket, "refuses to replace an object that has not changed") from None
    with suppress(VersionChanged):
        bucket.replace(key, stale, version)
        raise _unsuitable(bucket, "replaces an object that has changed in the meantime (If-Match is ignored)")
    _expect(bucket, key, second)


def _expect(bucket: Bucket, key: str, data: bytes) -> None:
    try:
        found = bucket.get(key).data
    except NoSuchObject:
        raise _unsuitable(bucket, "does not find an object that was just written") from None
    if found != data:
        raise _unsuitable(bucket, "returns something other than what was just written")


def _unsuitable(bucket: Bucket, what: str) -> BucketUnsuitable:
    return BucketUnsuitable(f"{bucket.url}: the store {what}, so two workers could damage the journal")


def _is_left_behind(key: str) -> bool:
    started = key.removeprefix(PREFIX).partition("-")[0]
    return started.isdecimal() and int(started) < time.time() - LEFT_BEHIND_SECONDS
