"""What may be changed over the segment port: everything, except what belongs to the worker's other parts."""

from penstock.core.errors import RequestError
from penstock.core.types import QUOTA
from penstock.protocol.segment import (
    CreateSegment,
    DeleteSegment,
    MergeSegments,
    Message,
    SealSegment,
    SetupAppend,
    TruncateSegment,
    UpdateAttribute,
)
from penstock.protocol.stored.names import CONNECTOR_PREFIX, COORDINATOR_PREFIX, OUTPUT_PREFIX, STAGING_PREFIX
from penstock.store.store import SegmentStore

_OWNED = {
    CONNECTOR_PREFIX: "its source writes it, and retention truncates it",
    OUTPUT_PREFIX: "its pipeline writes it, and retention truncates it",
    COORDINATOR_PREFIX: "the coordinator keeps its books in it",
}
_CHANGES = (
    CreateSegment,
    SetupAppend,
    SealSegment,
    TruncateSegment,
    DeleteSegment,
    MergeSegments,
    UpdateAttribute,
)
_STAGING = (CreateSegment, SetupAppend, DeleteSegment)
"""What the tasks of a pipeline do with segments of their own. To merge them is the coordinator's."""

_AGAINST_DAMAGE = (TruncateSegment, DeleteSegment)
"""What an operator does with a segment that cannot be read, whoever it belongs to."""

_HINT = "You can read it, but not change it; use a name without this prefix."


def check_change(store: SegmentStore, request: Message) -> None:
    """Raises RequestError for a change of a segment that is not the caller's."""
    if not isinstance(request, _CHANGES):
        return
    names = (request.target, request.source) if isinstance(request, MergeSegments) else (request.segment,)
    for name in names:
        if isinstance(request, _AGAINST_DAMAGE) and store.is_damaged(name):
            continue
        owner = next((why for prefix, why in _OWNED.items() if name.startswith(prefix)), None)
        if owner is not None:
            raise RequestError(f"segment {name!r} cannot be changed over this port: {owner}", _HINT)
        if name.startswith(STAGING_PREFIX) and not isinstance(request, _STAGING):
            raise RequestError(f"segment {name!r} is staged: its pipeline merges it, or lets it go", _HINT)


def attributes_of_new(name: str) -> dict[bytes, int]:
    """Quotas bind what comes in, never the way out."""
    return {QUOTA: 2**63 - 1} if name.startswith(STAGING_PREFIX) else {}
