"""`penstock access`, and where commands find their token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.access.file import AccessFile
from penstock.cli.app import app
from penstock.cli.worker_access import read_cookie
from penstock.client import credentials
from penstock.client.credentials import read_token
from penstock.client.segments import SegmentClient
from penstock.core.address import Address
from penstock.core.errors import RequestError, Unauthenticated
from penstock.ingest.settings import ProgramServerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.worker.settings import WorkerSettings
from tests.support.running_worker import SMALL_STORE, RunningWorker


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words])


def test_a_token_is_printed_once_and_works_until_it_is_revoked(tmp_path: Path) -> None:
    limits = ["--prefix", "shop-", "--quota", "1GiB"]
    added = run("access", "add", "shop", "--role", "write", *limits, "--data", str(tmp_path))
    assert added.exit_code == 0, added.exception
    token = added.stdout.strip()
    principal = AccessFile(tmp_path).principal(token)
    assert (principal.name, principal.prefixes, principal.quota_bytes) == ("shop", ("shop-",), 1 << 30)
    listed = run("access", "list", "--data", str(tmp_path)).stdout
    assert "shop-…" in listed
    assert token not in listed
    assert run("access", "revoke", "shop", "--data", str(tmp_path)).stdout == "revoked shop\n"
    with pytest.raises(Unauthenticated):
        AccessFile(tmp_path).principal(token)
    assert "no principals besides the owner" in run("access", "list", "--data", str(tmp_path)).stdout


def test_a_principal_with_a_certificate_has_no_token(tmp_path: Path) -> None:
    added = run("access", "add", "m", "--role", "read", "--certificate", "m.example", "--data", str(tmp_path))
    assert (added.stdout, added.stderr) == ("", "added m: clients with a certificate for m.example\n")
    listed = json.loads(run("access", "list", "--json", "--data", str(tmp_path)).stdout)
    assert [(one["name"], one["role"], one["certificate"]) for one in listed] == [("m", "read", "m.example")]


@pytest.mark.parametrize("words", [["add", "x", "--role", "king"], ["revoke", "x"], ["add", "owner", "--role", "read"]])
def test_mistakes_are_reported(tmp_path: Path, words: list[str]) -> None:
    assert isinstance(run("access", *words, "--data", str(tmp_path)).exception, RequestError)
    assert isinstance(run("access", *words, "--data", str(tmp_path / "absent")).exception, RequestError)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningWorker]:
    """This directory's worker, which wants its owner's token; no token is in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", "")
    monkeypatch.setattr(credentials, "_accepted", {})  # what tests of tasks have left in this process
    data = Path("penstock-data").absolute()
    data.mkdir()
    access = AccessFile(data)
    access.create_owner_token()
    settings = WorkerSettings(
        data=data,
        access=access,
        http_port=0,
        store=SMALL_STORE,
        segment=ServerSettings(port=0),
        programs=ProgramServerSettings(port=0),
    )
    worker = RunningWorker(settings)
    worker.start()
    yield worker
    worker.stop()


@pytest.mark.parametrize("how", ["nothing", "--data", "--worker", "URL"])
def test_commands_find_the_token_of_this_directorys_worker(guarded: RunningWorker, how: str) -> None:
    port = guarded.ports["http"]
    words = {
        "nothing": [],
        "--data": ["--data", "penstock-data"],
        "--worker": ["--worker", f"127.0.0.1:{port}"],
        "URL": ["--worker", f"http://127.0.0.1:{port}/"],
    }
    done = run("status", *words[how])
    assert done.exit_code == 0, done.exception


def test_elsewhere_the_token_is_named_in_the_environment(
    guarded: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{guarded.ports['http']}"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused = run("status", "--worker", address).exception
    assert isinstance(refused, Unauthenticated)
    assert "PENSTOCK_TOKEN_FILE" in refused.hint
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "penstock-data" / "token"))
    assert run("status", "--worker", address).exit_code == 0
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "absent"))
    assert "absent" in str(run("status", "--worker", address).exception)


def test_the_token_of_this_directory_goes_to_its_own_worker_alone(guarded: RunningWorker) -> None:
    token = Path("penstock-data/token").read_text().strip()
    for port in guarded.ports.values():
        assert read_token(Address("127.0.0.1", port)) == token
    assert read_token(Address("127.0.0.1", 1)) == ""
    assert read_token(Address("192.0.2.1", guarded.ports["http"])) == ""
    assert read_token() == ""


def test_a_program_beside_the_data_needs_no_set_up(guarded: RunningWorker) -> None:
    with SegmentClient(guarded.address, retry_seconds=0) as client:
        client.create("events")
        assert client.info("events").length == 0


def test_a_cookie_comes_from_one_place(tmp_path: Path) -> None:
    file = tmp_path / "cookie"
    file.write_text("secret\n")
    assert read_cookie("", file) == b"secret"
    assert read_cookie("text", None) == b"text"
    with pytest.raises(RequestError, match="twice"):
        read_cookie("text", file)
    file.write_text("\n")
    with pytest.raises(RequestError, match="empty"):
        read_cookie("", file)
    with pytest.raises(RequestError, match="cannot be read"):
        read_cookie("", tmp_path / "absent")
