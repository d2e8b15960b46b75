"""Keeps the state: a command is applied and journalled in one step; what follows from it waits until it is durable."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from penstock.coordinator.ledger.ledger import Ledger
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Command
from penstock.coordinator.machine.effects import Effect, Merges
from penstock.coordinator.machine.state import State
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.types import Position
from penstock.store.durability import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)


class Keeper:
    """Belongs to the thread that owns the store. `perform` gets the effects of each command once it is durable."""

    def __init__(self, store: SegmentStore, durability: Durability, perform: Callable[[Effect], None]) -> None:
        self._journal = store.journal
        self._durability = durability
        self._perform_one = perform
        self._ledger = Ledger(store)
        self.state: State = self._ledger.recover()
        self._position = Position(store.journal.end)
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped = False

    def commit(self, command: Command) -> None:
        """Raises what `apply` does, or DiskFull or StoreFailed, with nothing changed. Answer it after `settled`."""
        state, effects = apply(self.state, command)
        if state is not self.state:
            pairs = tuple(pair for effect in effects if isinstance(effect, Merges) for pair in effect.pairs)
            self._position = self._ledger.merge(command, pairs) if pairs else self._ledger.append(command)
            self.state = state
            self._compact()
        if effects:
            self._durability.after(self._position, partial(self._perform, effects))

    def _compact(self) -> None:
        try:
            self._ledger.compact_if_due(self.state)
        except PenstockError as error:  # the command stands; the ledger only goes on growing
            log.warning("the ledger is not written anew: %s", error)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if not isinstance(effect, Merges):
                self._perform_one(effect)

    def cover(self) -> None:
        """Let `settled` wait for everything that the store was told until now, not for commands alone."""
        self._position = self._journal.end

    async def settled(self) -> None:
        """Return when the state, as it is now, is durable. Raises StoreFailed, or Unavailable when the worker stops."""
        self._journal.check()
        if self._position <= self._journal.durable:
            return
        if self._stopped:
            raise stopping()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        self._durability.after(self._position, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            self._waiting.discard(done)

    def stop(self) -> None:
        """Whoever waits is told that there will be no answer."""
        self._stopped = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(stopping())


def stopping() -> Unavailable:
    return Unavailable("the worker stops", "Try again when it is there again.")
