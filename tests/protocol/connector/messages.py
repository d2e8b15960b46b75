"""Runs of messages for the tests of bulk decoding, and both implementations side by side."""

from types import ModuleType
from typing import Any

from penstock.protocol.connector import Message, encode
from penstock.protocol.connector.bulk import Admission, Columns, decoder
from tests.protocol.connector import oracle

IMPLEMENTATIONS = (decoder, oracle)


def name_of(implementation: ModuleType) -> str:
    return implementation.__name__.rpartition(".")[2]


def run_of(*messages: Message) -> bytes:
    return b"".join(map(encode, messages))


def numbers_of(columns: Columns) -> dict[str, Any]:
    """Everything that a scan found, comparable."""
    return {
        "starts": columns.starts.tolist(),
        "stream_ids": columns.stream_ids.tolist(),
        "message_ids": columns.message_ids.tolist(),
        "event_times": columns.event_times.tolist(),
        "key_sizes": columns.key_sizes.tolist(),
        "largest_frame": columns.largest_frame,
        "stop": columns.stop,
    }


def decisions_of(admission: Admission) -> dict[str, Any]:
    """Everything that an admission decided, comparable."""
    streams = {name: column.tolist() for name, column in admission.streams._asdict().items()}
    totals = {route: numbers for route, numbers in enumerate(zip(*admission.totals, strict=True)) if any(numbers)}
    return streams | {
        "totals": totals,
        "count": admission.count,
        "problem": admission.problem,
        "message routes": admission.routes.tolist(),
        "dead": admission.dead.tolist(),
        "event_times": admission.event_times.tolist(),
    }
