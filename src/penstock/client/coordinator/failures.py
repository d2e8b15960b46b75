"""A worker's refusals as penstock's own errors."""

from typing import Any

from penstock.client.segments.failures import Interrupted
from penstock.core import errors
from penstock.core.errors import PenstockError, ProtocolError, SegmentTruncated, Unavailable


def error_of(status: int, body: Any) -> PenstockError:
    """The error that a worker tells of; Interrupted if it may be over in a moment."""
    match body:
        case {"error": str(text), "hint": str(hint), "kind": str(kind)}:
            return _made(_kind(kind), text, hint)
    return ProtocolError(f"the worker answered {status} with {body!r:.200}", "Is it a worker of this version?")


def _kind(name: str) -> type[PenstockError]:
    """An error that this version does not know is one the caller cannot mend by trying again."""
    kind = getattr(errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, PenstockError)
    return kind if known else errors.RequestError  # type: ignore[return-value]  # `known` says that it is one


def _made(kind: type[PenstockError], text: str, hint: str) -> PenstockError:
    if issubclass(kind, SegmentTruncated):
        return kind(text, 0, hint)
    return (Interrupted if kind is Unavailable else kind)(text, hint)
