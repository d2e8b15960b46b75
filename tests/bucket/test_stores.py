"""Buckets by URL: what is accepted, and where credentials come from."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.bucket.aws_files import aws_settings
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import PAGE_OBJECTS, open_bucket
from penstock.core.errors import BucketForbidden, BucketUnreachable, RequestError
from penstock.testing.seaweedfs import SeaweedFS


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("s4://bucket", "s4:// is not a supported kind of store", 'Did you mean "s3"?'),
        ("gcs://bucket", "gcs:// is not a supported kind of store", 'Did you mean "gs"?'),
        ("https://host/x", "https:// is not a supported kind of store", "Use one of: az, file, gs, memory, s3."),
        ("/srv/bucket", "'/srv/bucket' is not the URL of a store", "For a directory: file:///srv/bucket"),
        ("s3:///prefix", "names no bucket", "Write it like s3://bucket/prefix"),
        ("file://host/x", "is not the URL of a directory", "file:///srv/bucket"),
        ("file:///", "is not the URL of a directory", "file:///srv/bucket"),
        ("s3://[bucket", "is not a valid URL", "Write it like s3://bucket/prefix"),
    ],
)
def test_an_invalid_url_is_refused_with_a_hint(url: str, message: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        open_bucket(url)
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize("url", ["s3://key:topsecret@bucket/x", "az://c/x?sig=topsecret", "s3://bucket/x#topsecret"])
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(RequestError, match="must not contain credentials") as caught:
        open_bucket(url)
    assert "topsecret" not in str(caught.value) + caught.value.hint


def test_a_bucket_has_the_url_that_other_processes_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    assert open_bucket("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert open_bucket("s3://bucket").url == "s3://bucket"
    assert open_bucket("memory://name/x").url == "memory://name/x"
    folder = tmp_path / "with space"
    assert open_bucket(open_bucket(folder.as_uri()).url).url == folder.as_uri()


def test_without_obstore_the_command_that_installs_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(RequestError, match="is not installed") as caught:
        open_bucket("memory://name")
    assert caught.value.hint == "pip install 'penstock-streams[bucket]'"


def test_settings_that_a_store_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(RequestError, match="Account must be specified"):
        open_bucket("az://container/prefix")


def test_prefixes_are_separate() -> None:
    one, other = open_bucket("memory://prefixes/one"), open_bucket("memory://prefixes/other")
    one.create("a", [b"1"])
    other.create("a", [b"2"])
    assert [each.key for each in one.list("")] == ["a"]
    assert sorted(each.key for each in open_bucket("memory://prefixes").list("")) == ["one/a", "other/a"]


def test_a_memory_store_is_shared_by_name_and_process() -> None:
    open_bucket("memory://shared").create("a", [b"1"])
    assert open_bucket("memory://shared").get("a").data == b"1"
    assert list(open_bucket("memory://another").list("")) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that is the point
def test_a_forked_child_cannot_use_a_store() -> None:
    """Its requests would wait for threads that it does not have."""
    bucket = open_bucket("memory://forked")
    assert [in_forked_child(lambda: open_bucket("memory://x")), in_forked_child(lambda: bucket.get("a"))] == [7, 7]


def in_forked_child(call: Callable[[], object]) -> int:
    """7 if it raises RuntimeError."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except RuntimeError:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_list_has_all_pages(s3_url: str) -> None:
    bucket = open_bucket(s3_url)
    names = [f"pages/{number:05}" for number in range(PAGE_OBJECTS + 5)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: bucket.create(name, [b"x"]), names))
    assert sorted(each.key for each in bucket.list("pages/")) == names
    bucket.delete(names)
    assert list(bucket.list("")) == []


def test_a_reader_must_not_write(s3_url: str, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    open_bucket(s3_url).create("a", [b"1"])
    for name, value in seaweedfs.environment("reader").items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(s3_url)
    stored = bucket.get("a")
    for write in writes(bucket, stored.version):
        with pytest.raises(BucketForbidden, match="AccessDenied"):
            write()
    assert bucket.get("a") == stored


def writes(bucket: Bucket, version: str) -> list[Callable[[], object]]:
    return [
        lambda: bucket.create("b", [b"1"]),
        lambda: bucket.replace("a", b"2", version),
        lambda: bucket.delete(["a"]),
    ]


def test_a_wrong_secret_is_forbidden(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(BucketForbidden, match="SignatureDoesNotMatch"):
        open_bucket(s3_url).get("a")


def test_in_a_missing_bucket_nothing_is_merely_absent(s3_url: str) -> None:
    bucket = open_bucket("s3://missing-bucket/prefix")
    create, _, delete = writes(bucket, "")
    for call in [lambda: bucket.get("a"), lambda: list(bucket.list("")), create, delete]:
        with pytest.raises(BucketForbidden, match="the bucket does not exist"):
            call()


def test_a_store_that_stalls_is_unreachable_and_then_is_back(s3_url: str, seaweedfs: SeaweedFS) -> None:
    bucket = open_bucket(s3_url, timeout=0.5)
    version = open_bucket(s3_url).create("a", [b"1"])
    seaweedfs.pause()
    try:
        for call in [lambda: bucket.get("a"), *writes(bucket, version)]:
            with pytest.raises(BucketUnreachable, match="no answer in time"):
                call()
    finally:
        seaweedfs.resume()
    open_bucket(s3_url).create("c", [b"1"])


# AWS's files.

CREDENTIALS = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-%secret
[other]
aws_access_key_id = other-key
aws_secret_access_key = other-secret
aws_session_token = other-token
"""
CONFIG = """
[default]
region = eu-central-1
[profile other]
region = eu-north-1
endpoint_url = http://127.0.0.1:9000
[profile sso]
sso_session = work
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path


def test_keys_and_region_come_from_the_default_profile(home: Path) -> None:
    settings = aws_settings({"HOME": str(home)})
    assert settings.credentials is not None
    found = settings.credentials()
    assert (found["access_key_id"], found["secret_access_key"]) == ("default-key", "default-%secret")
    assert settings.config == {"region": "eu-central-1"}
    assert not settings.allows_http


def test_a_profile_is_chosen_by_name(home: Path) -> None:
    settings = aws_settings({"HOME": str(home), "AWS_PROFILE": "other"})
    assert settings.credentials is not None
    assert settings.credentials()["token"] == "other-token"
    assert settings.config == {"region": "eu-north-1", "endpoint": "http://127.0.0.1:9000"}
    assert settings.allows_http, "to this machine"


def test_keys_are_read_again_when_they_expire(home: Path) -> None:
    settings = aws_settings({"HOME": str(home)})
    assert settings.credentials is not None
    (home / ".aws" / "credentials").write_text(CREDENTIALS.replace("default-key", "rotated-key"))
    assert settings.credentials()["access_key_id"] == "rotated-key"


def test_the_environment_has_precedence(home: Path) -> None:
    variables = {"AWS_ACCESS_KEY_ID": "key", "AWS_REGION": "us-west-2", "AWS_ENDPOINT_URL_S3": "https://store"}
    settings = aws_settings({"HOME": str(home), "AWS_PROFILE": "other", **variables})
    assert settings.credentials is None, "obstore finds them"
    assert settings.config == {}
    assert not settings.allows_http


def test_without_files_everything_is_left_to_obstore(tmp_path: Path) -> None:
    settings = aws_settings({"HOME": str(tmp_path)})
    assert (settings.credentials, settings.config, settings.certificates) == (None, {}, None)


def test_a_profile_that_cannot_be_used_is_refused(home: Path) -> None:
    with pytest.raises(RequestError, match="no profile none"):
        aws_settings({"HOME": str(home), "AWS_PROFILE": "none"})
    with pytest.raises(RequestError, match="has sso_session") as caught:
        aws_settings({"HOME": str(home), "AWS_PROFILE": "sso"})
    assert "aws configure export-credentials" in caught.value.hint
    with pytest.raises(RequestError, match="AWS_CA_BUNDLE"):
        aws_settings({"HOME": str(home), "AWS_CA_BUNDLE": "/nowhere/ca.pem"})


def test_a_store_is_opened_with_the_keys_of_a_file(
    s3_url: str, home: Path, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = seaweedfs.environment()
    key, secret = variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
    profile = f"[store]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    (home / ".aws" / "credentials").write_text(profile)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_PROFILE", "store")
    bucket = open_bucket(s3_url)
    bucket.create("a", [b"1"])
    assert bucket.get("a").data == b"1"
