"""The client of a worker's backup routes."""

from penstock.client.coordinator.connection import WorkerClient
from penstock.protocol.api.backup import FixedPosition, KeepForBackup, Kept
from penstock.protocol.api.codec import Done

_FIX_SECONDS_MAX = 30.0
"""For what the worker has received to become durable."""


class BackupClient(WorkerClient):
    """`backup` is an id that the caller chooses."""

    def begin(self, backup: str) -> Kept:
        return self._post("/backup/begin", KeepForBackup(backup=backup), Kept)

    def renew(self, backup: str) -> Kept:
        return self._post("/backup/renew", KeepForBackup(backup=backup), Kept)

    def fix(self, backup: str) -> FixedPosition:
        return self._post("/backup/fix", KeepForBackup(backup=backup), FixedPosition, _FIX_SECONDS_MAX)

    def end(self, backup: str) -> None:
        self._post("/backup/end", KeepForBackup(backup=backup), Done)
