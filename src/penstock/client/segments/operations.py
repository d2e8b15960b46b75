"""Every operation on segments, without I/O: a generator of calls that is sent the calls' results, and returns its own.

A request lost with its connection is repeated on the next one. That is safe for info, reading, sealing, truncating and
setting an attribute unconditionally. For the others:

- create: if the repeated request finds the segment, the first one is assumed to have created it;
- delete: if it finds no segment, the first one is assumed to have removed it;
- a conditional attribute update, a merge: not repeated. The hint of Unavailable names what to check.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast

from penstock.client.segments.failures import (
    ANY,
    AttributeUpdate,
    Expected,
    Interrupted,
    Key,
    ReadResult,
    SegmentInfo,
    error_of,
    key_bytes,
)
from penstock.core import errors
from penstock.core.errors import PenstockError, ProtocolError, Unavailable
from penstock.core.types import NO_VALUE, QUOTA
from penstock.protocol import segment as wire
from penstock.protocol.segment import VERSIONED, Failure, Reply, Request

# One request and its reply, over as many connections as needed.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request is repeated when its reply is lost with the connection, since most are idempotent. Two kinds are not:

    `done_when_repeated`: the repeated one fails with this error if the first one succeeded; that counts as success.
    `unknown_hint`: it must not be repeated; the hint names what the caller can check instead.
    """

    request: Request
    reply: type[Reply]
    result: Callable[[Any], T]
    wait_seconds: float = 0.0
    """How much longer than usual the reply may take."""
    done_when_repeated: type[PenstockError] | None = None
    unknown_hint: str = ""


class Attempts(Generic[T]):
    """The attempts of one call."""

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self._perhaps_done = False

    def encode(self, request_id: int, token: str) -> bytes:
        # Every request has these two; the base class has no fields.
        return VERSIONED.encode(replace(cast("Any", self.call.request), request_id=request_id, token=token))

    def result(self, reply: Reply) -> T:
        """The caller's result. Raises the error for a failure; pass Interrupted on to `interrupted`."""
        if isinstance(reply, self.call.reply):
            return self.call.result(reply)
        if not isinstance(reply, Failure):
            raise ProtocolError(f"{type(reply).__name__} is not a reply to {type(self.call.request).__name__}")
        error = error_of(reply)
        if self._perhaps_done and self.call.done_when_repeated and isinstance(error, self.call.done_when_repeated):
            return self.call.result(reply)
        raise error

    def interrupted(self, error: Interrupted) -> Unavailable:
        """What to raise when the request may have been sent and no reply came."""
        self._perhaps_done = True
        if self.call.unknown_hint:
            request = type(self.call.request).__name__
            return Unavailable(f"it is unknown whether {request} was carried out: {error}", self.call.unknown_hint)
        return error


Operation: TypeAlias = Generator[Call[Any], Any, T]

TAIL_WAIT_SECONDS = 30.0
"""A read at the tail is answered within this time, data or not."""

_SET_TRIES_MAX = 100
"""Each retry means that another client changed the attribute in between; this many in a row are not chance."""

_CONDITION_UNKNOWN = (
    "Ask for the attribute: it is the new value if the update was done and nothing has changed it since."
)
_MERGE_UNKNOWN = "Ask for info of the source: if it is gone, the merge was done, and info of the target has its length."


def create(name: str, quota_bytes: int | None, exist_ok: bool) -> Operation[None]:
    if quota_bytes is not None and not 0 < quota_bytes < 2**63:
        raise errors.LimitExceeded(f"a quota of {quota_bytes} bytes is not between 1 and 2^63 - 1")
    request = wire.CreateSegment(name)
    try:
        yield Call(request, wire.SegmentCreated, _nothing, done_when_repeated=errors.SegmentExists)
    except errors.SegmentExists:
        if not exist_ok:
            raise
    if quota_bytes is not None:
        yield from set_attribute(name, QUOTA, quota_bytes, ANY)


def delete(name: str, missing_ok: bool) -> Operation[None]:
    request = wire.DeleteSegment(name)
    try:
        yield Call(request, wire.SegmentDeleted, _nothing, done_when_repeated=errors.NoSuchSegment)
    except errors.NoSuchSegment:
        if not missing_ok:
            raise


def info(name: str) -> Operation[SegmentInfo]:
    def result(reply: wire.SegmentInfo) -> SegmentInfo:
        if not reply.exists or reply.deleted:
            raise errors.NoSuchSegment(f"segment {name!r} not found")
        return SegmentInfo(reply.segment, reply.start_offset, reply.write_offset, reply.sealed)

    found: SegmentInfo = yield Call(wire.GetSegmentInfo(name), wire.SegmentInfo, result)
    return found


def seal(name: str) -> Operation[None]:
    yield Call(wire.SealSegment(name), wire.SegmentSealed, _nothing)


def truncate(name: str, offset: int) -> Operation[None]:
    yield Call(wire.TruncateSegment(name, offset), wire.SegmentTruncated, _nothing)


def read(name: str, offset: int, length: int, wait: bool) -> Operation[ReadResult]:
    """The protocol's reads wait at the tail; a read that must not wait is not sent there.
    A sealed segment is always read: it may end after the length, which counts durable bytes only.
    """
    if not wait:
        found = yield from info(name)
        if offset == found.length and not found.sealed:
            return ReadResult(memoryview(b""), at_tail=True, end_of_segment=False)
    request = wire.ReadSegment(name, offset, length)
    result: ReadResult = yield Call(request, wire.SegmentRead, _read_result, wait_seconds=TAIL_WAIT_SECONDS)
    return result


def attribute(name: str, key: Key) -> Operation[int | None]:
    def result(reply: wire.Attribute) -> int | None:
        return None if reply.value == NO_VALUE else reply.value

    value: int | None = yield Call(wire.GetAttribute(name, key_bytes(key)), wire.Attribute, result)
    return value


def set_attribute(name: str, key: Key, value: int, expected: Expected) -> Operation[bool]:
    """The protocol's update is always conditional: an unconditional one reads the value first, and retries if it
    changed.
    """
    _check_value(value)
    if expected is not ANY:
        done: bool = yield _update(name, key, value, expected, _CONDITION_UNKNOWN)
        return done
    for _ in range(_SET_TRIES_MAX):
        current = yield from attribute(name, key)
        if current == value or (yield _update(name, key, value, current, "")):
            return True
    raise errors.ConditionFailed(
        f"the attribute of {name!r} is being changed by others all the time", "Set it from one place only."
    )


def _update(name: str, key: Key, value: int, expected: int | None, unknown_hint: str) -> Call[bool]:
    def result(reply: wire.AttributeUpdated) -> bool:
        return reply.success

    before = NO_VALUE if expected is None else expected
    request = wire.UpdateAttribute(name, key_bytes(key), value, before)
    return Call(request, wire.AttributeUpdated, result, unknown_hint=unknown_hint)


def merge(target: str, source: str, updates: Iterable[AttributeUpdate]) -> Operation[int]:
    def result(reply: wire.SegmentsMerged) -> int:
        return reply.write_offset

    request = wire.MergeSegments(target, source, tuple(map(_wire_update, updates)))
    length: int = yield Call(request, wire.SegmentsMerged, result, unknown_hint=_MERGE_UNKNOWN)
    return length


def _wire_update(update: AttributeUpdate) -> wire.AttributeUpdate:
    _check_value(update.value)
    key, kinds = key_bytes(update.key), wire.AttributeUpdateKind
    if update.expected is ANY:
        return wire.AttributeUpdate(key, kinds.REPLACE, update.value, NO_VALUE)
    expected = NO_VALUE if update.expected is None else update.expected
    return wire.AttributeUpdate(key, kinds.REPLACE_IF_EQUALS, update.value, expected)


def _check_value(value: int) -> None:
    if value == NO_VALUE:
        raise errors.RequestError(
            f"an attribute cannot be {value}", "The protocol uses this value for an attribute that does not exist."
        )


def _nothing(_: object) -> None:
    return None


def _read_result(reply: wire.SegmentRead) -> ReadResult:
    return ReadResult(memoryview(reply.data), reply.at_tail, reply.end_of_segment)
