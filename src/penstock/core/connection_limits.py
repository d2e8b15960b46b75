"""How many connections a port accepts, in total and from one address, and whom it closes to let another one in."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol


class Guest(Protocol):
    """An open connection."""

    @property
    def idle_since(self) -> float | None:
        """Since when its peer has had nothing to wait for, on a monotonic clock; None while it has."""
        ...

    @property
    def is_authenticated(self) -> bool:
        """Whether its peer has proved who it is, and keeps its place while there is a stranger to close instead."""
        ...

    def evict(self) -> None:
        """Close it at once: another one needs its place."""
        ...


class ConnectionLimits:
    """A newcomer takes the place of the connection that has been idle for longest: of its own address if that has too
    many, otherwise of the address with most that has an idle one. So connections that do nothing lock nobody out, and
    an address that opens many closes its own first. Strangers go before peers that have proved who they are. Where all
    are busy, the newcomer is refused. A principal counts as an address does, once a connection has proved to be its.
    """

    def __init__(self, total_max: int, address_max: int) -> None:
        self._total_max = total_max
        self._address_max = address_max
        self._groups: dict[Guest, list[_Group]] = {}
        self._guests: defaultdict[_Group, dict[Guest, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._groups)

    def admit(self, guest: Guest, address: str) -> bool:
        """False: refuse it."""
        group = _Group("address", address)
        if not self._has_place(group):
            return False
        if len(self) >= self._total_max and not self._evict(self._groups, self._crowd):
            return False
        self._groups[guest] = [group]
        self._guests[group][guest] = None
        return True

    def identify(self, guest: Guest, principal: str) -> bool:
        """One that was admitted has proved to be this principal's. False: refuse it."""
        group = _Group("principal", principal)
        if not self._has_place(group):
            return False
        self._groups[guest].append(group)
        self._guests[group][guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """Closed, or no longer limited; may be called again."""
        for group in self._groups.pop(guest, ()):
            self._guests[group].pop(guest)
            if not self._guests[group]:
                del self._guests[group]

    def _has_place(self, group: "_Group") -> bool:
        guests = self._guests.get(group, {})
        return len(guests) < self._address_max or self._evict(guests)

    def _evict(self, guests: Iterable[Guest], crowd: Callable[[Guest], int] = lambda _: 0) -> bool:
        """Close one of these, of the largest crowd; False if none is idle."""
        idle = [(guest, since) for guest in guests if (since := guest.idle_since) is not None]
        if not idle:
            return False
        first, _ = min(idle, key=lambda one: (one[0].is_authenticated, -crowd(one[0]), one[1]))
        self.leave(first)
        first.evict()
        return True

    def _crowd(self, guest: Guest) -> int:
        """How many there are of its address or its principal, whichever has more."""
        return max([len(self._guests[group]) for group in self._groups[guest]])


class _Group(NamedTuple):
    """Guests that are limited together."""

    kind: str
    name: str


def address_of(peer: object) -> str:
    """The address in what a transport calls `peername`; "" for a local socket, which has none."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
