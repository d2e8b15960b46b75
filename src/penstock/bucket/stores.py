"""Real object stores by URL: s3, gs, az, file and memory.

Credentials and endpoints come from the store's ordinary environment variables and files, never from the URL, so that
the URL can be shown, logged and given to other processes. obstore's own retries are off: a caller that gets
BucketUnavailable must look before it writes again.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.bucket.aws_files import aws_settings
from penstock.bucket.file_bucket import FileBucket
from penstock.bucket.objects import Bucket, ListedObject, NoSuchObject, StoredObject
from penstock.bucket.store_errors import means_absent, means_beyond_the_end, translate
from penstock.bucket.write_times import LARGE_FACTOR, WriteTimes
from penstock.core.errors import BucketForbidden, BucketTimedOut, RequestError
from penstock.core.suggestions import suggestion
from penstock.core.types import Buffer

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, ObjectStore, RetryConfig

BUCKET_EXTRA = "pip install 'penstock-streams[bucket]'"

TIMEOUT_SECONDS = 30.0
"""For one request: 16 MiB on a line of 10 Mbit/s take half of it. On a slower line, later ones get more."""

CONNECT_SECONDS_MAX = 5.0
"""A store that does not accept a connection by then is unreachable."""

PAGE_OBJECTS = 1000
"""Objects in one answer to a list request: the most that S3 sends."""

SCHEMES = ("s3", "gs", "az", "file", "memory")
_EXAMPLE = "Write it like s3://bucket/prefix; credentials come from the environment."

_users: set[int] = set()
"""The process that uses obstore. A child that is forked from it inherits this, but not obstore's threads."""

_memory_lock = Lock()
_memory_stores: "dict[str, MemoryStore]" = {}
"""Of this process, by name. They live as long as it does."""


def open_bucket(url: str, *, timeout: float = TIMEOUT_SECONDS) -> Bucket:
    """Makes no request: errors of the store are raised by the first one. `timeout` is in seconds, for one request.

    Raises RequestError for an invalid URL, or if obstore is not installed.
    """
    parts = _parse(url)
    if parts.scheme == "file":
        return FileBucket(_folder(parts), timeout)
    prefix = unquote(parts.path).strip("/")
    _check_process()
    address = f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    try:
        return _OPENERS[parts.scheme](address, parts.netloc, prefix, timeout)
    except ModuleNotFoundError as error:
        raise RequestError(f"{parts.scheme}:// needs {error.name}, which is not installed", BUCKET_EXTRA) from error


def _check_process() -> None:
    """Without it, a request in a forked child would never end."""
    if not _users:
        _users.add(os.getpid())
    if os.getpid() not in _users:
        raise RuntimeError("this process was forked from one that uses an object store: start a new one instead")


def _parse(url: str) -> SplitResult:
    """The messages never repeat a URL that may contain a secret."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise RequestError(f"the address of the store is not a valid URL: {error}", _EXAMPLE) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RequestError("the address of a store must not contain credentials or options", _EXAMPLE)
    if not parts.scheme:
        raise RequestError(
            f"{url!r} is not the URL of a store", f"For a directory: {Path(url or '.').absolute().as_uri()}"
        )
    if parts.scheme not in SCHEMES:
        raise RequestError(
            f"{parts.scheme}:// is not a supported kind of store", suggestion(parts.scheme, SCHEMES, "Use one of")
        )
    if parts.scheme != "file" and not parts.netloc:
        raise RequestError(f"{url!r} names no bucket", _EXAMPLE)
    return parts


def _folder(parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or path == Path("/"):
        raise RequestError(f"{parts.geturl()!r} is not the URL of a directory", "Write it like file:///srv/bucket.")
    return path


# How requests are sent. A request has one time-out from beginning to end, except for reads, which only must not stall.


@dataclass(frozen=True, slots=True)
class _Clients:
    """One store several times, with different time-outs."""

    timeout: float
    reads: "ObjectStore"
    writes: "ObjectStore"
    make: "Callable[[int], ObjectStore]"
    """For writes with so many times the usual time-out."""
    patient: "dict[int, ObjectStore]" = field(default_factory=dict)

    def writing(self, factor: int) -> "ObjectStore":
        if factor == 1:
            return self.writes
        if factor not in self.patient:
            self.patient[factor] = self.make(factor)
        return self.patient[factor]


def _clients(make: "Callable[[ClientConfig], ObjectStore]", timeout: float, base: "ClientConfig") -> _Clients:
    whole = timedelta(seconds=timeout)
    common: ClientConfig = {**base, "connect_timeout": timedelta(seconds=min(timeout, CONNECT_SECONDS_MAX))}
    return _Clients(
        timeout=timeout,
        reads=make({**common, "timeout": whole * LARGE_FACTOR, "read_timeout": whole}),
        writes=make({**common, "timeout": whole}),
        make=lambda factor: make({**common, "timeout": whole * factor}),
    )


def _no_retries() -> "RetryConfig":
    return {"max_retries": 0}


@contextmanager
def _settings_checked(url: str) -> Iterator[None]:
    """The environment is read when a store is created."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, ValueError) as error:
        problem = str(error).partition("\n")[0]
        raise RequestError(f"{url}: {problem}", "Check the environment variables of the store.") from error


def _open_s3(url: str, bucket: str, prefix: str, timeout: float) -> Bucket:
    from obstore.store import S3Store

    settings = aws_settings(os.environ)
    client: ClientConfig = {"allow_http": settings.allows_http}
    if settings.certificates is not None:
        client["root_certificate"] = settings.certificates

    def make(options: "ClientConfig") -> "ObjectStore":
        return S3Store(
            bucket,
            config=settings.config,
            client_options=options,
            retry_config=_no_retries(),
            credential_provider=settings.credentials,
        )

    with _settings_checked(url):
        return ObjectStoreBucket(url, prefix, _clients(make, timeout, client), "e_tag")


def _open_gs(url: str, bucket: str, prefix: str, timeout: float) -> Bucket:
    from obstore.store import GCSStore

    def make(options: "ClientConfig") -> "ObjectStore":
        return GCSStore(bucket, client_options=options, retry_config=_no_retries())

    with _settings_checked(url):  # objects are compared by generation
        return ObjectStoreBucket(url, prefix, _clients(make, timeout, {}), "version")


def _open_az(url: str, container: str, prefix: str, timeout: float) -> Bucket:
    from obstore.store import AzureStore

    def make(options: "ClientConfig") -> "ObjectStore":
        return AzureStore(container, client_options=options, retry_config=_no_retries())

    with _settings_checked(url):
        return ObjectStoreBucket(url, prefix, _clients(make, timeout, {}), "e_tag")


def _open_memory(url: str, name: str, prefix: str, timeout: float) -> Bucket:
    from obstore.store import MemoryStore

    with _memory_lock:
        store = _memory_stores.setdefault(name, MemoryStore())
    return ObjectStoreBucket(url, prefix, _Clients(timeout, store, store, lambda _: store), "e_tag")


_OPENERS: dict[str, Callable[[str, str, str, float], Bucket]] = {
    "s3": _open_s3,
    "gs": _open_gs,
    "az": _open_az,
    "memory": _open_memory,
}


class ObjectStoreBucket:
    """A `Bucket` on obstore."""

    def __init__(self, url: str, prefix: str, clients: _Clients, version: Literal["e_tag", "version"]) -> None:
        """`version`: what identifies the content of an object for a conditional write."""
        self.url = url
        self._base = f"{prefix}/" if prefix else ""
        self._clients = clients
        self._version = version
        self._has_answered = False
        self._times = WriteTimes(clients.timeout)

    def get(self, key: str) -> StoredObject:
        with self._translated(key):
            found = self._clients.reads.get(self._base + key)
            return StoredObject(bytes(found.bytes()), found.meta[self._version] or "")

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._translated(key):
            try:
                return bytes(self._clients.reads.get_range(self._base + key, start=start, length=length))
            except Exception as error:
                if means_beyond_the_end(error):
                    return b""
                raise

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        """One PUT of any size up to the store's limit (5 GB): a multipart upload would be create-only on some stores
        alone, and a crash would leave its parts behind, which no list shows.
        """
        # Joined, since obstore takes twice as long with a sequence, and a memory:// store would keep the buffers.
        data = b"".join(buffers)
        factor, began = self._times.factor(len(data)), time.monotonic()
        try:
            with self._translated(key):
                done = self._clients.writing(factor).put(self._base + key, data, mode="create")
        except BucketTimedOut:
            self._times.timed_out(len(data), factor)
            raise
        except NoSuchObject as error:  # a proxy's answer, or that of another server: nothing was looked for
            message = f"{self.url}: the store answered 404 Not Found when an object was to be created"
            raise BucketForbidden(
                message, "Check the bucket's name and the endpoint, and what is in between."
            ) from error
        self._times.done(len(data), time.monotonic() - began)
        return done[self._version] or ""

    def replace(self, key: str, data: bytes, version: str) -> str:
        with self._translated(key):
            if self._version == "version":
                done = self._clients.writes.put(self._base + key, data, mode={"version": version})
            else:
                done = self._clients.writes.put(self._base + key, data, mode={"e_tag": version})
            return done[self._version] or ""

    def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        paths = [self._base + key for key in keys]
        with self._translated(keys[0]):
            try:
                self._clients.writes.delete(paths)
            except FileNotFoundError as error:  # of Google and Azure, which may have skipped the rest
                if not means_absent(error):
                    raise
                self._delete_singly(paths)

    def _delete_singly(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._clients.writes.delete(path)
            except FileNotFoundError as error:
                if not means_absent(error):
                    raise

    def list(self, prefix: str) -> Iterator[ListedObject]:
        wanted = self._base + prefix
        folder = wanted.rpartition("/")[0]  # obstore lists whole folders
        with self._translated(prefix):
            for page in self._clients.reads.list(folder or None, chunk_size=PAGE_OBJECTS):
                for each in page:
                    if each["path"].startswith(wanted):
                        modified_us = int(each["last_modified"].timestamp() * 1e6)
                        version = each[self._version] or ""
                        yield ListedObject(each["path"][len(self._base) :], each["size"], version, modified_us)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        _check_process()
        try:
            yield
        except (BaseError, FileNotFoundError, NotImplementedError) as error:
            raise translate(error, self.url, key, self._has_answered) from error
        self._has_answered = True
