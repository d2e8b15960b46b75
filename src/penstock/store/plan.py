"""Plans what appends, merges and attribute updates will write, and checks it before anything is changed."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from penstock.core.errors import ConditionFailed, Damaged, LimitExceeded, NoSuchSegment, QuotaReached, SegmentSealed
from penstock.core.types import NO_VALUE, QUOTA, Buffer, Offset
from penstock.store.operations import NO_WRITER, Append, Merge, SetAttribute
from penstock.store.record import HEAD_CHECKSUM_BYTES, checksum, head_checksum
from penstock.store.segment import Segment
from penstock.store.settings import StoreSettings
from penstock.store.table import SegmentTable


class Addition(NamedTuple):
    """Buffers to append to a segment as one, with the head of the append."""

    segment: str
    buffers: Sequence[Buffer]
    head: Buffer = b""


class PlannedAppend(NamedTuple):
    """An append, and the bytes that its record must contain for it, `length` in total."""

    operation: Append
    buffers: list[Buffer]
    length: int


class AttributeUpdate(NamedTuple):
    """Set `key` of `segment` to `value` if it is `expected` now. None: any value; NO_VALUE: absent."""

    segment: str
    key: bytes
    value: int
    expected: int | None = None


def find(table: SegmentTable, name: str) -> Segment:
    segment = table.named(name)
    if segment is None:
        raise NoSuchSegment(f"segment {name!r} not found")
    return segment


def check_writable(segment: Segment) -> None:
    if segment.sealed:
        raise SegmentSealed(f"segment {segment.name!r} is sealed at {segment.length}")
    if segment.damage is not None:
        raise Damaged(f"segment {segment.name!r} is refused: {segment.damage.reason}")


def plan_append(
    segment: Segment,
    buffers: Sequence[Buffer],
    head: Buffer,
    settings: StoreSettings,
    writer: bytes = NO_WRITER,
    number: int = 0,
) -> PlannedAppend:
    """Plan an append. Raises an error unless the segment is writable and its quota has room."""
    length = sum(map(len, buffers))
    _check_quota(segment, length, settings)
    head_length = len(head) and HEAD_CHECKSUM_BYTES + len(head)
    stored = [head_checksum(head), head, *buffers] if head_length else [*buffers]
    operation = Append(segment.id, segment.length, writer, number, head_length, length, checksum(stored))
    return PlannedAppend(operation, stored, head_length + length)


def _check_quota(segment: Segment, length: int, settings: StoreSettings) -> None:
    if length > settings.append_bytes_max:
        raise LimitExceeded(
            f"{length} bytes in one append; the limit is {settings.append_bytes_max} (append_bytes_max)"
        )
    quota = (segment.attributes or {}).get(QUOTA, settings.segment_quota_bytes)
    if quota is None:
        return
    if length > quota:
        raise LimitExceeded(f"an append of {length} bytes can never fit: segment {segment.name!r} may hold {quota}")
    used = segment.length - segment.start
    if used + length > quota:
        raise QuotaReached(f"segment {segment.name!r} has {used} of {quota} bytes: no room for {length} more")


def plan_merges(table: SegmentTable, merges: Sequence[tuple[str, str]]) -> list[Merge]:
    """Plan each (target, source) in order; several sources of one target are placed one after another."""
    sources = {source for _, source in merges}
    if len(sources) < len(merges) or sources & {target for target, _ in merges}:
        raise ConditionFailed("a segment can be merged once, and not be a target as well")
    lengths: dict[int, int] = {}
    planned = []
    for target_name, source_name in merges:
        target, source = find(table, target_name), find(table, source_name)
        check_writable(target)
        _check_mergeable(source)
        offset = lengths.get(target.id, target.length)
        lengths[target.id] = offset + source.length
        planned.append(Merge(target.id, Offset(offset), source.id, source.length))
    return planned


def _check_mergeable(source: Segment) -> None:
    if source.damage is not None:
        raise Damaged(f"segment {source.name!r} is refused: {source.damage.reason}")
    if source.start:
        raise ConditionFailed(f"segment {source.name!r} is truncated and cannot be merged")


def plan_note(table: SegmentTable, name: str, data: bytes) -> Append:
    segment = find(table, name)
    check_writable(segment)
    return Append(segment.id, segment.length, NO_WRITER, 0, 0, len(data), checksum([data]))


def plan_updates(table: SegmentTable, updates: Sequence[AttributeUpdate], limit: int) -> list[SetAttribute]:
    new: dict[str, set[bytes]] = {}
    for update in updates:
        attributes = find(table, update.segment).attributes or {}
        if update.expected is not None and attributes.get(update.key, NO_VALUE) != update.expected:
            raise ConditionFailed(f"the attribute of segment {update.segment!r} is not {update.expected}")
        if update.key not in attributes:
            new.setdefault(update.segment, set()).add(update.key)
    for name, keys in new.items():
        check_attributes(name, [*(find(table, name).attributes or {}), *keys], limit)
    return [SetAttribute(find(table, u.segment).id, u.key, u.value) for u in updates]


def check_attributes(name: str, keys: Collection[bytes], limit: int) -> None:
    if len(keys) > limit:
        raise LimitExceeded(f"{len(keys)} attributes for segment {name!r}; the limit is {limit}")
