"""Whether a program is let in, and for which sources.

A HELLO's cookie is the worker's cookie or the token of a principal with the role `write` for the source. A client
certificate that is listed does without either. The worker's cookie, or a worker without one, admits to every source,
except for what a principal's token or a listed certificate limits its owner to. A worker without a cookie that checks
certificates admits listed ones only: whoever is revoked must not get more than before.
"""

from collections.abc import Sequence
from hmac import compare_digest

from penstock.access.file import AccessControl
from penstock.access.principals import ANONYMOUS, EVERYONE, Principal, Role
from penstock.access.refusals import Port, Refusals
from penstock.core.errors import Forbidden, ProtocolError, Unauthenticated


class ProgramAccess:
    """Of one session."""

    def __init__(self, access: AccessControl, cookie: bytes, refusals: Refusals) -> None:
        """Refusals are counted here; the session logs the error that it ends with."""
        self._access = access
        self._refusals = refusals
        self._cookie = cookie
        self._token = ""
        self.certificate_names: Sequence[str] = ()
        self.principal: Principal | None = None
        """None: the worker's cookie, or nothing, was asked for."""

    def check_cookie(self, cookie: bytes) -> None:
        """Raises ProtocolError, which never reveals a cookie or a token."""
        knows_cookie = bool(self._cookie) and compare_digest(cookie, self._cookie)  # in constant time
        self._token = "" if knows_cookie else cookie.decode("utf-8", "replace")
        found = self._identify()
        if self._cookie and not knows_cookie:
            if found is None or found is EVERYONE:  # without access control the cookie alone decides
                self._refusals.count(Port.CONNECTOR)
                raise ProtocolError("the cookie is wrong")
            self.principal = found
            return
        if found is None and self._token:  # a cookie where none is needed: not a token
            self._token = ""
            found = self._identify()
        if found is None and self.certificate_names and not self._cookie:
            self._refusals.count(Port.CONNECTOR)
            raise ProtocolError("the certificate is not listed: penstock access add NAME --role write --certificate …")
        self.principal = found if found is not None and found is not EVERYONE and found.name != ANONYMOUS else None

    def check_source(self, name: str) -> None:
        """Raises Forbidden."""
        if self.principal is None:
            return
        try:
            self.principal.check(Role.WRITE, name, f"source {name!r}")
        except Forbidden:
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
