"""Clients of the segment store: `SegmentClient` blocks, `AsyncSegmentClient` is for asyncio; the methods are the same.

    with SegmentClient("127.0.0.1:7101") as client:
        with client.appender("numbers", writer_id, create=True) as appender:
            for event in events[appender.last_number or 0 :]:
                appender.append(event)
        for event in client.events("numbers"):
            print(event.offset, event.data)

Both are thin I/O shells around the same parts, which do none: `operations` decides what is requested and repeated,
`Session` who gets which reply, `window` and `Appending` what a writer has to send, and to send again.
"""

from penstock.client.segments.appenders import Appender, AsyncAppender
from penstock.client.segments.clients import AsyncSegmentClient, SegmentClient
from penstock.client.segments.failures import ANY, AttributeUpdate, Event, ReadResult, SegmentInfo
from penstock.core.types import QUOTA

__all__ = [
    "ANY",
    "QUOTA",
    "Appender",
    "AsyncAppender",
    "AsyncSegmentClient",
    "AttributeUpdate",
    "Event",
    "ReadResult",
    "SegmentClient",
    "SegmentInfo",
]
