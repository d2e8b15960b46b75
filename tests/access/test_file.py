"""The files of a data directory that define who has access."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from penstock.access.file import OWNER, AccessFile, StoredGrant, create_private_directory
from penstock.access.principals import Role
from penstock.core.durable_files import write_private
from penstock.core.errors import RequestError, Unauthenticated, UnreadableFormat


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_owner_has_a_token_that_only_the_owner_of_the_directory_can_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create_private_directory(data)
    AccessFile(data).create_owner_token()
    token = (data / "token").read_text().strip()
    assert (mode(data), mode(data / "token")) == (0o700, 0o600)
    owner = AccessFile(data).principal(token)
    assert (owner.name, owner.role) == ("owner", Role.ADMIN)
    AccessFile(data).create_owner_token()
    assert (data / "token").read_text().strip() == token, "it is generated once"


def test_a_directory_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    create_private_directory(data)
    assert mode(data) == 0o700


def test_the_token_of_a_file_elsewhere_is_followed_when_it_changes(tmp_path: Path) -> None:
    secret, clock = tmp_path / "secret", Clock()
    secret.write_text("first-of-the-tokens-in-the-file\n")
    access = AccessFile(tmp_path, clock)
    access.use_owner_token(secret)
    assert access.principal("first-of-the-tokens-in-the-file").name == "owner"
    assert (tmp_path / "token").read_text() == secret.read_text(), "commands on this machine find it"
    secret.write_text("second-of-the-tokens-in-the-file\n")
    clock.now += 1
    assert access.principal("second-of-the-tokens-in-the-file").name == "owner"
    with pytest.raises(Unauthenticated):
        access.principal("first-of-the-tokens-in-the-file")


def test_the_link_to_a_token_elsewhere_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker must start on a full disk."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a token that is long enough")
    AccessFile(tmp_path).use_owner_token(elsewhere)
    monkeypatch.setattr(Path, "symlink_to", lambda *_: pytest.fail("it is there already"))
    AccessFile(tmp_path).use_owner_token(elsewhere)


@pytest.mark.parametrize("content", [None, "", "short"])
def test_a_token_file_without_a_usable_token_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "secret").write_text(content)
    with pytest.raises(RequestError, match="secret"):
        AccessFile(tmp_path).use_owner_token(tmp_path / "secret")


def test_a_principal_is_known_from_when_it_is_added_until_it_is_revoked(tmp_path: Path) -> None:
    clock = Clock()
    worker, command = AccessFile(tmp_path, clock), AccessFile(tmp_path)
    token = command.add(StoredGrant("shop", "write", ["shop-"], quota_bytes=1000))
    found = worker.principal(token)
    assert (found.name, found.role, found.prefixes, found.quota_bytes) == ("shop", Role.WRITE, ("shop-",), 1000)
    command.revoke("shop")
    clock.now += 1
    with pytest.raises(Unauthenticated, match="revoked"):
        worker.principal(token)


def test_tokens_are_not_stored(tmp_path: Path) -> None:
    token = AccessFile(tmp_path).add(StoredGrant("shop", "write"))
    stored = (tmp_path / "access.json").read_text()
    assert token not in stored
    assert {mode(tmp_path / name) for name in ("access.json", "access.lock")} == {0o600}
    assert json.loads(stored)["principals"][0]["name"] == "shop"


def test_a_certificate_or_nothing_needs_no_token(tmp_path: Path) -> None:
    access = AccessFile(tmp_path)
    assert access.add(StoredGrant("machine", "read", certificate="client.example.org")) == ""
    assert access.add(StoredGrant("anonymous", "write", ["demo/"])) == ""
    assert access.principal("", ["client.example.org"]).name == "machine"
    assert access.principal("").name == "anonymous"


@pytest.mark.parametrize("grant", [
    StoredGrant("shop", "read"),
    StoredGrant("owner", "read"),
    StoredGrant("other", "king"),
    StoredGrant("other", "write", quota_bytes=1000),
    StoredGrant("", "read"),
    StoredGrant("two\nlines", "read"),
    StoredGrant("other", "read", certificate="c"),
    StoredGrant("other", "read", [""]),
])  # fmt: skip
def test_what_cannot_be_added_changes_nothing(tmp_path: Path, grant: StoredGrant) -> None:
    access = AccessFile(tmp_path)
    access.add(StoredGrant("shop", "write"))
    access.add(StoredGrant("machine", "write", certificate="c"))
    before = (tmp_path / "access.json").read_text()
    with pytest.raises(RequestError):
        access.add(grant)
    assert (tmp_path / "access.json").read_text() == before


@pytest.mark.parametrize("name", ["owner", "nobody"])
def test_only_a_principal_that_was_added_can_be_revoked(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError):
        AccessFile(tmp_path).revoke(name)


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"format": 2, "principals": []}', b"\xff"])
def test_a_file_that_cannot_be_read_leaves_access_as_it_was(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    access = AccessFile(tmp_path, clock)
    token = access.add(StoredGrant("shop", "write"))
    assert access.principal(token).name == "shop"
    (tmp_path / "access.json").write_bytes(content)
    clock.now += 1
    assert access.principal(token).name == "shop"
    assert "access stays as it was" in caplog.text
    with pytest.raises((RequestError, UnreadableFormat), match=r"access\.json"):
        access.add(StoredGrant("other", "read"))


def test_principals_added_at_the_same_time_are_all_stored(tmp_path: Path) -> None:
    adding = [
        threading.Thread(target=AccessFile(tmp_path).add, args=(StoredGrant(f"p{n}", "read"),)) for n in range(20)
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert {grant.name for grant in AccessFile(tmp_path).grants()} == {f"p{n}" for n in range(20)}
    assert not [*tmp_path.glob(".access*")]


def test_the_owner_has_access_to_a_worker_whose_file_is_broken_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "access.json").write_text("{broken")
    access = AccessFile(tmp_path)
    access.create_owner_token()
    assert access.principal((tmp_path / "token").read_text().strip()).name == OWNER
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(Unauthenticated):
        access.principal("somebody")


def test_a_renamed_file_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, list[str]]] = []
    sync = os.fsync

    def recorded(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, sorted(one.name for one in tmp_path.iterdir())))
        sync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    write_private(tmp_path / "token", b"secret")
    assert synced[-1] == (tmp_path.stat().st_ino, ["token"]), "the directory, after the file has its name"
    AccessFile(tmp_path / "other").use_owner_token(_token_in(tmp_path))
    assert synced[-1][0] == (tmp_path / "other").stat().st_ino


def _token_in(folder: Path) -> Path:
    (folder / "other").mkdir()
    (folder / "mounted").write_text("a-long-random-text-of-somebody")
    return folder / "mounted"
