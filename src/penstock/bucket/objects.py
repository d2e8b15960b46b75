"""What Penstock needs of an object store: whole objects by key, and two conditional writes.

`stores.py` implements it for real stores, `penstock.testing.faulty_bucket` for tests and simulations. All pass one
conformance suite. Every call may be made from any thread.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.core.types import Buffer


class NoSuchObject(LookupError):
    """There is no object of that key."""


class ObjectExists(Exception):
    """A create-only write found an object of that key, which may be an earlier try of the same write."""


class VersionChanged(Exception):
    """A conditional replacement found another version, or no object. The other version may be an earlier try of the
    same replacement.
    """


class StoredObject(NamedTuple):
    data: bytes
    version: str
    """For `replace`."""


class ListedObject(NamedTuple):
    key: str
    size: int
    version: str = ""
    """Another one whenever its content has changed; "" if the store's listing has none."""
    modified_us: int = 0
    """When it was written; 0 if the store's listing does not have it."""


class Bucket(Protocol):
    """The objects below one prefix. A key is a path with slashes, relative to the prefix.

    An object is written as a whole or not at all, is durable when the call returns, and is seen by every later `get`.
    Any call may raise BucketUnavailable (throttled, unreachable): after one, a write may have taken effect, may take
    effect later, or never. BucketForbidden and BucketFull mean that nothing was written. No call retries by itself.
    """

    @property
    def url(self) -> str:
        """For messages and for other processes: it contains no credentials."""
        ...

    def get(self, key: str) -> StoredObject:
        """Raises NoSuchObject."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start`; fewer only at the end of the object. Raises NoSuchObject."""
        ...

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        """A new object; returns its version. Raises ObjectExists if the key is taken: of any number of racing calls,
        one succeeds.
        """
        ...

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Replace this version of the object; returns the new version. Raises VersionChanged."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Objects that do not exist are skipped."""
        ...

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """The objects whose keys start with the prefix, in no particular order. A listing may be stale."""
        ...
