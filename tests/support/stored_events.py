"""What a source's segments contain."""

from contextlib import suppress

from penstock.client.segments import SegmentClient
from penstock.core.errors import NoSuchSegment
from penstock.protocol.stored import StoredEvent, parse_event
from penstock.protocol.stored.names import connector_segment

SEGMENTS = 2
"""Of a source, unless it says otherwise."""


def stored_events(address: str, connector: str) -> dict[int, list[StoredEvent]]:
    """Of the connector's source by stream, in the order in which they are stored. `address`: the segment port."""
    found: dict[int, list[StoredEvent]] = {}
    with SegmentClient(address) as client:
        for segment in (connector_segment(connector, number) for number in range(SEGMENTS)):
            with suppress(NoSuchSegment):
                for raw in client.events(segment):
                    if (event := parse_event(raw.data)) is not None:  # or a mark
                        found.setdefault(event.stream_id, []).append(event)
    return found
