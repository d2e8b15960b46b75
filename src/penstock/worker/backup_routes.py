"""The routes of backups. Only an administrator takes one: it contains everything."""

from typing import Protocol

from penstock.access.principals import Role
from penstock.protocol.api.backup import FixedPosition, KeepForBackup, Kept
from penstock.worker.api_route import ApiRoute, Subject, about
from penstock.worker.backups import Backups
from penstock.worker.routes import post


class BackedUp(Protocol):
    """What the routes need from a worker."""

    backups: Backups

    async def fix_backup(self, backup: str) -> FixedPosition:
        """Raises Damaged if the ledger cannot be read."""
        ...


def routes(worker: BackedUp) -> list[ApiRoute]:
    handlers = _Handlers(worker)
    return about(
        Subject.BACKUP,
        post("/backup/begin", KeepForBackup, handlers.begin, role=Role.ADMIN, is_audited=True),
        post("/backup/renew", KeepForBackup, handlers.renew, role=Role.ADMIN),
        post("/backup/fix", KeepForBackup, handlers.fix, role=Role.ADMIN),
        post("/backup/end", KeepForBackup, handlers.end, role=Role.ADMIN, is_audited=True),
    )


class _Handlers:
    def __init__(self, worker: BackedUp) -> None:
        self._worker = worker

    async def begin(self, _: str, body: KeepForBackup) -> Kept:
        """Begin a backup: the worker keeps everything that it needs for some time."""
        return self._worker.backups.begin(body.backup)

    async def renew(self, _: str, body: KeepForBackup) -> Kept:
        """Have the worker keep it for longer."""
        return self._worker.backups.renew(body.backup)

    async def fix(self, _: str, body: KeepForBackup) -> FixedPosition:
        """Fix the position of the journal up to which the backup goes, and return it."""
        return await self._worker.fix_backup(body.backup)

    async def end(self, _: str, body: KeepForBackup) -> None:
        """End a backup: the worker need not keep anything for it any more."""
        self._worker.backups.end(body.backup)
