"""How many connections a port accepts, in total and from one address, and whom it closes to let another one in."""

from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol


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
    many, otherwise of the address with most. So connections that do nothing lock nobody out, and an address that opens
    many closes its own first. Strangers go before peers that have proved who they are. Where all are busy, the newcomer
    is refused.
    """

    def __init__(self, total_max: int, address_max: int) -> None:
        self._total_max = total_max
        self._address_max = address_max
        self._addresses: dict[Guest, str] = {}
        self._guests: defaultdict[str, dict[Guest, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, guest: Guest, address: str) -> bool:
        """False: refuse it."""
        if len(self._guests.get(address, ())) >= self._address_max and not self._evict(self._guests[address]):
            return False
        if len(self) >= self._total_max and not self._evict(self._largest_address()):
            return False
        self._addresses[guest] = address
        self._guests[address][guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """Closed, or no longer limited; may be called again."""
        address = self._addresses.pop(guest, None)
        if address is not None:
            self._guests[address].pop(guest)
            if not self._guests[address]:
                del self._guests[address]

    def evict_oldest(self, besides: Guest) -> bool:
        """Close the one that has been idle for longest, whatever its address; False if there is none."""
        return self._evict(guest for guest in self._addresses if guest is not besides)

    def _largest_address(self) -> dict[Guest, None]:
        return max(self._guests.values(), key=len, default={})

    def _evict(self, guests: Iterable[Guest]) -> bool:
        idle = [(guest.is_authenticated, since, guest) for guest in guests if (since := guest.idle_since) is not None]
        if not idle:
            return False
        _, _, first = min(idle, key=itemgetter(0, 1))
        self.leave(first)
        first.evict()
        return True


def address_of(peer: object) -> str:
    """The address in what a transport calls `peername`; "" for a local socket, which has none."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
