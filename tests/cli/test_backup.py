"""`penstock backup` and `penstock restore`."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import backup as command
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.connectors.file import read_committed_parts
from penstock.core.errors import Damaged, RequestError
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff
from tests.delivery.merging import Merging
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

Run = Callable[..., Result]


@pytest.fixture
def penstock(tmp_path: Path) -> Run:
    def run(*arguments: str, data: str = "data") -> Result:
        return CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / data)])

    return run


def append(worker: RunningWorker, *events: bytes) -> None:
    with SegmentClient(worker.address) as client, client.appender("s", create=True) as appender:
        for event in events:
            appender.append(event)


def test_a_running_worker_is_backed_up_listed_verified_and_restored(penstock: Run, tmp_path: Path) -> None:
    backups = str(tmp_path / "backups")
    with running_worker(tmp_path / "data") as worker:
        append(worker, b"one")
        taken = penstock("backup", backups)
        assert re.search(r"^backup-\S+\.json: .* copied, the rest was already there$", taken.stdout, re.MULTILINE)
        append(worker, b"two")
        second = json.loads(penstock("backup", backups, "--json").stdout)
    listed = json.loads(penstock("backup", backups, "--list", "--json").stdout)
    assert [one["name"] for one in listed][1] == second["name"]
    assert penstock("backup", backups, "--verify").stdout.endswith("every checksum matches\n")
    first = listed[0]["name"]
    restored = penstock("restore", backups, "--at", first, data="first")
    assert f"{first} is restored to {tmp_path}/first" in restored.stdout
    assert "the worker generates a new token" in restored.stdout
    penstock("restore", backups, data="second")
    for name, count in (("first", 1), ("second", 2)):
        with running_worker(tmp_path / name) as worker, SegmentClient(worker.address) as client:
            assert len([*client.events("s")]) == count


def test_a_worker_that_was_killed_is_backed_up_from_its_files(penstock: Run, tmp_path: Path) -> None:
    with running_worker(tmp_path / "data") as worker:
        append(worker, b"one")
        left = (tmp_path / "data" / "ports.json").read_bytes()
    (tmp_path / "data" / "ports.json").write_bytes(left)
    assert penstock("backup", str(tmp_path / "backups")).exit_code == 0


def test_only_the_newest_backups_are_kept_on_demand(penstock: Run, tmp_path: Path) -> None:
    with running_worker(tmp_path / "data"):
        names = [
            json.loads(penstock("backup", str(tmp_path / "b"), "--keep", "2", "--json").stdout)["name"]
            for _ in range(3)
        ]
    listed = json.loads(penstock("backup", str(tmp_path / "b"), "--list", "--json").stdout)
    assert [one["name"] for one in listed] == names[1:]


def test_a_damaged_backup_is_reported_and_not_restored(penstock: Run, tmp_path: Path) -> None:
    with running_worker(tmp_path / "data") as worker:
        append(worker, b"one")
        penstock("backup", str(tmp_path / "b"))
    (damaged,) = (path for path in (tmp_path / "b" / "objects").glob("*/*") if path.stat().st_size > 100)
    damaged.write_bytes(damaged.read_bytes().replace(b"one", b"two"))
    for refused in (
        penstock("backup", str(tmp_path / "b"), "--verify"),
        penstock("restore", str(tmp_path / "b"), data="r"),
    ):
        assert isinstance(refused.exception, Damaged)
        assert f"{damaged}, which is journal/00000000000000000000.journal" in str(refused.exception)
    assert not (tmp_path / "r").exists()


def test_verify_names_all_damaged_files_and_a_backup_copies_them_again(penstock: Run, tmp_path: Path) -> None:
    backups = str(tmp_path / "b")
    with running_worker(tmp_path / "data") as worker:
        append(worker, b"one")
    (tmp_path / "data" / "token").write_text("a token of the owner")
    first = json.loads(penstock("backup", backups, "--json").stdout)["name"]
    objects = [*(tmp_path / "b" / "objects").glob("*/*")]
    for one in objects:
        one.write_bytes(one.read_bytes()[::-1])
    refused = penstock("backup", backups, "--verify")
    assert isinstance(refused.exception, Damaged)
    assert all(f"{one}, which is " in str(refused.exception) for one in objects)
    assert str(refused.exception).endswith(f"this affects {first}")
    assert "delete the damaged file and take another backup" in refused.exception.hint
    for one in objects:
        one.unlink()
    penstock("backup", backups)
    assert penstock("backup", backups, "--verify").stdout.endswith("every checksum matches\n")


def test_a_list_of_backups_has_whole_names_for_at(penstock: Run, tmp_path: Path) -> None:
    with running_worker(tmp_path / "data"):
        name = json.loads(penstock("backup", str(tmp_path / "b"), "--json").stdout)["name"]
    assert name in penstock("backup", str(tmp_path / "b"), "--list").stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("backup", "data/backups"), "is inside"),
        (("backup", "file"), "file is not a directory"),
        (("backup", "file/b"), "file/b is not a directory"),
        (("backup", "b", "--before", "exit 3"), "failed with exit code 3"),
        (("backup", "b", "--checkpoint", "s3://bucket/x"), "is not on this machine"),
        (("restore", "b"), "contains no backup"),
        (("backup", "b", "--list"), "contains no backup"),
    ],
)
def test_mistakes_are_reported(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with running_worker(tmp_path / "data"):
        refused = penstock(*arguments)
    assert isinstance(refused.exception, RequestError)
    assert problem in str(refused.exception)


def test_a_pipeline_whose_checkpoint_is_not_found_is_named(penstock: Run, tmp_path: Path) -> None:
    def check() -> None:
        refused = penstock("backup", str(tmp_path / "b"))
        assert isinstance(refused.exception, RequestError)
        assert "pipeline 'orders' has no checkpoint in" in str(refused.exception)
        done = penstock("backup", str(tmp_path / "b"), "--no-checkpoints")
        assert "pipeline orders: up to epoch 0" in done.stdout

    with running_worker(tmp_path / "data") as worker:
        run_epochs(worker, b"a")
        check()
    check()  # the worker is stopped


def run_epochs(worker: RunningWorker, *values: bytes) -> None:
    with CoordinatorClient(http(worker)) as client, SegmentClient(worker.address) as segments:
        merging = Merging(client, segments, "orders")
        for value in values:
            merging.epoch([value])


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def committed(place: Path) -> bytes:
    if not (place / "state").exists():
        return b""
    return b"".join(part.path.read_bytes()[: part.size] for part in read_committed_parts(place))


def test_a_sink_that_was_copied_before_the_backup_gets_exactly_what_it_lacks(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker continues to deliver after the sink was copied, and before the backup's position."""
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
    place, copy = tmp_path / "results", tmp_path / "copy"
    with (
        running_worker(tmp_path / "data") as worker,
        CoordinatorClient(http(worker)) as client,
        SegmentClient(worker.address) as segments,
    ):
        penstock("sink", "add", "orders", f"file:{place}", "--name", "files")
        merging = Merging(client, segments, "orders")
        merging.epoch([b"a"])
        until(lambda: committed(place) == b"a\n")

        def copy_sink_while_it_continues(_: str) -> None:
            shutil.copytree(place, copy)
            merging.epoch([b"b"])
            merging.epoch([b"c"])
            until(lambda: committed(place) == b"a\nb\nc\n")

        monkeypatch.setattr(command, "_run", copy_sink_while_it_continues)
        taken = penstock("backup", str(tmp_path / "b"), "--no-checkpoints", "--before", "copy the sink")
        assert "pipeline orders: up to epoch 2" in taken.stdout
        merging.epoch([b"lost with the disk"])
        until(lambda: committed(place).endswith(b"disk\n"))
    shutil.rmtree(place)
    shutil.move(copy, place)
    penstock("restore", str(tmp_path / "b"), data="restored")
    with running_worker(tmp_path / "restored") as worker, CoordinatorClient(http(worker)) as client:
        until(lambda: [one.state for one in client.sinks()] == ["DIVERGED"])
        done = penstock("sink", "rewind", "files", "--pipeline", "orders", data="restored")
        assert "delivering 2 epochs again" in done.output
        until(lambda: committed(place) == b"a\nb\nc\n")
