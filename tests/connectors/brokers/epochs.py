"""Epochs as delivery passes them to a sink that takes whole epochs."""

from collections.abc import Sequence

from penstock.delivery.outbox.rows import Row, encode_rows
from penstock.protocol.stored.event import NO_TIME
from penstock.testing.frame import GivenEpoch

SINK = "pipeline/sink"


def epoch(
    number: int, values: Sequence[bytes], *, keys: Sequence[bytes] | None = None, start: int = 0, time_us: int = NO_TIME
) -> GivenEpoch:
    rows = [
        Row(place, 0, place + 1, time_us, b"" if keys is None else keys[place], b"", value)
        for place, value in enumerate(values)
    ]
    return GivenEpoch(number, "pipeline", encode_rows(rows), start, sum(map(len, values)))
