"""Stored events: what lies in the segments of connectors and of pipelines' outputs.

`names` says which segments a source has, `layout` where the parts of an event lie, `head` what a record says of its
streams. `parse_event` takes one event apart. `bulk` turns many into columns and back; it loads compiled kernels, so
nothing here imports it.
"""

from penstock.protocol.stored.event import NO_TIME, StoredEvent, parse_event
from penstock.protocol.stored.names import Form, Kind, Owner, Source, kind_of, parse_sources

__all__ = ["NO_TIME", "Form", "Kind", "Owner", "Source", "StoredEvent", "kind_of", "parse_event", "parse_sources"]
