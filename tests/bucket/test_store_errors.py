"""Each error of a store, as a store sends it, by who must act on it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.bucket.store_errors import translate
from penstock.bucket.stores import open_bucket
from penstock.core.errors import (
    BucketFailed,
    BucketForbidden,
    BucketFull,
    BucketThrottled,
    BucketTimedOut,
    BucketUnavailable,
    BucketUnreachable,
    BucketUnsuitable,
)
from tests.bucket.scripted_store import ScriptedStore, scripted_store
from tests.support.ports import free_port


def body(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>Because of {code}.</Message></Error>"


CALLS: dict[str, Callable[[Bucket], object]] = {
    "create": lambda bucket: bucket.create("a", [b"1"]),
    "replace": lambda bucket: bucket.replace("a", b"1", '"1"'),
    "get": lambda bucket: bucket.get("a"),
    "get_range": lambda bucket: bucket.get_range("a", 0, 1),
    "delete": lambda bucket: bucket.delete(["a", "b"]),
    "list": lambda bucket: list(bucket.list("a/")),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedStore]:
    with scripted_store() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield store


@each_call
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "", BucketThrottled),
        (503, "SlowDown", BucketThrottled),
        (503, "ServerBusy", BucketThrottled),
        (500, "", BucketUnreachable),
        (500, "InternalError", BucketUnreachable),
        (502, "", BucketUnreachable),
        (503, "", BucketUnreachable),
        (504, "", BucketUnreachable),
        (400, "", BucketUnreachable),
        (400, "RequestTimeout", BucketUnreachable),
        (400, "IncompleteBody", BucketUnreachable),
        (400, "BadDigest", BucketUnreachable),
        (400, "XAmzContentSHA256Mismatch", BucketUnreachable),
        (404, "", BucketForbidden),
        (404, "NotFound", BucketForbidden),
        (409, "ConditionalRequestConflict", BucketUnreachable),
        (409, "OperationAborted", BucketUnreachable),
        (401, "", BucketForbidden),
        (403, "", BucketForbidden),
        (403, "AccessDenied", BucketForbidden),
        (400, "ExpiredToken", BucketForbidden),
        (404, "NoSuchBucket", BucketForbidden),
        (507, "", BucketFull),
        (403, "QuotaExceeded", BucketFull),
        (400, "XMinioAdminBucketQuotaExceeded", BucketFull),
        (501, "NotImplemented", BucketUnsuitable),
    ],
)
def test_an_answer_with_an_error(
    store: ScriptedStore, call: Callable[[Bucket], object], status: int, code: str, kind: type[BucketFailed]
) -> None:
    store.answer(status, body(code) if code else "")
    with pytest.raises(BucketFailed) as caught:
        call(open_bucket("s3://bucket/prefix"))
    assert type(caught.value) is kind
    assert str(caught.value).startswith("s3://bucket/prefix: ")
    assert len(store.requests) == 1, "nothing is retried"


@each_call
def test_an_answer_that_never_comes(store: ScriptedStore, call: Callable[[Bucket], object]) -> None:
    store.hang()
    with pytest.raises(BucketUnreachable, match="no answer in time"):
        call(open_bucket("s3://bucket/prefix", timeout=0.2))
    assert len(store.requests) <= 1, "nothing is retried"


def late_store(store: ScriptedStore, seconds: float) -> None:
    def answer_late(handler: BaseHTTPRequestHandler) -> None:
        store.closed.wait(seconds)
        handler.send_response(200)
        handler.send_header("ETag", '"1"')
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    store.respond = answer_late


def test_after_a_time_out_a_large_body_gets_more_time(store: ScriptedStore) -> None:
    """16 MiB on a slow line would otherwise time out for ever. A small body is not slow because of the line."""
    late_store(store, 0.5)
    bucket, done = open_bucket("s3://bucket/prefix", timeout=0.2), []
    for _ in range(9):
        with suppress(BucketTimedOut):
            done.append(bucket.create("large", [bytes(2 << 20)]))
    assert 0 < len(done) < 9, "the first one is not waited for so long"
    with pytest.raises(BucketTimedOut):
        bucket.create("small", [b"1"])


def test_when_large_bodies_are_fast_again_a_lost_connection_is_soon_given_up(store: ScriptedStore) -> None:
    bucket = open_bucket("s3://bucket/prefix", timeout=0.5)
    late_store(store, 0.8)
    with pytest.raises(BucketTimedOut):
        bucket.create("a", [bytes(8 << 20)])
    bucket.create("b", [bytes(8 << 20)])
    store.answer(200, ETag='"1"')
    for _ in range(50):  # on a machine that is busy some are slow
        bucket.create("c", [bytes(8 << 20)])
    late_store(store, 0.8)
    with pytest.raises(BucketTimedOut):
        bucket.create("d", [bytes(8 << 20)])


def test_a_connection_that_is_never_accepted_says_nothing_about_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.bucket.stores.CONNECT_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        for _ in range(4):  # more than it has room for: the system ignores others
            connection = waiting.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(listener.getsockname())
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with pytest.raises(BucketUnreachable, match="no connection in time") as caught:
            open_bucket("s3://bucket/prefix").create("a", [bytes(2 << 20)])
    assert not isinstance(caught.value, BucketTimedOut)


@each_call
def test_a_connection_that_is_reset(store: ScriptedStore, call: Callable[[Bucket], object]) -> None:
    store.reset()
    with pytest.raises(BucketUnreachable):
        call(open_bucket("s3://bucket/prefix"))
    assert len(store.requests) == 1, "nothing is retried"


@pytest.mark.parametrize("name", ["get", "get_range", "list", "delete"])
def test_an_answer_that_breaks_off(store: ScriptedStore, name: str) -> None:
    store.break_off()
    with pytest.raises(BucketUnavailable):
        CALLS[name](open_bucket("s3://bucket/prefix"))


@each_call
def test_a_store_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, store: ScriptedStore, call: Callable[[Bucket], object]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BucketUnreachable, match="Connection refused"):
        call(open_bucket("s3://bucket/prefix"))


def test_a_bucket_that_does_not_exist_has_a_message_of_its_own(store: ScriptedStore) -> None:
    store.answer(404, body("NoSuchBucket"))
    with pytest.raises(BucketForbidden, match="the bucket does not exist"):
        open_bucket("s3://bucket/prefix").get("a")


def test_the_message_has_what_the_store_says(store: ScriptedStore) -> None:
    store.answer(403, body("AccessDenied"))
    with pytest.raises(BucketForbidden, match=r"answered 403 Forbidden \(AccessDenied: Because of AccessDenied.\)"):
        open_bucket("s3://bucket/prefix").get("a")


def test_conditions_that_do_not_hold(store: ScriptedStore) -> None:
    bucket = open_bucket("s3://bucket/prefix")
    store.answer(412, body("PreconditionFailed"))
    with pytest.raises(ObjectExists):
        bucket.create("a", [b"1"])
    with pytest.raises(VersionChanged):
        bucket.replace("a", b"1", '"1"')
    store.answer(404, body("NoSuchKey"))
    with pytest.raises(NoSuchObject):
        bucket.get("a")
    with pytest.raises(VersionChanged):
        bucket.replace("a", b"1", '"1"')


def test_nothing_is_absent_when_an_object_is_created(store: ScriptedStore) -> None:
    """A proxy answers so while the store is replaced: a worker waits, as it does when it is not let in."""
    store.answer(404, body("NoSuchKey"))
    with pytest.raises(BucketForbidden, match="404 Not Found when an object was to be created"):
        open_bucket("s3://bucket/prefix").create("a", [b"1"])


@each_call
def test_a_proxy_that_has_no_store_behind_it(store: ScriptedStore, call: Callable[[Bucket], object]) -> None:
    """Nothing is absent because it says so: a worker would believe that its lease was deleted."""
    store.answer(404, "<html><body>404 page not found</body></html>", Content_Type="text/html")
    with pytest.raises(BucketForbidden, match="404 Not Found, and does not say what is missing"):
        call(open_bucket("s3://bucket/prefix"))


@pytest.mark.parametrize(("scheme", "code"), [("s3", "NoSuchKey"), ("gs", "NoSuchKey"), ("az", "BlobNotFound")])
def test_what_a_store_does_not_have_is_absent(scheme: str, code: str) -> None:
    text = f"Object at location a not found: Server returned non-2xx status code: 404 Not Found: {body(code)}"
    assert isinstance(translate(FileNotFoundError(text), f"{scheme}://bucket", "a", has_answered=True), NoSuchObject)


def test_azures_answer_to_a_key_that_is_taken(store: ScriptedStore) -> None:
    store.answer(409, body("BlobAlreadyExists"))
    with pytest.raises(ObjectExists):
        open_bucket("s3://bucket/prefix").create("a", [b"1"])


def test_a_store_without_versions_is_unsuitable(store: ScriptedStore) -> None:
    store.answer(200)
    with pytest.raises(BucketUnsuitable, match="sends no ETag"):
        open_bucket("s3://bucket/prefix").create("a", [b"1"])


def test_one_object_of_many_that_must_not_be_deleted(store: ScriptedStore) -> None:
    store.answer(
        200,
        "<DeleteResult><Deleted><Key>prefix/a</Key></Deleted><Error><Key>prefix/b</Key><Code>AccessDenied</Code>"
        "<Message>Access Denied.</Message></Error></DeleteResult>",
    )
    with pytest.raises(BucketForbidden, match="AccessDenied"):
        open_bucket("s3://bucket/prefix").delete(["a", "b"])


def test_plain_http_to_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch, store: ScriptedStore) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.2:{free_port()}")  # not known as loopback
    with pytest.raises(BucketForbidden, match="clear text") as caught:
        open_bucket("s3://bucket/prefix").get("a")
    assert "AWS_ALLOW_HTTP" in caught.value.hint
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(BucketUnreachable):
        open_bucket("s3://bucket/prefix").get("a")


def test_credentials_that_nobody_has(monkeypatch: pytest.MonkeyPatch, store: ScriptedStore) -> None:
    """A machine in a cloud would get them from its metadata service, which here has none."""
    store.answer(404)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{store.port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(BucketForbidden, match="no credentials were found") as caught:
        open_bucket("s3://bucket/prefix", timeout=1).get("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize(("scheme", "variable"), [("gs", "GOOGLE_"), ("az", "AZURE_"), ("s3", "AWS_")])
def test_the_hint_names_the_variables_of_this_store(scheme: str, variable: str) -> None:
    no_metadata_service = OSError("error sending request for url (http://169.254.169.254/)")
    found = translate(no_metadata_service, f"{scheme}://bucket/prefix", "a", has_answered=False)
    assert isinstance(found, BucketForbidden)
    assert variable in found.hint
