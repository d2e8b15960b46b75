"""The SDK: what programs outside the worker use. Sources are here; clients of the segment store in `segments`."""

from penstock.client.source import AsyncSource, Message, Refused, Source, SourceFailed, SourceStream

__all__ = ["AsyncSource", "Message", "Refused", "Source", "SourceFailed", "SourceStream"]
