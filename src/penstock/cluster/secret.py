"""Two tokens that a cluster has from its first process on: `cluster/secret`. One is for the processes among themselves,
and never changes; the other is the owner's, and the same on all machines. Whoever may read the bucket may read
everything else in it as well.
"""

import secrets
from contextlib import suppress

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists
from penstock.core.errors import Damaged

SECRET = "cluster/secret"  # noqa: S105  the object's name
_TOKEN_BYTES = 32


class Secret(msgspec.Struct, frozen=True):
    format: int
    token: str
    """Of the processes."""
    owner: str


def cluster_secret(bucket: Bucket) -> Secret:
    """Written by the first process that asks for it. Raises what the store raises, and Damaged."""
    with suppress(NoSuchObject):
        return _decoded(bucket.get(SECRET).data)
    made = Secret(1, secrets.token_urlsafe(_TOKEN_BYTES), secrets.token_urlsafe(_TOKEN_BYTES))
    with suppress(ObjectExists):
        bucket.create(SECRET, [msgspec.json.encode(made)])
    return _decoded(bucket.get(SECRET).data)


def replace_owner(bucket: Bucket, owner: str) -> None:
    """The owner's token is this one from now on. Raises what the store raises, VersionChanged if another process has
    replaced it at the same time, and Damaged.
    """
    cluster_secret(bucket)
    found = bucket.get(SECRET)
    made = msgspec.structs.replace(_decoded(found.data), owner=owner)
    bucket.replace(SECRET, msgspec.json.encode(made), found.version)


def _decoded(data: bytes) -> Secret:
    try:
        return msgspec.json.decode(data, type=Secret)
    except msgspec.MsgspecError:
        raise Damaged(
            f"{SECRET} is not valid", "Stop all workers on the bucket, delete this object, and start them again."
        ) from None
