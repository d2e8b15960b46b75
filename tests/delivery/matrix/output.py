"""Epochs of a pipeline without Spark: staged and merged over the worker's ports."""

from collections.abc import Sequence
from itertools import pairwise

from penstock.client.coordinator import CoordinatorClient, Staged
from penstock.client.segments import SegmentClient
from penstock.protocol.stored.bulk import encode
from tests.delivery.fake_epoch import column


def put_out(
    client: CoordinatorClient, segments: SegmentClient, pipeline: str, epoch: int, values: Sequence[bytes]
) -> None:
    """Stage and merge an epoch."""
    name = f"staging/{pipeline}/-/{epoch}/0-0/out"
    encoded = encode(column(values))
    starts = encoded.starts.tolist()
    with segments.appender(name, create=True) as appender:
        for start, end in pairwise(starts):
            appender.append(bytes(encoded.data[start + 8 : end]))
    client.merge(pipeline, epoch, [Staged("out", name, segments.info(name).length)])
