"""The access list of a cluster, and the tokens that it has from its first process on."""

from pathlib import Path
from uuid import uuid4

import pytest
from msgspec import json, structs
from typer.testing import CliRunner

from penstock.access.file import FILE, AccessFile, Open, StoredGrant, WithCluster
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.cli.app import app
from penstock.cluster.secret import cluster_secret, replace_owner
from penstock.core.errors import PenstockError, RequestError, Unauthenticated, Unavailable
from penstock.worker.cluster_access import ClusterAccess
from penstock.worker.settings import STORE_FILE


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}")


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_a_token_that_is_added_on_one_machine_is_valid_on_another(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    here, there = ClusterAccess(bucket, a), ClusterAccess(bucket, b)
    here.begin()
    there.begin()
    token = AccessFile(a).add(StoredGrant(name="reader", role="read"))
    assert here.has_changed_here()
    here.look()
    there.look()
    assert AccessFile(b).principal(token).name == "reader"
    AccessFile(b).revoke("reader")
    there.look()
    here.look()
    with pytest.raises(Unauthenticated):
        AccessFile(a).principal(token)


def test_changes_on_two_machines_at_once_both_count(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    here, there = ClusterAccess(bucket, a), ClusterAccess(bucket, b)
    for name in ("stays", "goes"):
        AccessFile(a).add(StoredGrant(name=name, role="read"))
    here.begin()
    there.begin()
    AccessFile(a).revoke("goes")
    AccessFile(b).add(StoredGrant(name="comes", role="write"))
    here.look()
    there.look()  # it has not seen that one was revoked
    here.look()
    for machine in machines:
        assert [one.name for one in AccessFile(machine).grants()] == ["stays", "comes"]
    assert not here.has_changed_here()
    assert not there.has_changed_here()


def test_a_machine_that_joins_gets_the_list_of_the_cluster(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    AccessFile(a).add(StoredGrant(name="first", role="read"))
    AccessFile(b).add(StoredGrant(name="other", role="read"))
    ClusterAccess(bucket, a).begin()
    ClusterAccess(bucket, b).begin()
    assert [one.name for one in AccessFile(b).grants()] == ["first"]


def test_a_new_cluster_takes_the_list_that_was_copied(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    AccessFile(a).add(StoredGrant(name="copied", role="read"))
    ClusterAccess(bucket, b).begin((a / FILE).read_bytes())
    assert [one.name for one in AccessFile(b).grants()] == ["copied"]


def test_all_processes_have_the_same_secret_and_the_same_owner(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    secret = cluster_secret(bucket)
    assert cluster_secret(bucket) == secret
    assert secret.token != secret.owner
    for data in machines:
        ClusterAccess(bucket, data).begin()
        assert AccessFile(data).principal(secret.owner).name == "owner"


def test_a_token_file_that_was_named_stays(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    (b / "mine").write_text("x" * 40)
    AccessFile(a).use_owner_token(b / "mine")
    access = ClusterAccess(bucket, a)
    access.begin()
    (b / "mine").write_text("y" * 40)
    assert not access.has_changed_here()
    access.look()
    assert AccessFile(a).principal("y" * 40).name == "owner"
    with pytest.raises(RequestError, match="which the worker was started with"):
        AccessFile(a).rotate_owner_token()


def test_a_new_token_of_the_owner_is_valid_on_all_machines(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    here, there = ClusterAccess(bucket, a), ClusterAccess(bucket, b)
    here.begin()
    there.begin()
    before = cluster_secret(bucket)
    AccessFile(a).rotate_owner_token()
    assert here.has_changed_here()
    here.look()
    there.look()
    after = cluster_secret(bucket)
    assert after.owner != before.owner
    assert after.token == before.token
    for data in machines:
        assert AccessFile(data).principal(after.owner).name == "owner"
        with pytest.raises(Unauthenticated):
            AccessFile(data).principal(before.owner)
    assert not here.has_changed_here()
    assert not there.has_changed_here()


def test_a_token_that_was_replaced_while_the_store_was_away_counts_after_a_restart(
    bucket: Bucket, machines: tuple[Path, Path]
) -> None:
    a, b = machines
    for data in machines:
        ClusterAccess(bucket, data).begin()
    AccessFile(a).rotate_owner_token()  # the host ends before it can write it to the bucket
    mine = (a / "token").read_text().strip()
    ClusterAccess(bucket, a).begin()
    ClusterAccess(bucket, b).begin()
    assert cluster_secret(bucket).owner == mine == (b / "token").read_text().strip()


def test_a_machine_that_was_stopped_gets_the_token_that_another_one_has_replaced(
    bucket: Bucket, machines: tuple[Path, Path]
) -> None:
    a, b = machines
    here = ClusterAccess(bucket, a)
    here.begin()
    ClusterAccess(bucket, b).begin()
    AccessFile(a).rotate_owner_token()
    here.look()
    ClusterAccess(bucket, b).begin()
    assert (a / "token").read_text() == (b / "token").read_text()


@pytest.mark.parametrize("times", [1, 100])
def test_a_token_is_replaced_although_another_machine_does_the_same(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    cluster_secret(bucket)
    replace, left = bucket.replace, [times]

    def overtaken(key: str, data: bytes, version: str) -> str:
        if left[0]:
            left[0] -= 1
            replace(key, json.encode(structs.replace(cluster_secret(bucket), owner=f"{left}")), version)
        return replace(key, data, version)

    monkeypatch.setattr(bucket, "replace", overtaken)
    if times == 1:
        replace_owner(bucket, "mine")
        assert cluster_secret(bucket).owner == "mine"
    else:
        with pytest.raises(Unavailable, match="at the same time"):
            replace_owner(bucket, "mine")


def test_a_command_on_a_machine_whose_worker_is_stopped_changes_the_bucket(tmp_path: Path) -> None:
    url, a = (tmp_path / "bucket").as_uri(), tmp_path / "a"
    a.mkdir()
    shared = ClusterAccess(open_bucket(url), a)
    shared.begin()
    (a / STORE_FILE).write_text(f"{url}\n")
    before = cluster_secret(open_bucket(url)).owner
    for command in (["add", "late", "--role", "read"], ["rotate"]):
        assert CliRunner().invoke(app, ["access", *command, "--data", str(a)]).exit_code == 0
    (a / FILE).unlink()
    ClusterAccess(open_bucket(url), a).begin()  # as at the next start
    assert [one.name for one in AccessFile(a).grants()] == ["late"]
    assert cluster_secret(open_bucket(url)).owner == (a / "token").read_text().strip() != before


def test_a_command_is_refused_if_the_worker_is_stopped_and_the_bucket_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_text("s3://nowhere/prefix\n")
    result = CliRunner().invoke(app, ["access", "add", "late", "--role", "read", "--data", str(tmp_path)])
    assert isinstance(result.exception, PenstockError)
    assert not (tmp_path / FILE).exists()


def test_the_secret_is_a_principal_only_once_it_is_known() -> None:
    class Nobody(Open):
        def principal(self, *_: object) -> object:  # type: ignore[override]
            raise Unauthenticated("nobody")

    access = WithCluster(Nobody())  # type: ignore[arg-type]
    with pytest.raises(Unauthenticated):
        access.principal("")
    access.secret = "s"
    assert access.principal("s").name == "cluster"
    with pytest.raises(Unauthenticated):
        access.principal("")
