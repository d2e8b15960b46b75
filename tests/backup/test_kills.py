"""The process that takes a backup is killed with SIGKILL while it copies."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.backup.archive import Archive, restore
from penstock.backup.backup import back_up
from tests.backup.test_backup import BLOCK, append, events, options
from tests.support.running_worker import running_worker

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from pathlib import Path
from penstock.backup.archive import Archive
from penstock.backup.backup import BackupOptions, back_up

copied = 0

def on_bytes(count):
    global copied
    copied += count
    if copied > int(sys.argv[4]):
        print("copying", flush=True)
        sys.stdin.read()

options = BackupOptions(data=Path(sys.argv[1]), worker=sys.argv[2], checkpoints=None)
back_up(Archive(Path(sys.argv[3])), options, on_bytes)
"""


def kill_while_copying(data: Path, worker: str, backup: Path, after_bytes: int) -> None:
    arguments = [data, worker, backup, after_bytes]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"copying\n"
        process.kill()


def test_a_killed_backup_leaves_the_earlier_one_usable_and_the_next_one_succeeds(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker:
        append(worker, "s", *[BLOCK] * 15)
        first = back_up(archive, options(data, worker))
        append(worker, "s", *[BLOCK] * 25)
        for after_bytes in (0, 2_000_000, 4_000_000):
            kill_while_copying(data, f"127.0.0.1:{worker.ports['http']}", tmp_path / "backup", after_bytes)
            assert archive.names() == [first.name]
        restore(archive, archive.manifest(first.name), tmp_path / "first")
        last = back_up(archive, options(data, worker))
        restore(archive, last.manifest, tmp_path / "last")
    for name, expected in (("first", 15), ("last", 40)):
        with running_worker(tmp_path / name) as again:
            assert events(again, "s") == [BLOCK] * expected
    needed = {one.sha256 for name in archive.names() for one in archive.manifest(name).files}
    assert {path.name for path in (tmp_path / "backup").glob("objects/*/*")} == needed
