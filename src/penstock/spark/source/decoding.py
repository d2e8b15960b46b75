"""A reader with a codec: events become typed columns, and those that cannot be decoded dead letters of the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.protocol.api.side_outputs import MissingPart, ReaderPlan, SideKey
from penstock.protocol.stored.dead_letters import ERR
from penstock.protocol.stored.side_outputs import BURIED, digest_of
from penstock.spark import python_worker
from penstock.spark.side_outputs import Origin, Rejected, SideOutputs, registered
from penstock.spark.source.options import SourceOptions, branches_text
from penstock.spark.source.partitions import SegmentRanges, placed

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.coordinator import CoordinatorClient
    from penstock.spark.codecs.batch_decoder import Decoder

_SHOWN = {"metadata_json": "metadata"}
"""Columns under the names that users see: a field of a schema must not hide them."""

_PLACE = ("segment", "offset")

_TRIAL = SideKey(False, "trial", 0)
"""Of the readers of a trial, which register nothing."""


def decoder_of(options: SourceOptions) -> Decoder:
    """Raises RequestError for a codec or a schema that cannot be used."""
    from penstock.spark.codecs.batch_decoder import Decoder

    return Decoder(options.branches, [_SHOWN.get(name, name) for name in options.columns])


def planned(
    coordinator: CoordinatorClient, options: SourceOptions, epoch: int, partitions: list[SegmentRanges]
) -> list[SegmentRanges]:
    """The partitions as the epoch's plan has them: so that a part that no task finishes is noticed. A load without a
    pipeline has no plan, nor has a batch before the first epoch, which has no partitions.
    """
    if not options.branches or options.pipeline is None or not partitions:
        return partitions
    decoding = {"decoding": branches_text(options.branches), "columns": ",".join(options.columns)}
    if not options.fail_on_data_loss:
        decoding["failOnDataLoss"] = "false"
    text = json.dumps(decoding, sort_keys=True)
    operator = f"{options.input}/{digest_of(decoding['decoding'])}"
    plan = ReaderPlan(operator, text, tuple(one.ranges for one in partitions))
    plan = coordinator.plan_reader(options.pipeline, epoch, plan, generation=options.generation)
    workers = {one.piece.segment: one.worker for partition in partitions for one in partition.placed}
    return [
        SegmentRanges(placed(options, ranges, workers), epoch, SideKey(False, plan.operator, number))
        for number, ranges in enumerate(plan.parts)
    ]


def decode_partition(
    options: SourceOptions, columns: tuple[str, ...], partition: SegmentRanges
) -> Iterator[pa.RecordBatch]:
    """The events of the partition with their decoded columns. Registers its dead letters after the last one."""
    key = partition.key if options.trial is None else _TRIAL
    if key is None:
        yield from _Decoding.of(options, columns, None).batches(partition)
        return
    assert options.pipeline is not None
    origin = Origin(options.task_worker, options.pipeline, options.generation, options.tls, options.trial)
    with registered(SideOutputs.of(origin, partition.epoch, key)) as sides:
        yield from _Decoding.of(options, columns, sides).batches(partition)


def decode_missing(origin: Origin, part: MissingPart) -> None:
    """Decode a part that no task has finished, for its dead letters alone: a query that needs no more rows (`limit`)
    leaves events unread, and these are not lost if they can be decoded. Buried events are a part that no task reads:
    all of them leave.
    """
    if part.key.operator == BURIED:
        _reject_buried(origin, part)
        return
    options = SourceOptions.parse({"source": "segment:any", "worker": origin.worker, **json.loads(part.decoding)})
    options = replace(options, tls=origin.tls)
    workers = python_worker.places_of(origin.worker, dict.fromkeys(one.segment for one in part.ranges))
    ranges = SegmentRanges(placed(options, part.ranges, workers))
    with registered(SideOutputs(origin, part.epoch, part.key, part.prefix)) as sides:
        for _ in _Decoding.of(options, options.columns, sides).batches(ranges):
            pass


def _reject_buried(origin: Origin, part: MissingPart) -> None:
    import pyarrow as pa

    rows = pa.table(
        {"segment": [one.segment for one in part.ranges], "offset": pa.array([one.start for one in part.ranges])}
    )
    with registered(SideOutputs(origin, part.epoch, part.key, part.prefix)) as sides:
        sides.stage(rows, Rejected(ERR, json.loads(part.decoding)["reasons"]))


@dataclass(frozen=True, slots=True, eq=False)
class _Decoding:
    options: SourceOptions
    columns: tuple[str, ...]
    """The events' own, as Spark wants them."""
    decoder: Decoder
    sides: SideOutputs | None

    @classmethod
    def of(cls, options: SourceOptions, columns: tuple[str, ...], sides: SideOutputs | None) -> _Decoding:
        return cls(options, columns, decoder_of(options), sides)

    def batches(self, partition: SegmentRanges) -> Iterator[pa.RecordBatch]:
        from penstock.spark.source.arrow import read_partition

        read = tuple(dict.fromkeys((*self.columns, *self.decoder.needs, *_PLACE)))
        for batch in read_partition(self.options, read, partition):
            for decoded in self.decoder.decode_parts(batch):
                if decoded.reasons:
                    self._reject(decoded.failed, decoded.reasons)
                if decoded.batch.num_rows:
                    yield decoded.batch.select([*self.columns, *self.decoder.schema.names])

    def _reject(self, failed: pa.RecordBatch, reasons: Any) -> None:
        import pyarrow as pa

        if self.sides is None:
            segment, offset = (failed.column(name)[0].as_py() for name in _PLACE)
            raise RequestError(
                f"{reasons[0]}, at {segment}@{offset}",
                "Only a stream of a pipeline has dead letters: use readStream with the option pipeline, or decode "
                "without a codec (from_json makes such values null).",
            )
        rows = pa.Table.from_batches([failed]).select([*_PLACE])
        self.sides.stage(rows, Rejected(ERR, reasons))
