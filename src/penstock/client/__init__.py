"""The SDK for programs outside the worker: sources and sinks; segment clients are in `segments`.

The modules are imported on first use: a sink needs nothing of a source, and Spark's Python workers need neither.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_name

if TYPE_CHECKING:
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

_SINK = ("AsyncSink", "DataFile", "Sink", "Transaction")
_HOMES = {name: f"penstock.client.{'sink' if name in _SINK else 'source'}:{name}" for name in __all__}


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
