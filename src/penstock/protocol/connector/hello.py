"""What must be right about a HELLO before the rest of it is looked at."""

from dataclasses import dataclass, field
from hmac import compare_digest

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.connector.fields import Bytes, Text
from penstock.protocol.connector.frames import MIGRATING_VERSION, SINK_VERSION, SOURCE_VERSION
from penstock.protocol.connector.roles import Use

VERSIONS = {Use.SOURCE: (SOURCE_VERSION, MIGRATING_VERSION), Use.SINK: (SINK_VERSION,)}
"""What an initiator may say. "Exact matching will be enforced." """

_VERSION, _COOKIE = Text("version"), Bytes("cookie")


@dataclass(frozen=True, slots=True)
class HelloCheck:
    """An acceptor's expectation. An empty cookie means that none is configured, and then none may be given: "it'd be
    better to fail loudly rather than continue silently".
    """

    use: Use
    cookie: bytes = field(default=b"", repr=False)

    def check(self, body: Buffer) -> None:
        """ProtocolError for a wrong version, or else for a wrong cookie; looks no further. Never tells the cookie."""
        try:
            self._check_cookie(body, self._check_version(body))
        except ProtocolError as error:
            raise ProtocolError(f"HELLO: {error}") from None

    def _check_version(self, body: Buffer) -> int:
        version, at = _VERSION.read(body, 0)
        if version not in VERSIONS[self.use]:
            raise ProtocolError(f"version {version[:32]!r} is not spoken here, only {' and '.join(VERSIONS[self.use])}")
        return at

    def _check_cookie(self, body: Buffer, at: int) -> None:
        cookie, _ = _COOKIE.read(body, at)
        if not compare_digest(cookie, self.cookie):  # in constant time
            raise ProtocolError("the cookie is wrong" if self.cookie else "there is a cookie, and none is expected")
