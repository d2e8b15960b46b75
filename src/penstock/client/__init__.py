"""The SDK: what programs outside the worker use. Sources and sinks are here; clients of segments in `segments`."""

from penstock.client.sink import AsyncSink, DataFile, Sink, Transaction
from penstock.client.source import AsyncSource, Message, Refused, Source, SourceFailed, SourceStream

__all__ = [
    "AsyncSink",
    "AsyncSource",
    "DataFile",
    "Message",
    "Refused",
    "Sink",
    "Source",
    "SourceFailed",
    "SourceStream",
    "Transaction",
]
