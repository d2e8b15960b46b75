"""The transactions in a worker's journal, read from its ledger."""

import struct

from penstock.client.segments import SegmentClient
from penstock.coordinator.ledger import VERSION
from penstock.coordinator.machine.commands import Attempt, Decide, decode, unpack
from penstock.coordinator.machine.delivery import transaction_id
from penstock.protocol.stored.names import LEDGER


def decisions(segments: SegmentClient, pipeline: str) -> list[str]:
    """The decided transactions of a pipeline. The decision is always to commit: nothing else is recorded."""
    return [
        transaction_id(pipeline, entry.epoch, entry.attempt)
        for entry in _entries(segments)
        if isinstance(entry, Decide) and entry.pipeline == pipeline
    ]


def attempts(segments: SegmentClient, pipeline: str) -> int:
    """How many rounds have started."""
    return sum(isinstance(entry, Attempt) and entry.pipeline == pipeline for entry in _entries(segments))


def _entries(segments: SegmentClient) -> list[object]:
    length = segments.info(LEDGER).length
    data = b""
    while len(data) < length:
        data += segments.read(LEDGER, len(data), length - len(data)).data
    entries: list[object] = []
    at = 0
    while at < len(data):
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        entry = unpack(data[at + 4 : end])
        if entry[0] != VERSION:
            entries.append(decode(entry))
        at = end
    return entries
