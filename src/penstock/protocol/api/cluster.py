"""The messages about a cluster: who its members are, which of them owns what, and moving it."""

from typing import Annotated

import msgspec

from penstock.protocol.api.codec import Request

WorkerName = Annotated[str, msgspec.Meta(max_length=200)]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    addresses: dict[str, str]
    """By port: connector, segment, http."""
    shards: list[int]
    """Those that it owns; a standby has none."""
    quiet_seconds: float
    """For how long the worker that replies has seen no renewal of it."""
    is_drained: bool = False
    """It takes over only if no other worker does."""
    wants: int | None = None
    """A host's: how many shards it adds to the cluster. None: a process of a single shard."""
    host: str = ""
    """A shard process's: the host that has started it."""
    waits_for: list[int] = []
    """The shards that it waits for, as a standby."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    owner: str
    term: int
    successor: str = ""
    """The worker for which the owner has given it up, and which has not taken over yet."""
    host: str = ""
    """The host of the owner."""
    assigned: str = ""
    """The host that is to serve it. While it is another one than `host`, the shard moves, or waits for somebody."""
    addresses: dict[str, str] = {}
    """Of the owner, by port."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The last move of a shard away from the worker that replies."""

    shard: int
    to: str
    step: str
    is_over: bool
    sessions: int
    """Sources that are still connected here."""
    failure: str = ""
    """Why the shard has not moved."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """The bucket."""
    worker: str
    """The worker that replies."""
    workers: list[Member]
    shards: list[Place]
    move: Move | None = None
    leader: str = ""
    """The host that decides which host serves which shard; "" without hosts."""
    revision: int = 0
    """Of the assignment."""
    problems: list[str] = []
    """Of its members together, with what to do."""


class MoveShard(Request, frozen=True, kw_only=True):
    """Have the host serve this shard."""

    shard: int
    to: WorkerName


class Drain(Request, frozen=True, kw_only=True):
    """Move the shard away from this worker; to any other one if `to` is empty."""

    worker: WorkerName
    to: WorkerName = ""
