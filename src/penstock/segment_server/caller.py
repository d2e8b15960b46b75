"""Who is at the other end of a connection, and what it may do with which segment.

    read                          GetSegmentInfo, GetAttribute, ReadSegment, LocateSegment; reading tables
    write                         every change of a segment of one's own: one without a prefix of the system's
    deploy on the pipeline        creating and appending to what the tasks of its last generation stage; deleting what
                                  any of its tasks have staged
    admin                         changing a quota; truncating and deleting what is damaged, whatever it belongs to;
                                  reading `coordinator/…`
    nobody                        any other change of `connector/…`, `pipeline/…`, `staging/…` and `coordinator/…`

A role must hold for the segment's `access_name`. A connection belongs to one principal as long as it lasts, so that its
appends, which carry no token, need no check of their own.
"""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

from penstock.access.delegation import delegated
from penstock.access.file import AccessControl
from penstock.access.principals import Principal, Role
from penstock.core.errors import Forbidden, LimitExceeded, QuotaReached, RequestError, Unauthenticated
from penstock.core.logs import audit_log, quoted
from penstock.core.types import QUOTA
from penstock.protocol.segment import (
    CreateSegment,
    CreateTable,
    CreateTransientSegment,
    DeleteSegment,
    DeleteTable,
    GetAttribute,
    GetSegmentInfo,
    LocateSegment,
    MergeSegments,
    Message,
    ReadSegment,
    ReadTable,
    ReadTableDelta,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SetupAppend,
    TruncateSegment,
    UpdateAttribute,
    UpdateTable,
)
from penstock.protocol.stored.names import (
    CONNECTOR_PREFIX,
    COORDINATOR_PREFIX,
    OUTPUT_PREFIX,
    STAGING_PREFIX,
    InputOf,
    StagedFor,
    access_name,
)
from penstock.store.store import SegmentStore
from penstock.store.table import Measure

_OWNED = {
    CONNECTOR_PREFIX: "its source writes it, and retention truncates it",
    OUTPUT_PREFIX: "its pipeline writes it, and retention truncates it",
    COORDINATOR_PREFIX: "it is the coordinator's ledger",
}
_Read: TypeAlias = (
    ReadSegment
    | LocateSegment
    | GetSegmentInfo
    | GetAttribute
    | ReadTable
    | ReadTableKeys
    | ReadTableEntries
    | ReadTableDelta
)
_Change: TypeAlias = (
    CreateSegment
    | CreateTransientSegment
    | SetupAppend
    | SealSegment
    | TruncateSegment
    | DeleteSegment
    | MergeSegments
    | UpdateAttribute
    | CreateTable
    | DeleteTable
    | UpdateTable
    | RemoveTableKeys
)
_STAGING = (CreateSegment, SetupAppend, DeleteSegment)
"""What the tasks of a pipeline do with segments of their own. Only the coordinator merges them."""

_AGAINST_DAMAGE = (TruncateSegment, DeleteSegment)
"""What an operator does with a segment that cannot be read, whatever it belongs to."""

_NO_QUOTA = 2**63 - 1
_HINT = "Write to a segment of your own: any name without this prefix."
_TWO_PRINCIPALS = "Use a connection for each principal."


CheckStaging: TypeAlias = Callable[[str], None]
"""Raises Fenced for the name of a segment that no running task stages."""


class Caller:
    def __init__(self, store: SegmentStore, access: AccessControl, check_staging: CheckStaging) -> None:
        self._store = store
        self._check_staging = check_staging
        self._access = access
        self._principal: Principal | None = None
        self._token = ""
        self.certificate_names: Sequence[str] = ()

    def __str__(self) -> str:
        return "an unauthenticated client" if self._principal is None else repr(self._principal.name)

    @property
    def is_authenticated(self) -> bool:
        return self._principal is not None

    def check(self, request: Message) -> None:
        """Raises Unauthenticated, Forbidden, Fenced, and RequestError for a change of a segment that belongs to the
        system.
        """
        if isinstance(request, _Read):
            name = request.segment
            role = Role.ADMIN if name.startswith(COORDINATOR_PREFIX) else Role.READ
            principal = self._identify(request.token)
            if not principal.may(role, access_name(name)):  # before the text of a refusal is made
                principal.check(role, access_name(name), f"segment {name!r}")
        elif isinstance(request, _Change):
            self._check_change(self._identify(request.token), request)

    def audit(self, segment: str, what: str) -> None:
        """Log that data of a source, an output or the ledger was given up, which only an administrator may do."""
        if segment.startswith(tuple(_OWNED)) and self._principal is not None:
            audit_log.info("%s on the segment port: %s %s: done", quoted(self._principal.name), what, quoted(segment))

    def is_current(self) -> bool:
        """False once the principal was revoked, or its role or prefixes have changed."""
        if self._principal is None:
            return True
        try:
            return self._access.principal(delegated(self._token), self.certificate_names) == self._principal
        except Unauthenticated:
            return False

    def check_count(self, segment: str) -> None:
        """Before it creates the segment. Raises QuotaReached if it has too many."""
        if self._principal is not None and self.has_quota and not self._store.exists(segment):
            self._principal.check_count(self._measure(segment).count)

    def attributes_of_new(self, segment: str) -> dict[bytes, int]:
        """The attributes of a segment that it creates. Quotas limit input, never output."""
        if segment.startswith(STAGING_PREFIX):
            return {QUOTA: _NO_QUOTA}
        quota = None if self._principal is None else self._principal.quota_bytes
        return {} if quota is None else {QUOTA: quota}

    @property
    def has_quota(self) -> bool:
        return self._principal is not None and self._principal.quota_bytes is not None

    def check_room(self, segment: str, size: int) -> None:
        """Raises QuotaReached if all that the principal's names contain would exceed its quota, LimitExceeded for an
        append that exceeds it alone. What its tasks have staged is measured apart, by the same quota.
        """
        principal = self._principal
        if principal is None or principal.quota_bytes is None:
            return
        quota, stored = principal.quota_bytes, self._measure(segment).size
        verb = "staged" if segment.startswith(STAGING_PREFIX) else "stored"
        if size > quota:
            raise LimitExceeded(f"an append of {size} bytes can never fit: {principal.name!r} may store {quota}")
        if stored + size > quota:
            raise QuotaReached(f"{principal.name!r} has {verb} {stored} of {quota} bytes: no room for {size} more")

    def _measure(self, segment: str) -> Measure:
        """Counts all that the principal has staged, if the segment is staged; otherwise all that it has stored."""
        return self._staged if segment.startswith(STAGING_PREFIX) else self._stored

    @cached_property
    def _stored(self) -> Measure:
        return self._store.table.measure(InputOf(self._prefixes))

    @cached_property
    def _staged(self) -> Measure:
        return self._store.table.measure(StagedFor(self._prefixes))

    @property
    def _prefixes(self) -> tuple[str, ...]:
        assert self._principal is not None  # who has none has no quota
        return self._principal.prefixes

    def check_merge(self, target: str, source: str) -> None:
        """Raises QuotaReached if a principal with a quota would pass it; the store itself does not limit merges."""
        if self._principal is None or self._principal.quota_bytes is None:
            return
        quota = self._store.attribute(target, QUOTA)
        size = sum(self._store.length(name) - self._store.info(name).start for name in (target, source))
        if quota is not None and size > quota:
            raise QuotaReached(f"segment {target!r} may hold {quota} bytes, but would have {size}")

    def _identify(self, token: str) -> Principal:
        if self._principal is not None and token == self._token:
            return self._principal
        found = self._access.principal(delegated(token, time.time()), self.certificate_names)
        if self._principal is not None and found != self._principal:
            raise Forbidden(f"this connection is that of {self}, not of {found.name!r}", _TWO_PRINCIPALS)
        self._principal, self._token = found, token
        return found

    def _check_change(self, principal: Principal, request: _Change) -> None:
        names = (request.target, request.source) if isinstance(request, MergeSegments) else (request.segment,)
        for name in names:
            what = f"segment {name!r}"
            if name.startswith(STAGING_PREFIX) and isinstance(request, _STAGING):
                principal.check(Role.DEPLOY, access_name(name), what)
                if not isinstance(request, DeleteSegment):
                    self._check_staging(name)
                continue
            principal.check(Role.WRITE, access_name(name), what)
            if not name.startswith((*_OWNED, STAGING_PREFIX)):
                continue
            if not (isinstance(request, _AGAINST_DAMAGE) and self._store.is_damaged(name)):
                raise RequestError(_why_not(name), _HINT)
            principal.check(Role.ADMIN, access_name(name), what)
        if _changes_quota(request):
            principal.check(Role.ADMIN, access_name(names[0]), f"segment {names[0]!r} to change its quota")


def _why_not(name: str) -> str:
    owner = next((why for prefix, why in _OWNED.items() if name.startswith(prefix)), None)
    if owner is None:
        return f"segment {name!r} is staged: its pipeline merges it, or deletes it"
    return f"segment {name!r} cannot be changed over this port: {owner}"


def _changes_quota(request: _Change) -> bool:
    match request:
        case UpdateAttribute():
            return request.attribute_id == QUOTA
        case MergeSegments():
            return any(update.attribute_id == QUOTA for update in request.updates)
        case _:
            return False
