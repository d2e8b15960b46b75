"""The names in a client's certificate."""

from collections.abc import Mapping
from typing import Any

_ALTERNATIVE_NAMES = ("DNS", "email")


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Its common names, DNS names and e-mail addresses, of what `SSLSocket.getpeercert` returns: a certificate that was
    verified. None, or empty, for a client without one.
    """
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVE_NAMES]
    return tuple(dict.fromkeys([*subject, *others]))
