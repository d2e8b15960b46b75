"""Limits a port's connections, in total and per address, decides which one to close to admit another, and detects dead
peers.
"""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from penstock.core.platforms import keep_alive, limit_unacknowledged


class Guest(Protocol):
    """An open connection."""

    @property
    def idle_since(self) -> float | None:
        """When its peer last stopped waiting for something, on a monotonic clock; None while it waits."""
        ...

    @property
    def is_authenticated(self) -> bool:
        """Whether its peer has authenticated. Unauthenticated connections are evicted first."""
        ...

    def evict(self) -> None:
        """Close it at once, to make room for another connection."""
        ...


class ConnectionLimits:
    """A new connection replaces the one that has been idle longest: one of its own address if that address is over its
    limit, otherwise one of the address with the most connections among those that have an idle one. So idle connections
    cannot lock anyone out, and an address that opens many closes its own first. Unauthenticated peers are evicted
    before authenticated ones. If all connections are busy, the new one is refused. Once a connection has authenticated,
    its principal is limited like an address.
    """

    def __init__(self, total_max: int, address_max: int) -> None:
        self._total_max = total_max
        self._address_max = address_max
        self._groups: dict[Guest, list[_Group]] = {}
        self._guests: defaultdict[_Group, dict[Guest, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._groups)

    def admit(self, guest: Guest, address: str) -> bool:
        """Return False if the connection must be refused."""
        group = _Group("address", address)
        if not self._has_place(group):
            return False
        if len(self) >= self._total_max and not self._evict(self._groups, self._crowd):
            return False
        self._groups[guest] = [group]
        self._guests[group][guest] = None
        return True

    def identify(self, guest: Guest, principal: str) -> bool:
        """Count an admitted connection for the principal it has authenticated as. Return False if it must
        be refused.
        """
        group = _Group("principal", principal)
        if not self._has_place(group):
            return False
        self._groups[guest].append(group)
        self._guests[group][guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """Stop counting the connection: it has closed, or is exempt from now on. Idempotent."""
        for group in self._groups.pop(guest, ()):
            self._guests[group].pop(guest)
            if not self._guests[group]:
                del self._guests[group]

    def _has_place(self, group: "_Group") -> bool:
        guests = self._guests.get(group, {})
        return len(guests) < self._address_max or self._evict(guests)

    def _evict(self, guests: Iterable[Guest], crowd: Callable[[Guest], int] = lambda _: 0) -> bool:
        """Close an idle one, from the largest address or principal; False if none is idle."""
        idle = [(guest, since) for guest in guests if (since := guest.idle_since) is not None]
        if not idle:
            return False
        first, _ = min(idle, key=lambda one: (one[0].is_authenticated, -crowd(one[0]), one[1]))
        self.leave(first)
        first.evict()
        return True

    def _crowd(self, guest: Guest) -> int:
        """The number of connections of its address or of its principal, whichever is larger."""
        return max([len(self._guests[group]) for group in self._groups[guest]])


class _Group(NamedTuple):
    """Guests that are limited together."""

    kind: str
    name: str


def address_of(peer: object) -> str:
    """The address in a transport's `peername`; "" for a local socket, which has none."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


_KEEPALIVE_SECONDS_MAX = 32_767
_TIMEOUT_MS_MAX = (1 << 31) - 1
"""The kernel refuses larger values."""


def find_dead_peers(transport: asyncio.Transport, seconds: int) -> None:
    """Close connections to dead peers, so that a half-open session does not lock out its successor."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    third = min(max(1, seconds // 3), _KEEPALIVE_SECONDS_MAX)
    keep_alive(sock, third, third, 2)
    limit_unacknowledged(sock, min(seconds * 1000, _TIMEOUT_MS_MAX))
