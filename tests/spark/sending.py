"""Sends messages to a worker, and reads the output of a pipeline."""

import threading
from collections.abc import Iterator, Sequence

from penstock.client import Message, Source
from penstock.client.segments import SegmentClient
from penstock.core.errors import NoSuchSegment
from penstock.protocol.stored import StoredEvent, parse_event

ACK_SECONDS_MAX = 120


def send(connector: str, source: str, stream: str, payloads: Sequence[bytes], *, key: bytes = b"") -> None:
    """The payloads are the whole stream so far, and their numbers the message ids: what is stored already is not sent
    again. Returns when all are acknowledged, by the pipelines that read them, if there are any.
    """

    def messages(after: int | None) -> Iterator[Message]:
        for number, payload in enumerate(payloads[after or 0 :], (after or 0) + 1):
            yield Message(number, payload, number, key)

    program = Source(connector, source=source)
    sending = program.stream(stream, messages)
    watchdog = threading.Timer(ACK_SECONDS_MAX, program.stop)
    watchdog.start()
    try:
        program.run()
    finally:
        watchdog.cancel()
    assert not payloads or sending.acknowledged == len(payloads), "no acknowledgement came"


def outputs(segment_address: str, pipeline: str, port: str = "out") -> list[StoredEvent]:
    """Empty while there is no such output."""
    with SegmentClient(segment_address) as client:
        try:
            events = [parse_event(event.data) for event in client.events(f"pipeline/{pipeline}/{port}")]
        except NoSuchSegment:
            return []
    return [event for event in events if event is not None]
