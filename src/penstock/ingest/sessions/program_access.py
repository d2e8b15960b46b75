"""Whether a program is let in, and for which sources.

A HELLO's cookie is the worker's cookie or the token of a principal with the role `write` for the source. A listed
client certificate needs neither. The worker's cookie, or a worker without one, gives access to every source, unless a
principal's token or a listed certificate restricts its owner. A worker without a cookie that verifies certificates
admits listed ones only: a revoked principal must not gain access.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest

from penstock.access.file import AccessControl
from penstock.access.principals import ANONYMOUS, EVERYONE, Principal, Role
from penstock.access.refusals import Port, Refusals
from penstock.core.errors import Forbidden, ProtocolError, Unauthenticated


class ProgramAccess:
    """The access of one session."""

    def __init__(self, access: AccessControl, cookie: bytes, refusals: Refusals) -> None:
        """Refusals are counted here; the session logs the error that it ends with."""
        self._access = access
        self._refusals = refusals
        self._cookie = cookie
        self._token = ""
        self.certificate_names: Sequence[str] = ()
        self.principal: Principal | None = None
        """None if the session is not limited to a principal."""

    def check_cookie(self, cookie: bytes) -> None:
        """Raises ProtocolError, which never reveals a cookie or a token."""
        knows_cookie = bool(self._cookie) and compare_digest(cookie, self._cookie)  # in constant time
        self._token = "" if knows_cookie else cookie.decode("utf-8", "replace")
        with self._counted():
            self.principal = self._with_cookie() if knows_cookie or not self._cookie else self._without_cookie()

    def _without_cookie(self) -> Principal:
        """The cookie is not the worker's: it must be a token, or the session must have a certificate."""
        found = self._identify()
        if found is None or found is EVERYONE:  # without access control the cookie alone decides
            raise ProtocolError("the cookie is wrong")
        return found

    def _with_cookie(self) -> Principal | None:
        """The cookie is the worker's, or the worker has none."""
        found = self._identify()
        if found is None and self._token:  # a cookie where none is needed: not a token
            self._token = ""
            found = self._identify()
        if found is None and self.certificate_names and not self._cookie:
            raise ProtocolError("the certificate is not listed: penstock access add NAME --role write --certificate …")
        return None if found is None or found is EVERYONE or found.name == ANONYMOUS else found

    def check_source(self, name: str) -> None:
        """Raises Forbidden."""
        if self.principal is not None:
            with self._counted():
                self.principal.check(Role.WRITE, name, f"source {name!r}")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except (ProtocolError, Forbidden):
            self._refusals.count(Port.CONNECTOR)
            raise

    def is_current(self) -> bool:
        """False once the principal was revoked, or its role or prefixes have changed."""
        return self.principal is None or self._identify() == self.principal

    def _identify(self) -> Principal | None:
        try:
            return self._access.principal(self._token, self.certificate_names)
        except Unauthenticated:
            return None
