"""Bytes as text, in base64."""

import base64
import binascii
from typing import Literal

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    AboutInterceptor,
    BadBytes,
    BadRecord,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    RecordStage,
    ValueStage,
)

_BLANKS = b" \t\r\n"
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_TO_URL = bytes.maketrans(b"+/", b"-_")


class Base64Options(Options):
    alphabet: Literal["standard", "url"] = "standard"
    """The characters of 62 and 63: `+/`, or `-_` (RFC 4648, section 5). Only this one is decoded."""
    padding: bool = True
    """Whether `=` fills the last four characters. Under `in`, both are decoded."""


class Base64(Interceptor[Base64Options]):
    about = AboutInterceptor(
        "base64",
        "Decodes base64 under `in`, whose blanks and line ends are skipped, and encodes it under `out`.",
        Base64Options,
    )

    def incoming(self, *, framed: bool = False) -> Incoming:
        return RecordStage(self._decoded) if framed else Base64Stream(self)

    def outgoing(self) -> OutgoingInterceptor:
        return ValueStage(self._encoded)

    def _encoded(self, value: bytes) -> bytes:
        found = base64.b64encode(value)
        found = found if self.options.alphabet == "standard" else found.translate(_TO_URL)
        return found if self.options.padding else found.rstrip(b"=")

    def _decoded(self, record: bytes) -> bytes:
        text = record.translate(None, _BLANKS)
        return self.decoded(text + b"=" * (-len(text) % 4))

    def decoded(self, text: bytes) -> bytes:
        """Of whole groups of four characters, without blanks. Raises BadRecord."""
        if self.options.alphabet == "url":
            if b"+" in text or b"/" in text:
                raise BadRecord("is not valid base64 in the alphabet for URLs")
            text = text.translate(_TO_STANDARD)
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error as error:
            raise BadRecord(f"is not valid base64: {error}") from None


class Base64Stream(Incoming):
    """Of a stream of bytes that may be cut anywhere. Values may follow each other, also after padding."""

    is_transform = True

    def __init__(self, base64: Base64) -> None:
        self._base64 = base64
        self._rest = b""
        """Fewer than four characters."""

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        text = self._rest + data.translate(None, _BLANKS)
        whole = len(text) & ~3
        found = self._decoded(text[:whole])
        self._rest = text[whole:]
        return found

    def finish(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return self._decoded(rest + b"=" * (-len(rest) % 4))

    def _decoded(self, text: bytes) -> list[bytes]:
        found, start = [], 0
        try:
            while start < len(text):
                padding = text.find(b"=", start)
                end = len(text) if padding < 0 else padding // 4 * 4 + 4
                found.append(self._base64.decoded(text[start:end]))
                start = end
        except BadRecord as bad:
            self._rest = b""
            raise BadBytes(str(bad), text[start:], found) from None
        return [b"".join(found)] if found else []
