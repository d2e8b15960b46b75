"""The thread that writes and syncs what the store has queued: many appends, one fsync."""

import logging
import threading

from penstock.store.file_journal import FileJournal

log = logging.getLogger(__name__)

# How long to wait before a group is tried again that did not fit on the disk.
_RETRY_SECONDS = 0.2


class Committer:
    """Runs `journal.commit` until it is stopped or the journal fails; proves the last records when all is quiet."""

    def __init__(self, journal: FileJournal, idle_proof_seconds: float) -> None:
        self._journal = journal
        self._idle_proof_seconds = idle_proof_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, prove it, and end."""
        self._stop.set()
        self._journal.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
            if self._journal.commit():
                self._journal.prove()
                self._journal.commit()
        except Exception as error:
            # Without this thread nothing becomes durable: whatever ended it must end the waiting, too.
            if not self._journal.failed:
                self._journal.fail(error)
            log.critical("%s", error)

    def _once(self) -> None:
        journal = self._journal
        if journal.wait_for_work(None if journal.proved else self._idle_proof_seconds):
            if not journal.commit():
                self._stop.wait(_RETRY_SECONDS)
        else:
            journal.prove()
