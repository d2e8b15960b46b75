"""Who may connect to a server: the option `auth` of connectors that listen."""

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from penstock.access.principals import certificate_names
from penstock.connectors.api import Options

CHALLENGE = "www-authenticate"
"""The header of a 401: which credentials are accepted."""

UNAUTHORIZED = "unauthorized_connections"
"""The count of connections that `auth` has refused."""

LINE_BYTES_MAX = 8 << 10
"""The longest line with credentials that a TCP client may send."""
LINE_SECONDS_MAX = 10.0
"""How long a TCP client may take to send it."""

_Credential = Annotated[str, Field(min_length=1, pattern=r"^[\x21-\x7e]+$")]
_User = Annotated[str, Field(min_length=1, pattern=r"^[^:\x00-\x1f\x7f]+$")]
_Password = Annotated[str, Field(min_length=1)]


class ServerAuth(Options):
    """A client must satisfy both that are set: the certificate, and the token or password. Take secrets from the
    environment or from files: `${NAME}`, `${file:PATH}`.
    """

    bearer: tuple[_Credential, ...] = ()
    """Tokens: a client sends one of them as `Authorization: Bearer TOKEN`."""
    basic: dict[_User, _Password] = Field(default_factory=dict)
    """User names and their passwords: a client sends `Authorization: Basic …`."""
    names: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Common names, DNS names or e-mail addresses of client certificates: a client needs a certificate with one of
    them. Needs `tls` with `client_ca`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.bearer or self.basic or self.names):
            raise ValueError("auth is empty: it needs bearer, basic or names")
        return self

    @property
    def needs_credentials(self) -> bool:
        """Whether a client must send a token or a password."""
        return bool(self.bearer or self.basic)

    @property
    def challenge(self) -> str:
        return ", ".join([*(["Bearer"] if self.bearer else []), *(['Basic realm="penstock"'] if self.basic else [])])

    def accepts_certificate(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a verified certificate is accepted, as `SSLSocket.getpeercert` returns it."""
        return self.accepts_names(certificate_names(certificate))

    def accepts_names(self, names: Iterable[str]) -> bool:
        """Whether a verified certificate with these names is accepted."""
        return not self.names or not {*self.names}.isdisjoint(names)

    def accepts(self, authorization: str) -> bool:
        """Whether the header's value is accepted; "" if there is no header. Takes the same time whatever is wrong."""
        if not self.needs_credentials:
            return True
        scheme, _, given = authorization.strip().partition(" ")
        match scheme.lower():
            case "bearer":
                return _is_among(given.strip(), self.bearer)
            case "basic":
                pairs = [f"{user}:{password}" for user, password in self.basic.items()]
                return _is_among(_decoded(given.strip()), pairs)
        return False


def check_needs(auth: ServerAuth | None, *, has_client_ca: bool) -> None:
    """Check the options of a server. Raises ValueError."""
    if auth is not None and auth.names and not has_client_ca:
        raise ValueError("auth.names needs tls.client_ca: without it clients have no certificate")


def _is_among(given: str, known: Iterable[str]) -> bool:
    """Compares with all of them in constant time, and does not reveal their lengths."""
    digest = sha256(given.encode()).digest()
    found = [hmac.compare_digest(digest, sha256(one.encode()).digest()) for one in known]
    return any(found)


def _decoded(given: str) -> str:
    """`user:password`; "" if it is not valid, which matches no one."""
    try:
        return base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
