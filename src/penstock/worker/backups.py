"""Backups that are being taken of this worker. While one runs, no chapter that it copies is removed, and retention
removes nothing. A backup is abandoned if its client is silent for a while, and all are if the disk is full.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.coordinator.machine.state import Pipeline
from penstock.core.errors import RequestError, Unavailable
from penstock.core.types import Position
from penstock.protocol.api.backup import FixedPipeline, FixedPosition, Kept
from penstock.store.journal import Durability, Journal

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
"""How long a backup lasts without a renewal: a killed client keeps the worker from freeing space no longer than this.
"""

BACKUPS_MAX = 4
"""At the same time. Each is taken by one administrator, and they would only slow each other down."""

_DURABLE_SECONDS_MAX = 30.0
"""For the journal to become durable: a disk that takes longer is stalled or full."""

_AGAIN = "Start the backup again; earlier backups are unchanged."


@dataclass(slots=True)
class _Backup:
    until: float
    chapters: frozenset[Position] = frozenset()


def fixed_pipelines(pipelines: Mapping[str, Pipeline]) -> list[FixedPipeline]:
    return [
        FixedPipeline(name=name, incarnation=one.incarnation, epoch=one.checkpoint_epoch)
        for name, one in pipelines.items()
    ]


class Backups:
    """Methods are called in the worker's event loop. All but `begin` raise RequestError for a backup that was
    abandoned.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        self._backups: dict[str, _Backup] = {}

    def begin(self, backup: str) -> Kept:
        """From now on retention removes nothing."""
        self._forget_silent()
        if backup not in self._backups and len(self._backups) >= BACKUPS_MAX:
            raise RequestError(f"{BACKUPS_MAX} backups are being taken already", "Wait until one of them is done.")
        self._backups.setdefault(backup, _Backup(self._clock() + KEPT_SECONDS))
        return self.renew(backup)

    def renew(self, backup: str) -> Kept:
        self._kept(backup).until = self._clock() + KEPT_SECONDS
        return Kept(seconds=KEPT_SECONDS)

    async def fix(self, backup: str, durability: Durability, pipelines: Mapping[str, Pipeline]) -> FixedPosition:
        """The state of this moment, once it is durable. Its chapters are kept from now on. A repeated call fixes a
        later position. Raises Unavailable if the disk takes too long.
        """
        journal, kept = self._journal, self._kept(backup)
        fixed = FixedPosition(
            position=journal.end,
            chapters=[*journal.chapters],
            pipelines=fixed_pipelines(pipelines),
        )
        kept.chapters |= frozenset(journal.chapters)
        try:
            async with asyncio.timeout(_DURABLE_SECONDS_MAX):
                await durability.caught_up()
        except TimeoutError:
            raise Unavailable(
                f"the journal has not become durable within {_DURABLE_SECONDS_MAX:.0f} s", "Look at the worker's disk."
            ) from None
        self.renew(backup)
        return fixed

    def end(self, backup: str) -> None:
        """The backup is done; returning means that everything was kept until now."""
        self._kept(backup)
        del self._backups[backup]

    def is_any_kept(self) -> bool:
        self._forget_silent()
        return bool(self._backups)

    def chapters(self) -> frozenset[Position]:
        """Those that must stay."""
        self._forget_silent()
        return frozenset[Position]().union(*(one.chapters for one in self._backups.values()))

    def give_up(self) -> None:
        """The disk is full, and the worker needs what the backups keep."""
        if self._backups:
            log.warning("the disk is full: %d running backups are abandoned", len(self._backups))
            self._backups.clear()

    def _kept(self, backup: str) -> _Backup:
        self._forget_silent()
        if backup not in self._backups:
            raise RequestError(
                f"the worker no longer keeps its data for this backup: the client was silent for "
                f"{KEPT_SECONDS:.0f} s, the worker's disk was full, or the worker was restarted",
                _AGAIN,
            )
        return self._backups[backup]

    def _forget_silent(self) -> None:
        now = self._clock()
        silent = [backup for backup, one in self._backups.items() if one.until <= now]
        for backup in silent:
            log.warning("a backup's client was silent for %.0f s: the backup is abandoned", KEPT_SECONDS)
            del self._backups[backup]
