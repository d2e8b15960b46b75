"""`penstock sink rewind`: how a sink whose data does not fit the ledger continues."""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.connectors.sink_api import Position, attempt_of, epoch_of
from penstock.coordinator.machine.commands import Adopt
from penstock.coordinator.machine.delivery import bound_after
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.coordinator.records import Records
from penstock.core.errors import PipelineError, SegmentTruncated
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.positions import Divergence, Fit
from penstock.protocol.stored.names import output_segment


class Consent(NamedTuple):
    """What the operator accepts, and who that is."""

    gap: bool
    duplicates: bool
    by: str
    time_us: int


async def plan_rewind(records: Records, pipeline: Pipeline, divergence: Divergence, consent: Consent) -> Adopt:
    """The command that lets the sink continue. Raises PipelineError if that needs a consent that was not given."""
    name, key, reached = divergence.pipeline, divergence.sink, divergence.report.committed
    sink = pipeline.sinks[key]
    if divergence.fit is Fit.NEWER:
        _require(consent.duplicates, divergence, "--accept-duplicates", "rows may arrive at it twice")
        return _adopt(divergence, sink, sink.at, "duplicates", consent)
    assert reached is not None, "a sink that does not report what it has is never older"
    at = await find_position(records, name, pipeline, sink, reached)
    if at is not None:
        return _adopt(divergence, sink, at, "", consent)
    _require(consent.gap, divergence, "--accept-gap", "what it lacks cannot be delivered again from the output")
    return _adopt(divergence, sink, sink.at, "gap", consent)


def _require(given: bool, divergence: Divergence, option: str, why: str) -> None:
    if not given:
        command = f"penstock sink rewind {divergence.sink} --pipeline {divergence.pipeline} {option}"
        raise PipelineError(f"{divergence.sentence}; {why}", f"Restore it, or accept that: {command}")


def _adopt(divergence: Divergence, sink: Sink, at: int, accepted: str, consent: Consent) -> Adopt:
    (committed, in_doubt), decided = divergence.report, divergence.decided
    known = [one.transaction or b"" for one in (committed, in_doubt) if one is not None]
    attempts = max([decided.attempts, *map(attempt_of, known)])
    sent, transaction = decided.sent, decided.transaction.decode()
    if committed is not None and committed.end is not None:  # else only what is in doubt at the sink is not ours
        sent = committed.end
        transaction = (committed.transaction or b"").decode() or bound_after(divergence.pipeline, attempts)
    return Adopt(
        divergence.pipeline,
        divergence.sink,
        before=(sink.sent, sink.decided),
        at=at,
        sent=sent,
        decided=transaction,
        attempts=attempts,
        accepted=accepted,
        by=consent.by,
        time_us=consent.time_us,
    )


async def find_position(records: Records, name: str, pipeline: Pipeline, sink: Sink, reached: Position) -> int | None:
    """Where in the output segment the first message is that the sink lacks; None if it is no longer stored, or cannot
    be determined. It is the end of an epoch after which the payloads have as many bytes as the sink lacks.
    """
    if sink.parked and not reached.transaction:
        return None  # which bytes the sink never got is not known
    segment = output_segment(name, sink.port)
    left, end, found = sink.sent, sink.at, list[int]()
    for start in _epoch_ends(records.begin(segment), pipeline, sink):
        try:
            left -= await _payload_bytes(records, segment, start, end)
        except SegmentTruncated:
            return None
        if left == reached.end:
            found.append(start)
        elif left < (reached.end or 0):
            break
        end = start
    if reached.transaction:
        found = [start for start in found if start == _end_of(pipeline, sink, reached.transaction)]
    return found[0] if len(found) == 1 else None


def _epoch_ends(begin: int, pipeline: Pipeline, sink: Sink) -> Iterator[int]:
    """Where epochs end in the sink's output, before its position; also where the first one starts. Descending."""
    ends = {epoch.ends.get(sink.port, 0) for epoch in pipeline.epochs.values()} | {0}
    return iter(sorted((end for end in ends if begin <= end < sink.at), reverse=True))


def _end_of(pipeline: Pipeline, sink: Sink, transaction: bytes) -> int | None:
    epoch = epoch_of(transaction)
    merged = None if epoch is None else pipeline.epochs.get(epoch)
    return None if merged is None else merged.ends.get(sink.port)


async def _payload_bytes(records: Records, segment: str, start: int, end: int) -> int:
    data = EpochData(
        records=records, segment=segment, offset=start, end=end, name="", number=0, transaction_id=b"", start=0
    )
    async for _ in data.blocks():
        pass
    return data.transaction.end
