"""Stored events: the content of the segments of connectors and of pipelines' outputs.

`names` maps sources to segments, `event` defines the layout of an event, `head` what a record contains about its
streams. `parse_event` parses one event. `bulk` turns many into columns and back; it loads compiled kernels, so nothing
here imports it.
"""

from penstock.protocol.stored.event import NO_TIME, StoredEvent, parse_event
from penstock.protocol.stored.names import Kind, kind_of

__all__ = ["NO_TIME", "Kind", "StoredEvent", "kind_of", "parse_event"]
