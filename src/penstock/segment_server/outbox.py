"""Replies leave in the order of their requests, each when it may."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.core.types import Buffer


class Slot:
    """The place of one reply; empty until it is known and may be sent."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: Sequence[Buffer] | None = None


class Outbox:
    """One connection's replies. A slot that is filled goes out when all before it have gone."""

    def __init__(self, send: Callable[[Iterable[Buffer]], None]) -> None:
        self._send = send
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def reserve(self) -> Slot:
        slot = Slot()
        self._slots.append(slot)
        return slot

    def give_up(self, slot: Slot) -> None:
        """Let the replies behind it pass; its own will be sent when it is there."""
        self._slots.remove(slot)
        self.flush()

    def flush(self) -> None:
        ready: list[Buffer] = []
        while self._slots and self._slots[0].data is not None:
            ready.extend(self._slots.popleft().data or ())
        if ready:
            self._send(ready)
