"""The token that the processes of a cluster use among themselves: `cluster/secret`, create-only. Whoever may read the
bucket may read everything else in it as well.
"""

import secrets
from contextlib import suppress

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists
from penstock.core.errors import Damaged

SECRET = "cluster/secret"  # noqa: S105  the object's name
_TOKEN_BYTES = 32


class _Secret(msgspec.Struct, frozen=True):
    format: int
    token: str


def cluster_secret(bucket: Bucket) -> str:
    """Written by the first process that asks for it. Raises what the store raises, and Damaged."""
    with suppress(NoSuchObject):
        return _token(bucket.get(SECRET).data)
    made = _Secret(1, secrets.token_urlsafe(_TOKEN_BYTES))
    with suppress(ObjectExists):
        bucket.create(SECRET, [msgspec.json.encode(made)])
    return _token(bucket.get(SECRET).data)


def _token(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Secret).token
    except msgspec.MsgspecError:
        raise Damaged(
            f"{SECRET} is not valid", "Stop all workers on the bucket, delete this object, and start them again."
        ) from None
