"""What a worker keeps for backups that are being taken, and for how long."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.access.file import AccessFile, StoredGrant
from penstock.core.errors import RequestError
from penstock.store.file_journal import FileJournal
from penstock.store.journal import Durability
from penstock.testing.memory_files import MemoryFiles
from penstock.worker.backups import BACKUPS_MAX, KEPT_SECONDS, Backups
from tests.coordinator.scene import STORE
from tests.support.http import ask
from tests.support.running_worker import RunningWorker, running_worker


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def journal() -> Iterator[FileJournal]:
    journal = FileJournal(MemoryFiles(), STORE)
    yield journal
    journal.close()


async def fix(backups: Backups, journal: FileJournal) -> None:
    journal.commit()
    await backups.fix("b", Durability(journal, asyncio.get_running_loop(), lambda: None), {})


async def test_chapters_stay_from_the_moment_the_position_is_fixed_until_the_backup_ends(journal: FileJournal) -> None:
    backups = Backups(journal, Clock())
    backups.begin("b")
    assert (backups.is_any_kept(), backups.chapters()) == (True, frozenset())
    await fix(backups, journal)
    assert backups.chapters() == {journal.chapter}
    backups.end("b")
    assert (backups.is_any_kept(), backups.chapters()) == (False, frozenset())


async def test_a_backup_whose_client_is_silent_is_abandoned_and_the_client_is_informed(journal: FileJournal) -> None:
    clock = Clock()
    backups = Backups(journal, clock)
    backups.begin("b")
    await fix(backups, journal)
    for _ in range(10):
        clock.now += KEPT_SECONDS - 1
        backups.renew("b")
    assert backups.chapters()
    clock.now += KEPT_SECONDS
    assert not backups.is_any_kept()
    with pytest.raises(RequestError, match="client was silent for 60 s"):
        backups.renew("b")


def test_a_full_disk_ends_all_backups(journal: FileJournal) -> None:
    backups = Backups(journal, Clock())
    backups.begin("b")
    backups.give_up()
    assert not backups.is_any_kept()
    with pytest.raises(RequestError, match="disk was full"):
        backups.end("b")


def test_few_backups_are_taken_at_once_and_a_repeated_request_counts_once(journal: FileJournal) -> None:
    backups = Backups(journal, Clock())
    for number in range(BACKUPS_MAX):
        backups.begin(f"b{number}")
        backups.begin(f"b{number}")
    with pytest.raises(RequestError, match="4 backups are being taken already"):
        backups.begin("one more")


def test_a_backup_is_logged_with_who_has_taken_it(worker: RunningWorker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "penstock.audit"):
        for path in ("begin", "fix", "renew", "end"):
            assert ask(worker.ports["http"], "POST", f"/backup/{path}", {"backup": "b"})[0] == 200
    assert [line for line in caplog.messages if "/backup/" in line] == [
        '"everyone" from 127.0.0.1: POST /backup/begin backup="b": done',
        '"everyone" from 127.0.0.1: POST /backup/end backup="b": done',
    ]


def test_only_an_administrator_takes_backups(tmp_path: Path) -> None:
    access = AccessFile(tmp_path)
    tokens = {role: access.add(StoredGrant(role, role)) for role in ("deploy", "admin")}
    with running_worker(tmp_path, access=access) as worker:
        for path in ("begin", "fix", "renew", "end"):
            codes = [
                ask(worker.ports["http"], "POST", f"/backup/{path}", {"backup": "b"}, token=token)[0]
                for token in tokens.values()
            ]
            assert codes == [403, 200]
