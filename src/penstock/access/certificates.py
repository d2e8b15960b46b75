"""The names with which a client's certificate identifies it (mutual TLS)."""

import ssl
from collections.abc import Iterator, Mapping
from typing import Any


def certificate_names(connection: ssl.SSLObject | ssl.SSLSocket | None) -> frozenset[str]:
    """The common name, DNS names and e-mail addresses in the client's certificate; none without a verified one.
    `connection`: what a transport has as "ssl_object".
    """
    return frozenset() if connection is None else frozenset(_names(connection.getpeercert() or {}))


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (value for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email"))
