"""One consistent state of a data directory that stays readable while it is copied: kept by the running worker, or by
the directory's lock if no worker runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Protocol
from uuid import uuid4

from penstock.backup.contents import JOURNAL
from penstock.client.backup import BackupClient
from penstock.coordinator.ledger import stored_state
from penstock.core.errors import Damaged, PenstockError, RequestError
from penstock.protocol.api.backup import FixedPipeline
from penstock.store.chapters import chapter_bases
from penstock.store.files import Files, RealFiles
from penstock.store.recovery import sound_records
from penstock.worker.backups import fixed_pipelines

_RENEWALS = 4
"""Per time that the worker keeps everything. Each is retried until the next one is due."""


class Fixed(NamedTuple):
    position: int
    chapters: Sequence[int]
    pipelines: Mapping[str, FixedPipeline]


class Snapshot(Protocol):
    is_live: bool

    def fix(self) -> Fixed:
        """From now on its chapters stay as they are up to the position."""
        ...

    def check(self) -> None:
        """Raise an error unless everything was kept until now."""
        ...


@dataclass(slots=True)
class StoppedWorker:
    """The directory is locked: no worker starts meanwhile."""

    files: Files
    is_live: bool = False

    def fix(self) -> Fixed:
        bases = chapter_bases(self.files)
        if not bases:
            raise RequestError("the data directory has no journal", "Name a worker's data directory: --data DIR")
        records = sound_records(self.files, bases)
        if records.damage:
            raise Damaged(str(records.damage[0]))
        return Fixed(records.entries[-1][1].end, bases, _by_name(fixed_pipelines(stored_state(self.files).pipelines)))

    def check(self) -> None:
        pass


class LiveWorker:
    """A thread renews what the worker keeps, as long as the backup takes."""

    is_live = True

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._id = uuid4().hex
        self._client = BackupClient(worker)
        self._ended = Event()
        self._failure: PenstockError | None = None
        seconds = self._client.begin(self._id).seconds
        self._thread = Thread(target=self._renew, args=(seconds / _RENEWALS,), name="backup", daemon=True)
        self._thread.start()

    def fix(self) -> Fixed:
        fixed = self._client.fix(self._id)
        return Fixed(fixed.position, fixed.chapters, _by_name(fixed.pipelines))

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._client.renew(self._id)

    def close(self) -> None:
        self._ended.set()
        with suppress(PenstockError):  # it is forgotten in any case, a little later
            self._client.end(self._id)
        self._client.close()
        self._thread.join()

    def _renew(self, seconds: float) -> None:
        with BackupClient(self._worker, retry_seconds=seconds) as client:
            while not self._ended.wait(seconds):
                try:
                    client.renew(self._id)
                except PenstockError as error:
                    if not self._ended.is_set():
                        self._failure = error
                    return


def _by_name(pipelines: Sequence[FixedPipeline]) -> dict[str, FixedPipeline]:
    return {one.name: one for one in pipelines}


@contextmanager
def snapshot_of(data: Path, worker: str | None) -> Iterator[Snapshot]:
    """`worker`: the HTTP address of the one that runs on the directory. Raises StoreInUse if another one does."""
    if worker is not None:
        live = LiveWorker(worker)
        try:
            yield live
        finally:
            live.close()
        return
    try:
        files = RealFiles(data / JOURNAL, create=False)
    except FileNotFoundError:
        raise RequestError(f"{data} has no journal", "Name a worker's data directory: --data DIR") from None
    try:
        files.lock()
        yield StoppedWorker(files)
    finally:
        files.close()
