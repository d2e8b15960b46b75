"""The certificates of a worker's ports, read again when their files change, so that a renewal needs no restart."""

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from penstock.core.errors import RequestError

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
"""Between two looks at the files, at most one for each new connection."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, clients prove their identity with a certificate of this authority."""

    cert: Path
    key: Path | None = None
    client_ca: Path | None = None

    def context(self, *, is_client_required: bool) -> ssl.SSLContext:
        """Raises RequestError for files that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED if is_client_required else ssl.CERT_OPTIONAL
        except OSError as error:  # SSLError is one
            names = ", ".join(map(str, self._named()))
            raise RequestError(f"the TLS files ({names}) cannot be used: {error}", "They must be PEM files.") from None
        return context

    def state(self) -> list[tuple[int, int, int] | None]:
        """Changes whenever a file does."""
        return [_state(file) for file in self._named()]

    def _named(self) -> list[Path]:
        return [file for file in (self.cert, self.key, self.client_ca) if file is not None]


class ReloadedContext(ssl.SSLContext):
    """For a server: every connection gets the certificates that the files contain when it begins. Files that cannot be
    used are logged, and the last good ones stay in use.
    """

    _files: TlsFiles
    _current: ssl.SSLContext

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(
        self, files: TlsFiles, *, is_client_required: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises RequestError for files that cannot be used."""
        self._files = files
        self._is_client_required = is_client_required
        self._clock = clock
        self._checked_at = clock()
        self._seen = files.state()
        self._current = files.context(is_client_required=is_client_required)

    @property
    def current(self) -> ssl.SSLContext:
        return self._current

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """What event loops call at the beginning of each connection."""
        self._reload_if_changed()
        return self._current.wrap_bio(*args, **kwargs)

    def _reload_if_changed(self) -> None:
        now = self._clock()
        if now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
        seen = self._files.state()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._current = self._files.context(is_client_required=self._is_client_required)
            log.info("the certificates have changed: new connections use %s", self._files.cert)
        except RequestError as error:
            log.error("the certificates stay as they were: %s", error)


def requires_certificate(context: ssl.SSLContext) -> bool:
    """Whether clients must have one."""
    current = context.current if isinstance(context, ReloadedContext) else context
    return current.verify_mode is ssl.CERT_REQUIRED


def expires_at(cert: Path) -> float | None:
    """When the first certificate in the PEM file expires, in seconds since 1970; None if it cannot be read.

    Python's ssl reports this for the certificates of peers only. In the DER form it is the second time of the first
    sequence that starts with one: Certificate { TBSCertificate { …, Validity { notBefore, notAfter }, … }, … }.
    """
    try:
        pem = cert.read_text()
        first = pem[pem.index(ssl.PEM_HEADER) : pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        (_, certificate), *_ = _elements(ssl.PEM_cert_to_DER_cert(first))
        (_, signed), *_ = _elements(certificate)
        inner = [[*_elements(content)] for tag, content in _elements(signed) if tag == _SEQUENCE]
        _, (tag, expiry) = next(one for one in inner if one and one[0][0] in _TIMES)
        at = datetime.strptime(expiry.decode(), _TIMES[tag])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return at.replace(tzinfo=UTC).timestamp()


_SEQUENCE = 0x30
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # the size of the size
            length = size & 0x7F
            size, at = int.from_bytes(der[at : at + length]), at + length
        yield tag, der[at : at + size]
        at += size


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
