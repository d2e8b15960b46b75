"""Ranges of segments in parts of about the same size, for many readers: contiguous, in order, on record ends."""

from collections.abc import Iterator, Sequence

from penstock.coordinator.messages import Range, Splits
from penstock.coordinator.reading.records import Records
from penstock.core.errors import DataLoss, RequestError

PARTS_MAX = 100_000
"""Each is a task of Spark's, and a line in our answer."""


def split(records: Records, ranges: Sequence[Range], parts: int, bytes_min: int, *, skip_lost: bool) -> Splits:
    """Raises DataLoss where bytes are gone, unless `skip_lost` lets them be passed over and told of."""
    if not 1 <= parts <= PARTS_MAX:
        raise RequestError(f"{parts} parts", f"Ask for 1 to {PARTS_MAX}.")
    there, lost = [], []
    for wanted in ranges:
        begin = min(_begin(records, wanted), wanted.end)
        if begin > wanted.start:
            lost.append(Range(wanted.segment, wanted.start, begin))
        if begin < wanted.end:
            there.append(Range(wanted.segment, begin, wanted.end))
    if lost and not skip_lost:
        raise _gone(lost[0])
    size = max(1, bytes_min, -(-sum(r.end - r.start for r in there) // parts))
    return Splits([part for r in there for part in _parts(records, r, size)], lost)


def _begin(records: Records, wanted: Range) -> int:
    """The first byte of it that is there. A segment that is not there has none."""
    end = records.end(wanted.segment)
    if not end:
        return wanted.end
    if wanted.end > end:
        raise RequestError(f"segment {wanted.segment!r} ends at {end}, before {wanted.end}")
    return max(wanted.start, records.begin(wanted.segment))


def _gone(lost: Range) -> DataLoss:
    text = f"the bytes {lost.start} to {lost.end} of segment {lost.segment!r} were removed before they were read"
    return DataLoss(text)


def _parts(records: Records, whole: Range, size: int) -> Iterator[Range]:
    """None is smaller than `size`, unless the whole is: what is left at the end goes to the last one."""
    start = whole.start
    for left in range((whole.end - start) // size, 1, -1):
        target = start + max(size, (whole.end - start) // left)
        end = records.ceiling(whole.segment, min(target, whole.end))
        if whole.end - end < size:
            break
        yield Range(whole.segment, start, end)
        start = end
    yield Range(whole.segment, start, whole.end)
