"""`penstock upgrade --check`, and what readers do with the formats of another version."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from penstock.access.file import AccessFile
from penstock.access.principals import Role
from penstock.cli.app import app
from penstock.client.credentials import LocalWorker
from penstock.coordinator import ledger
from penstock.core.errors import RequestError, Unavailable, UnreadableFormat
from penstock.spark.run.attempt import RunSettings, check_state
from penstock.spark.run.state_plan import Companion
from penstock.store.files import RealFiles
from penstock.store.record import CHAPTER_HEADER_BYTES
from tests.coordinator.scene import Scene
from tests.fixtures.make import PIPELINE, STATE_PLAN
from tests.support.http import get
from tests.support.running_worker import running_worker

FIXTURE = Path(__file__).parent.parent / "fixtures" / "data" / "2"
PLAN_FILE = f"checkpoints/{PIPELINE}/penstock.json"
FILES = {"deployment": "application.json", "access list": "access.json", "state plan": PLAN_FILE}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "data"))


def checked(data: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and what was found."""
    done = CliRunner().invoke(app, ["upgrade", "--check", "--json", "--data", str(data)])
    return done.exit_code, {one["what"]: one for one in json.loads(done.stdout)}


def set_format(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def from_the_future(file: Path) -> None:
    set_format(file, lambda content: content.update(format=9, unheard_of=[]))


def without_version(file: Path) -> None:
    set_format(file, lambda content: content.pop("format"))


@pytest.mark.parametrize("what", FILES)
def test_a_newer_format_is_refused_with_both_versions_and_what_to_do(data: Path, what: str) -> None:
    from_the_future(data / FILES[what])
    code, found = checked(data)
    reads = 3 if what == "state plan" else 1
    assert (code, found[what]["found"], found[what]["reads"], found[what]["outcome"]) == (1, 9, reads, "refused")
    assert f"newer version of Penstock (format 9; this version reads format {reads})" in found[what]["problem"]
    assert found[what]["hint"] == "Use that version."
    assert {one["outcome"] for name, one in found.items() if name != what} == {"read as it is"}


@pytest.mark.parametrize("what", FILES)
def test_a_file_without_a_version_is_refused_with_how_to_continue(data: Path, what: str) -> None:
    without_version(data / FILES[what])
    code, found = checked(data)
    assert (code, found[what]["found"], found[what]["outcome"]) == (1, None, "refused")
    assert "no format version" in found[what]["problem"]
    assert "penstock " in found[what]["hint"]


def test_an_older_format_that_is_still_read_is_reported_with_its_own_version(data: Path) -> None:
    code, found = checked(data)
    assert (code, found["state plan"]["found"], found["state plan"]["outcome"]) == (0, 1, "read as it is")
    assert found["state plan"]["reads"] > 1


def test_a_newer_journal_is_refused(data: Path) -> None:
    for file in data.glob("journal/*.journal"):
        content = bytearray(file.read_bytes())
        content[8:12] = (3).to_bytes(4, "little")
        front = CHAPTER_HEADER_BYTES - 4
        content[front : front + 4] = crc32c(bytes(content[:front])).to_bytes(4, "little")
        file.write_bytes(content)
    code, found = checked(data)
    assert (code, found["journal"]["found"], found["journal"]["outcome"]) == (1, 3, "refused")
    assert "ledger" not in found, "it is in the journal"


def test_a_newer_ledger_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        scene = Scene(RealFiles(tmp_path / "journal"))
        await scene.open()
        await scene.ingest("connector/s/0", {1: 5})
        await scene.start()
        await scene.durable()
        await scene.close()

    monkeypatch.setattr(ledger, "_FORMAT_MIN", ledger.FORMAT + 1)
    asyncio.run(run())
    monkeypatch.undo()
    code, found = checked(tmp_path)
    assert (code, found["ledger"]["found"], found["ledger"]["reads"]) == (1, ledger.FORMAT + 1, ledger.FORMAT)


def test_a_running_worker_is_checked_and_its_ports_are_written_by_the_next_start(tmp_path: Path) -> None:
    with running_worker(tmp_path):
        code, found = checked(tmp_path)
        assert (code, found["ports"]["outcome"]) == (0, "read as it is")
        from_the_future(tmp_path / "ports.json")
        with pytest.raises(Unavailable, match=r"ports.json has format 9; this version reads format 1") as refused:
            LocalWorker.read(tmp_path)
        assert "restart the worker" in refused.value.hint
        code, found = checked(tmp_path)
        assert (code, found["ports"]["outcome"]) == (0, "replaced")


@pytest.mark.parametrize("change", [from_the_future, without_version])
def test_a_worker_runs_without_a_deployment_that_it_cannot_read(data: Path, change: Callable[[Path], None]) -> None:
    change(data / "application.json")
    before = (data / "application.json").read_bytes()
    with running_worker(data) as worker:
        status = get(worker.ports["http"], "/status")
    assert status["application"]["state"] == "failed"
    (problem,) = (one for one in status["problems"] if one.startswith("applications are refused: "))
    assert "this version reads format 1" in problem
    assert {one["name"] for one in status["pipelines"]} >= {PIPELINE}
    assert (data / "application.json").read_bytes() == before


def test_a_newer_access_list_leaves_the_owner_in_charge(data: Path) -> None:
    from_the_future(data / "access.json")
    (data / "token").write_text("a-long-token-of-the-owner")
    access = AccessFile(data)
    assert access.principal("a-long-token-of-the-owner").may(Role.ADMIN)
    with pytest.raises(UnreadableFormat, match="format 9"):
        access.grants()


def test_a_pipeline_whose_plan_is_of_another_version_is_not_started(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.run.attempt.is_outdated", lambda *_, **__: False)
    settings = RunSettings(worker="", checkpoints=str(data / "checkpoints"), cores=1)
    check_state(PIPELINE, STATE_PLAN, settings)
    from_the_future(data / PLAN_FILE)
    with pytest.raises(RequestError, match="newer version of Penstock"):
        check_state(PIPELINE, STATE_PLAN, settings)


@pytest.mark.parametrize("text", ["", "[]", "no json", '{"format": "1"}', '{"format": 1}'])
def test_a_damaged_plan_is_refused(text: str) -> None:
    with pytest.raises(UnreadableFormat, match="no format version"):
        Companion.parse(text, PIPELINE)


def test_the_table_names_each_format_and_the_reason_of_a_refusal(data: Path) -> None:
    from_the_future(data / "application.json")
    done = CliRunner().invoke(app, ["upgrade", "--check", "--data", str(data)], env={"COLUMNS": "80"})
    assert "…" not in done.output, "nothing is cut off in a narrow terminal"
    assert done.exit_code == 1
    for text in ("journal", "ledger", "access list", "state plan", "refused", "Use that version."):
        assert text in done.stdout


@pytest.mark.parametrize(("arguments", "problem"), [((), "converts no stored data"), (("--check",), "has no journal")])
def test_mistakes_are_reported(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    refused = CliRunner().invoke(app, ["upgrade", *arguments, "--data", str(tmp_path)])
    assert isinstance(refused.exception, RequestError)
    assert problem in str(refused.exception)
