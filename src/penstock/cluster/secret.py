"""Two tokens that a cluster has from its first process on: `cluster/secret`. One is for the processes among themselves,
and never changes; the other is the owner's, and the same on all machines. Whoever may read the bucket may read
everything else in it as well.
"""

import secrets
from contextlib import suppress

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.core.errors import Damaged, Unavailable

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


_TRIES = 3
"""To replace the owner's token, while others do the same: each try is a few milliseconds after a person's command."""


def replace_owner(bucket: Bucket, owner: str) -> None:
    """The owner's token is this one from now on. Raises what the store raises, Damaged, and Unavailable if others
    replace it again and again at the same time.
    """
    cluster_secret(bucket)
    for _ in range(_TRIES):
        found = bucket.get(SECRET)
        made = msgspec.structs.replace(_decoded(found.data), owner=owner)
        if found.data == (data := msgspec.json.encode(made)):  # also by an earlier try, whose answer was lost
            return
        with suppress(VersionChanged):
            bucket.replace(SECRET, data, found.version)
            return
    raise Unavailable("other machines replace the owner's token at the same time", "Try again.")


def _decoded(data: bytes) -> Secret:
    try:
        return msgspec.json.decode(data, type=Secret)
    except msgspec.MsgspecError:
        raise Damaged(
            f"{SECRET} is not valid", "Stop all workers on the bucket, delete this object, and start them again."
        ) from None
