"""What `penstock worker` makes of its options and of the system's limits."""

import errno
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli import worker as command
from penstock.cli.app import app
from penstock.cli.worker import source_quota_bytes
from penstock.cli.worker_options import parse_quota, parse_retention
from penstock.cli.worker_process import fitting, hint_of
from penstock.ingest.settings import QUOTA_BYTES, SourceSettings, settings_of
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.worker import host_link
from penstock.worker.settings import WorkerSettings


def test_connections_leave_files_for_the_journal() -> None:
    wanted = WorkerSettings(data=Path("data"))
    assert fitting(wanted, 1 << 20) is wanted
    few = fitting(wanted, 1024)
    total = few.segment.connections_max + few.programs.sessions_max + few.http.connections_max
    assert 700 < total <= 1024 - 256
    fewest = fitting(wanted, 64)
    assert min(fewest.segment.connections_max, fewest.programs.sessions_max, fewest.http.connections_max) >= 1
    assert fewest.segment.connections_max + fewest.programs.sessions_max + fewest.http.connections_max <= 32


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_if_this_directory_has_data_no_other_is_suggested(tmp_path: Path, code: int) -> None:
    (tmp_path / "journal").mkdir()
    hint = hint_of(OSError(code, "", str(tmp_path / "token")), tmp_path)
    assert "would be empty" in hint
    assert "Choose another" not in hint
    assert ("Free space" in hint) == (code in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize(
    ("quota", "retention", "expected"),
    [
        (None, "complete", QUOTA_BYTES),
        (None, "keep", None),
        (None, "7d", None),
        ("none", "complete", None),
        ("1GiB", "complete", 1 << 30),
        ("1GiB", "keep", 1 << 30),
    ],
)
def test_a_source_has_a_quota_unless_it_is_lifted(quota: str | None, retention: str, expected: int | None) -> None:
    given = None if quota is None else parse_quota(quota)
    assert source_quota_bytes(given, parse_retention(retention)) == expected


def test_a_quota_is_a_size() -> None:
    with pytest.raises(typer.BadParameter):
        parse_quota("much")


def test_a_connector_without_a_quota_has_that_of_the_worker() -> None:
    assert SourceSettings().quota_bytes == QUOTA_BYTES
    spec = ConnectorSpec(name="c", id="c", instance="01", type="null")
    assert settings_of(spec, own_event_times=False, quota_bytes=5).quota_bytes == 5
    own = ConnectorSpec(name="c", id="c", instance="01", type="null", quota_bytes=7)
    assert settings_of(own, own_event_times=False, quota_bytes=5).quota_bytes == 7


@pytest.mark.parametrize("is_shard", [False, True])
def test_only_the_host_of_shards_has_a_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shard: bool
) -> None:
    """Its shards' processes get its options."""
    ports: list[int | None] = []

    def beside(port: int | None, *_: str) -> AbstractContextManager[None]:
        ports.append(port)
        return nullcontext()

    monkeypatch.setattr(command, "dashboard_beside", beside)
    monkeypatch.setattr(command, "serve", lambda *_: None)
    monkeypatch.setattr(command, "set_up_logging", lambda *_: None)
    if is_shard:
        link = host_link.LinkOptions(fd=0, host="h", data=str(tmp_path))
        monkeypatch.setenv(host_link.VARIABLE, msgspec.json.encode(link).decode())
    options = ["--data", str(tmp_path), "--store", f"file://{tmp_path}/store", "--allow-callbacks"]
    result = CliRunner().invoke(app, ["worker", *options, "--dashboard-port", "7180"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert ports == [None if is_shard else 7180]
