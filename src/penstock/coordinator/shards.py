"""What the coordinator of a shard needs to know about the others: where sources are placed, and who serves them.

A worker without a cluster has no directory: every source is its own.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class ShardAddress(NamedTuple):
    """Where a shard is served: `host:port` of the process's HTTP port (`https://…` with TLS) and of its segment
    port.
    """

    http: str
    segment: str


class ShardDirectory(Protocol):
    """Called in the worker's event loop; must not block it."""

    @property
    def shard(self) -> int:
        """The number of the shard that this process serves."""
        ...

    @property
    def secret(self) -> str:
        """The token that shard processes use among themselves."""
        ...

    async def shard_of(self, source: str) -> int:
        """The shard of a source, as `Source.parse` takes it; its own for an output of one of its pipelines. A source
        without a place gets one. The reply never changes. Raises Unavailable if the bucket does not answer.
        """
        ...

    async def partitions(self, source: str) -> Sequence[int]:
        """The shards of the source's partitions, in their order: one for most. Like `shard_of` otherwise."""
        ...

    async def find(self, shard: int) -> ShardAddress | None:
        """Where the shard is served now; None: no worker serves it, as far as the bucket knows. Called again whenever a
        process at the last address did not answer as the shard's owner, so it may be cached for a moment only.
        """
        ...


class ShardWire(Protocol):
    """Sends requests to the process that serves another shard. One that moves is found again."""

    async def ask(self, shard: int, path: str, request: msgspec.Struct, reply: type[T], wait_seconds: float = 0.0) -> T:
        """The reply, which is durable there. `wait_seconds`: how long the other side was asked to wait. Raises
        Unavailable if nothing answers for the shard, and what the other side refuses the request with.
        """
        ...

    async def close(self) -> None: ...
