"""The access list of a cluster, and the tokens that it has from its first process on."""

from pathlib import Path
from uuid import uuid4

import pytest

from penstock.access.file import FILE, AccessFile, Open, StoredGrant, WithCluster
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.cluster.secret import cluster_secret
from penstock.core.errors import Unauthenticated
from penstock.worker.cluster_access import ClusterAccess, use_owner_token


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
        use_owner_token(data, secret.owner)
        assert AccessFile(data).principal(secret.owner).name == "owner"


def test_a_token_file_that_was_named_stays(bucket: Bucket, machines: tuple[Path, Path]) -> None:
    a, b = machines
    (b / "mine").write_text("x" * 40)
    AccessFile(a).use_owner_token(b / "mine")
    use_owner_token(a, cluster_secret(bucket).owner)
    assert AccessFile(a).principal("x" * 40).name == "owner"


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
