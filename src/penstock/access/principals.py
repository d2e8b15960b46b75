"""Who may do what: principals, their roles, and the names that these apply to. Pure.

A role includes those before it. It applies to the names of sources, pipelines and segments that start with one of the
principal's prefixes; what concerns the whole worker needs a principal without prefixes.

    read     status and metrics, the data of sources, pipelines and segments
    write    append to sources and segments, truncate and delete the segments
    deploy   start, reset and drop pipelines, bind sinks, apply an application, replay dead letters, bury events
    admin    everything else: delete what belongs to the system, raise quotas
    shard    what shards of a cluster ask of each other; only the cluster's secret grants it
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from penstock.core.errors import Forbidden, QuotaReached, Unauthenticated

ANONYMOUS = "anonymous"
"""The principal of whoever presents neither a token nor a certificate that is listed; there is none by default."""


WHOLE_WORKER = ""
"""The name that stands for everything: only a principal without prefixes has a role on it."""


class Role(Enum):
    READ = "read"
    WRITE = "write"
    DEPLOY = "deploy"
    ADMIN = "admin"
    SHARD = "shard"
    """Of the other shards of a cluster: what they ask is not for people."""

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}
GRANTED = tuple(role for role in Role if role is not Role.SHARD)
"""Those that an access file can grant."""


_SEGMENT_BYTES = 1024
"""Of a quota, for each segment: about as much as an empty one takes of the worker's memory."""
_SEGMENTS_MIN = 100
"""In addition: a small quota must still be enough for a few sources, each with several segments."""


def count_max(quota_bytes: int) -> int:
    """How many segments a quota allows, and how many streams: each takes memory of the worker, however empty it is."""
    return _SEGMENTS_MIN + quota_bytes // _SEGMENT_BYTES


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    role: Role
    prefixes: tuple[str, ...] = ("",)
    quota_bytes: int | None = None
    """What its sources and segments may store together, and each of them; None: the worker's default for each."""

    def check_count(self, count: int, new: int = 1) -> None:
        """Raises QuotaReached if it has this number of segments, and its quota does not allow so many new ones: each
        takes memory of the worker, however empty it is.
        """
        if self.quota_bytes is None:
            return
        limit = count_max(self.quota_bytes)
        if count + new > limit:
            raise QuotaReached(
                f"{self.name!r} has {count} segments: its quota of {self.quota_bytes} bytes allows {limit}"
            )

    def may(self, role: Role, name: str = "") -> bool:
        """`name`: of a source, pipeline or segment; without one, the worker as a whole."""
        return self.role.includes(role) and name.startswith(self.prefixes)

    def check(self, role: Role, name: str = "", what: str = "") -> None:
        """Raises Forbidden. `what` names the thing in the message, as in "pipeline 'counts'"."""
        if not self.may(role, name):
            limit = "" if self.prefixes == ("",) else f" for names that start with {' or '.join(self.prefixes)}"
            about = f" on {what or repr(name)}" if what or name else " on the whole worker" if limit else ""
            raise Forbidden(f"{self.name!r} has the role {self.role.value}{limit}; this needs {role.value}{about}")


EVERYONE = Principal("everyone", Role.ADMIN)
"""The principal of all clients of a server without access control."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the access file: a principal, and what it authenticates with."""

    principal: Principal
    token_digest: str | None = None
    certificate: str | None = None
    """A name in the client's certificate (mutual TLS): its common name, a DNS name or an e-mail address."""


@dataclass(frozen=True, slots=True)
class Access:
    """All grants at one time."""

    _by_digest: dict[str, Principal] = field(default_factory=dict)
    _by_certificate: dict[str, Principal] = field(default_factory=dict)
    _anonymous: Principal | None = None

    @classmethod
    def of(cls, grants: Iterable[Grant]) -> Self:
        grants = list(grants)
        return cls(
            {one.token_digest: one.principal for one in grants if one.token_digest is not None},
            {one.certificate: one.principal for one in grants if one.certificate is not None},
            next((one.principal for one in grants if one.principal.name == ANONYMOUS), None),
        )

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:
        """A token counts before a certificate. Raises Unauthenticated."""
        if token:
            found = self._by_digest.get(digest(token))
            if found is None:
                raise Unauthenticated("the token is not valid, or was revoked")
            return found
        found = next((self._by_certificate[name] for name in certificate_names if name in self._by_certificate), None)
        found = found or self._anonymous
        if found is None:
            raise Unauthenticated("no token was sent")
        return found


def digest(token: str) -> str:
    """Tokens are random and long, so that a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


_ALTERNATIVE_NAMES = ("DNS", "email")


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Common names, DNS names and e-mail addresses in a verified certificate, as `SSLSocket.getpeercert` returns it:
    None or empty for a client without one.
    """
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVE_NAMES]
    return tuple(dict.fromkeys([*subject, *others]))
